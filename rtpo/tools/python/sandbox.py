"""Starts the Python tool's interpreters: in bubblewrap's namespaces, or only under limits."""

import json
import os
import platform
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from socket import socket, socketpair
from typing import IO, Final

from rtpo.errors import MachineError
from rtpo.tools.python.python_child import INIT, SCRATCH, Settings
from rtpo.tools.python.python_seccomp import MACHINES

CHILD: Final = Path(__file__).with_name("python_child.py")
PROGRAM: Final = Path(__file__).with_name("python_program.py")
FILTER: Final = Path(__file__).with_name("python_seccomp.py")
BUBBLEWRAP: Final = "bwrap"
MESSAGE_SECONDS: Final = 30.0
"""timeout of a message whose transfer has begun"""
FIRST_USER, USERS = 60706, 478
"""the first of the user ids that distributions leave free, and their number. The kernel counts processes per user, so
root's interpreters each run programs under a different id where possible"""
ENVIRONMENT: Final = {
    "HOME": SCRATCH,
    "LANG": "C.UTF-8",
    # separate heaps per thread would use up the limited address space
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/bin:/bin",
    "PYTHONHASHSEED": "0",
}
LESS = "or accept less isolation with ++task.settings.python.isolation=limits (docs/run/tools.md says what you lose)"
_INSIDE: Final = "/sandbox"
_HIDDEN: Final = (SCRATCH, "/dev", _INSIDE)
"""paths that the sandbox replaces"""
_OPTIONS: Final = ("-S", "-s", "-P", "-B", "-u")
"""like -I, but PYTHONHASHSEED and PYTHONPATH count, and the interpreter's own packages are left out"""
_ROOT_KEEPS = ("CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID")
"""the zygote's capabilities: the first for namespaces and mounts; the others to change user, which only root does"""


def start(settings: Settings) -> tuple[subprocess.Popen[bytes], socket, IO[bytes]]:
    """Start a keeper and its zygote (`rtpo.tools.python.python_child`), which end with the thread that calls this.
    Returns the process (the keeper's, or its bubblewrap's), the control socket and stderr.

    Raises MachineError if the machine lacks what the isolation needs, and OSError if the process does not start.
    """
    if platform.machine() not in MACHINES:
        raise MachineError(
            f"the Python tool has no system call filter for {platform.machine()} processors: use a machine of "
            f"{' or '.join(MACHINES)}."
        )
    control, child_end = socketpair()
    control.settimeout(MESSAGE_SECONDS)
    errors = tempfile.TemporaryFile()  # noqa: SIM115  it lives with the process
    sources = [os.open(path, os.O_RDONLY) for path in (CHILD, PROGRAM, FILTER)]
    try:
        if settings.namespaces:
            command = [*_bubblewrap(sources), inside(_interpreter()), *_OPTIONS, f"{_INSIDE}/{CHILD.name}"]
        else:
            command = [_interpreter(), *_OPTIONS, str(CHILD)]
        process = subprocess.Popen(
            [*command, json.dumps(vars(settings)), str(child_end.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd="/",
            env=ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(settings.site)},
            pass_fds=[child_end.fileno(), *(sources if settings.namespaces else ())],
            # Ctrl-C then reaches the run alone, which needs the child to finish its phase
            start_new_session=True,
        )
    except BaseException:
        control.close()
        errors.close()
        raise
    finally:
        child_end.close()
        for source in sources:
            os.close(source)
    return process, control, errors


def site_folders() -> list[str]:
    """The folders of this interpreter's packages; .pth files in them are ignored."""
    own = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [path for path in [*own, *site.getsitepackages()] if Path(path).is_dir()]


def _interpreter() -> str:
    return str(Path(sys.executable).resolve())


def bubblewrap_version() -> str:
    """The version of bubblewrap. Raises MachineError if it is not installed."""
    program = shutil.which(BUBBLEWRAP)
    if program is None:
        raise MachineError(
            f"the Python tool isolates programs with bubblewrap, but this machine has no {BUBBLEWRAP}: install it "
            f"(Debian and Ubuntu: apt-get install -y bubblewrap), {LESS}."
        )
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]


def _bubblewrap(sources: Iterable[int]) -> list[str]:
    """The bubblewrap command: new namespaces, and a read-only file system with the interpreter, its packages and the
    system's libraries. Each call later mounts its own scratch folder.

    As root, programs change to another user. Otherwise they get a user namespace with no other user.
    """
    bubblewrap_version()
    flags = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if os.getuid():
        flags += ["--unshare-user"]
    flags += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    for capability in _ROOT_KEEPS:
        flags += ["--cap-add", capability]
    mounts = [("--ro-bind", str(path), str(path)) for path in _system_folders() if not path.is_symlink()]
    mounts += [("--symlink", os.readlink(path), str(path)) for path in _system_folders() if path.is_symlink()]
    mounts += [("--ro-bind", folder, place) for folder, place in interpreter_folders().items()]
    mounts.append(("--ro-bind", os.path.realpath("/bin/cat"), INIT))
    for source, name in zip(sources, (CHILD.name, PROGRAM.name, FILTER.name), strict=True):
        mounts.append(("--ro-bind-data", str(source), f"{_INSIDE}/{name}"))
    mounts += [("--dev-bind", f"/dev/{name}", f"/dev/{name}") for name in ("null", "zero", "random", "urandom")]
    # puts shared memory and named semaphores into the scratch folder
    mounts.append(("--symlink", SCRATCH, "/dev/shm"))
    # bubblewrap would create these folders for their owner only
    for folder in sorted({str(parent) for _, _, target in mounts for parent in Path(target).parents} - {"/"}):
        flags += ["--dir", folder]
    for kind, source_path, target in mounts:
        flags += [*(["--perms", "0444"] if kind == "--ro-bind-data" else ()), kind, source_path, target]
    return [BUBBLEWRAP, *flags, "--dir", SCRATCH, "--remount-ro", "/", "--chdir", "/", "--"]


def _system_folders() -> list[Path]:
    """Paths of libraries, the linker's cache and time zones."""
    libraries = [f"{above}/lib{kind}" for above in ("/usr", "") for kind in ("", "32", "64", "x32")]
    names = [*libraries, "/usr/share/zoneinfo", "/etc/ld.so.cache"]
    return [Path(name) for name in names if os.path.lexists(name)]


def interpreter_folders() -> dict[str, str]:
    """Folders of the interpreter and its packages, none below another, with their paths in the sandbox.
    The path differs only where the sandbox would hide the folder."""
    places: dict[str, str] = {}
    for folder in sorted({sys.base_prefix, str(Path(_interpreter()).parent), *site_folders()}):
        if not any(Path(folder).is_relative_to(other) for other in places):
            is_hidden = any(Path(folder).is_relative_to(hidden) for hidden in _HIDDEN)
            places[folder] = f"{_INSIDE}/{len(places)}" if is_hidden else folder
    return places


def inside(path: str) -> str:
    """The path in the sandbox of a path below `interpreter_folders`."""
    for folder, place in interpreter_folders().items():
        if Path(path).is_relative_to(folder):
            return str(Path(place) / Path(path).relative_to(folder))
    return path
