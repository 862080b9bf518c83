"""No program gets out of the Python tool's sandbox, as root's child and as an ordinary user's, and none spoils the next
call."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_programs import HOSTILE, MANY, ONE, World
from ordinary_user import as_ordinary_user

from rtpo.config import PROJECT
from rtpo.tools.python import close_pools

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


@pytest.mark.needs("bwrap", "ordinary user")
def test_nor_does_any_where_an_ordinary_user_runs_the_tool() -> None:
    script = Path(__file__).with_name("hostile_programs.py")
    done = subprocess.run(
        as_ordinary_user([sys.executable, str(script)]),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), "HOME": "/", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout, done.stderr
    record = json.loads(done.stdout)
    assert record["found"] == {}
    assert record["user"] != 0
    assert record["programs"] >= 40
