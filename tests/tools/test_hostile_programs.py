"""No program gets out of the Python tool's sandbox, as root's child and as an ordinary user's, none spoils the next
call, and none finds anything of an earlier one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_programs import HOSTILE, MANY, ONE, World
from ordinary_user import USER, as_user

from rtpo.run.config import PROJECT
from rtpo.tools.python.tool import close_pools

pytestmark = pytest.mark.needs("bwrap")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    for settings in (ONE, MANY):
        settings.check()
    with World() as world:
        yield world
    close_pools()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_does_not_get_out_and_spoils_no_other(name: str, world: World) -> None:
    assert world.escapes(HOSTILE[name]) == []


def _run(script: str, isolation: str, user: int) -> dict[str, Any]:
    done = subprocess.run(
        as_user([sys.executable, str(Path(__file__).parents[1] / "helpers" / script), isolation], user),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), "HOME": "/", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    assert record["user"] == (user if os.getuid() == 0 else os.getuid())
    return record


USERS = [0, USER] if os.getuid() == 0 else [os.getuid()]
"""whom the tool's own process can be run as here"""
IN_NAMESPACES, UNDER_LIMITS = (
    [pytest.param(isolation, user, marks=pytest.mark.needs(*parts, "ordinary user")) for user in USERS]
    for isolation, parts in (("namespaces", ["bwrap"]), ("limits", []))
)


@pytest.mark.parametrize(("isolation", "user"), [IN_NAMESPACES[-1], *UNDER_LIMITS])
def test_nor_does_any_where_another_runs_the_tool_or_with_less_isolation(isolation: str, user: int) -> None:
    record = _run("hostile_run.py", isolation, user)
    assert record["found"] == {}
    assert record["late"] == {}
    assert record["programs"] >= (60 if isolation == "namespaces" else 5)


@pytest.mark.parametrize(("isolation", "user"), [*IN_NAMESPACES, *UNDER_LIMITS])
def test_nothing_of_an_earlier_call_is_in_the_memory_of_a_later_one(isolation: str, user: int) -> None:
    """Neither of its program nor of its output; a program's own text is found."""
    record = _run("memory_scan.py", isolation, user)
    found, scanned, mapped = record["later"]
    assert (found, record["control"][0]) == (0, 4)
    # /proc, where there is one, tells how much there is
    assert scanned > max(1 << 14, 0.99 * mapped)
    assert bool(mapped) == (isolation == "limits")
