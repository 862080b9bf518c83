"""Which files of tests the edit loop runs (`make test-fast`), and what no test of theirs may start.

They import nothing of the project, directly or through a helper of the tests, but the rooms that algorithms are written
in, the engines and problems that they are tested on, and what records a run. So a new file is one of them by what it
imports.
"""

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
PROJECT = ("rtpo", "baselines", "analysis", "experiments")
ROOMS = (
    *("rtpo.core", "rtpo.harness", "rtpo.theory", "rtpo.toy", "rtpo.envs.toy", "rtpo.envs.base", "baselines"),
    *(
        "rtpo.engines.base",
        "rtpo.engines.backend",
        "rtpo.engines.decoder",
        "rtpo.engines.sampling",
    ),
    *("rtpo.run.records", "rtpo.run.run", "analysis.load", "analysis.looks"),
)
"""beside the modules at the root of rtpo/"""
PROGRAMS = ("/bin/sh", "sha256sum")
"""what a fast test may start: commands that a message names to its reader"""


@cache
def imported(file: Path) -> frozenset[str]:
    """Dotted names of what a file of tests imports, and what the helpers do that it imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    parts = [name.split(".") for name in names]
    folders = (TESTS, TESTS / "helpers", file.parent)
    helpers = {base.joinpath(*name[:deep]).with_suffix(".py") for name in parts for deep in (1, 2) for base in folders}
    helpers -= {TESTS / "conftest.py", file}
    return frozenset(names).union(*(imported(helper) for helper in helpers if helper.exists()))


def is_of_a_room(name: str) -> bool:
    parts = name.split(".")
    is_at_the_root = parts[0] == "rtpo" and (TESTS.parent / "rtpo" / f"{parts[1]}.py").exists()
    return is_at_the_root or any(name == room or name.startswith(f"{room}.") for room in ROOMS)


def is_fast(file: Path) -> bool:
    own = {name for name in imported(file) if name.split(".")[0] in PROJECT}
    return bool(own) and all(map(is_of_a_room, own))


_watched = False


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched or event not in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "os.system"):
        return
    program = arguments[0] if arguments else "a process"
    if program not in PROGRAMS:
        raise AssertionError(f"a fast test starts {program}: it belongs to a file that tests/fast.py does not select")


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
