"""No program gets out of the Python tool's sandbox, as root's child and as an ordinary user's, none spoils the next
call, none lasts, and none finds anything of an earlier one."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rtpo.run.config import PROJECT

RUN = Path(__file__).parents[1] / "helpers" / "hostile_programs.py"
USER = 12345
"""nobody's number"""
USERS = (0, USER) if os.getuid() == 0 else (os.getuid(),) * 2
"""users that the tool can run as on this machine: for outcomes, and for times"""
CASES = [
    pytest.param(isolation, part, user, marks=pytest.mark.needs(*parts, "ordinary user"))
    for isolation, parts in (("namespaces", ["bwrap"]), ("limits", []))
    for part, user in zip(("outcomes", "time"), USERS, strict=True)
]


def as_user(command: Sequence[str], user: int) -> list[str]:
    """A command that runs another as a user of this number; as it is where this process has no right to that.

    The interpreter and the project may lie in folders that are root's alone. The command then gets a mount namespace
    in which each of those folders is an empty one that all can pass through, with the interpreter and the project in
    it. Nothing outside sees that.
    """
    if os.getuid():
        return list(command)
    script = ["set -e", "kept=$(mktemp -d)", 'mount -t tmpfs none "$kept"']
    closed: dict[str, str] = {}
    for path in sorted({os.path.realpath(path) for path in (sys.base_prefix, sys.prefix, str(PROJECT))}):
        barred = [str(above) for above in reversed(Path(path).parents) if not above.stat().st_mode & 1]
        if barred:
            script += [f'mkdir "$kept"/{len(closed)}', f'mount --bind {shlex.quote(path)} "$kept"/{len(closed)}']
            closed[path] = barred[0]
    script += [f"mount -t tmpfs -o mode=755 none {shlex.quote(folder)}" for folder in sorted({*closed.values()})]
    for number, path in enumerate(closed):
        script += [f"mkdir -p {shlex.quote(path)}", f'mount --bind "$kept"/{number} {shlex.quote(path)}']
    script += ['umount -l "$kept"', f'exec setpriv --reuid {user} --regid {user} --clear-groups "$@"']
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(script), "sh", *command]


@pytest.mark.parametrize(("isolation", "part", "user"), CASES)
def test_a_program_does_not_get_out_and_spoils_no_other(isolation: str, part: str, user: int) -> None:
    done = subprocess.run(
        as_user([sys.executable, str(RUN), isolation, part], user),
        env={name: os.environ[name] for name in ("PATH", "HOME")}
        | {"PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *warnings, last = done.stdout.splitlines()
    record = json.loads(last)
    assert (record["user"], record["escaped"], record["late"]) == (user, {}, {})
    assert record["programs"] >= (70 if isolation == "namespaces" else 10)
    # of memory: nothing of another program, all of its own; /proc, where there is one, tells how much there is
    leaked, scanned, mapped = record["later"]
    assert (leaked, record["control"][0]) == (0, 4)
    assert scanned > max(1 << 14, 0.99 * mapped)
    assert bool(mapped) == (isolation == "limits")
    facts = record["facts"]
    assert (facts["isolation"], facts["user"]) == (isolation, "own" if user else "reserved")
    if isolation == "limits":
        assert "through /proc" in facts["open"]
        assert facts["open"] in warnings[0]
