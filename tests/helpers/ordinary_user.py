"""Commands run by root as an ordinary user."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rtpo.run.config import PROJECT

USER = 12345
"""nobody's number"""


def as_ordinary_user(command: Sequence[str]) -> list[str]:
    """`as_user` without root's rights."""
    return as_user(command, USER)


def as_user(command: Sequence[str], user: int) -> list[str]:
    """A command that runs another as a user of this number: as it is where this process has no right to that.

    The interpreter and the project may lie in folders that are root's alone. The command then gets a mount namespace
    in which each of those folders is an empty one that all can pass through, with the interpreter and the project in
    it. Nothing outside sees that.
    """
    if os.getuid():
        return list(command)
    needed = {os.path.realpath(path) for path in (sys.base_prefix, sys.prefix, str(PROJECT))}
    script = ["set -e", "kept=$(mktemp -d)", 'mount -t tmpfs none "$kept"']
    closed: dict[str, list[str]] = {}
    for path in sorted(needed):
        barred = [str(above) for above in reversed(Path(path).parents) if not above.stat().st_mode & 1]
        if barred:
            closed.setdefault(barred[0], []).append(path)
    paths = [path for inside in closed.values() for path in inside]
    for number, path in enumerate(paths):
        script += [f'mkdir "$kept"/{number}', f'mount --bind {shlex.quote(path)} "$kept"/{number}']
    script += [f"mount -t tmpfs -o mode=755 none {shlex.quote(folder)}" for folder in closed]
    for number, path in enumerate(paths):
        script += [f"mkdir -p {shlex.quote(path)}", f'mount --bind "$kept"/{number} {shlex.quote(path)}']
    script += ['umount -l "$kept"', f'exec setpriv --reuid {user} --regid {user} --clear-groups "$@"']
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(script), "sh", *command]
