"""Which files of tests the edit loop runs (`make test-fast`), and what no test of theirs may start."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

FOLDERS = ("core", "harness", "methods")
BESIDE = ("test_records", "test_tabular", "test_toy_knowledge", "test_toy_keys", "test_toy_math", "test_toy_walk")
"""files of other folders"""
SLOW = ("test_boxes", "test_controls", "test_crashes", "test_tree_kernels")
PROGRAMS = ("/bin/sh", "sha256sum")
"""what a fast test may start: commands that a message names to its reader"""


def is_fast(file: Path) -> bool:
    return file.stem in BESIDE or (file.parent.name in FOLDERS and file.stem not in SLOW)


_watched = False


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched or event not in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "os.system"):
        return
    program = arguments[0] if arguments else "a process"
    if program not in PROGRAMS:
        raise AssertionError(f"a fast test starts {program}: name its file in SLOW of tests/fast.py")


_add_hook = cache(sys.addaudithook)


@contextmanager
def nothing_started() -> Iterator[None]:
    """Within it a process that is none of PROGRAMS is an error: no Ray, no browser, no sandbox, no other Python."""
    global _watched
    _add_hook(_watch)
    _watched = True
    try:
        yield
    finally:
        _watched = False
