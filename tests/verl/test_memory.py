"""Memory that engine and trainer share."""

import subprocess
import sys

PROGRAM = """
import psutil, torch
from rtpo.verl_harness.memory import share_memory
{first}
torch.ones(2**22)  # its end raises the size from which glibc gives blocks back
blocks = [torch.ones({floats} + 2600 * number) for number in range(240)]
peak = psutil.Process().memory_info().rss
del blocks[::2]
print(peak - psutil.Process().memory_info().rss)
"""


def given_back(first: str, floats: int) -> int:
    """MiB that go back to the system when every other of 240 blocks is freed, which have these 32-bit floats or up to
    2.4 MiB more."""
    command = [sys.executable, "-c", PROGRAM.format(first=first, floats=floats)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) >> 20


def test_large_blocks_go_back_when_they_are_freed() -> None:
    large, small = 2**20, 2**18
    assert given_back("", large) < 100
    assert given_back("share_memory()", large) > 500
    assert given_back("share_memory()", small) < 100
