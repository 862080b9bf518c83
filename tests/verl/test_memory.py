"""Memory that engine and trainer share."""

import subprocess
import sys

PROGRAM = """
import psutil, torch
from rtpo.verl_harness.memory import share_memory
{first}
torch.ones(2**22)  # its end raises the size from which glibc gives blocks back
blocks = [torch.ones(2**20 + 2600 * number) for number in range(240)]
peak = psutil.Process().memory_info().rss
del blocks[::2]
print(peak - psutil.Process().memory_info().rss)
"""


def given_back(first: str) -> int:
    """MiB that go back to the system when half of 1,240 MiB is freed, in blocks of 4 to 6 MiB."""
    command = [sys.executable, "-c", PROGRAM.format(first=first)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) >> 20


def test_large_blocks_go_back_when_they_are_freed() -> None:
    assert given_back("") < 100
    assert given_back("share_memory()") > 500
