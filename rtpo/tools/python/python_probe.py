"""A program that tries what a sandbox must prevent; `rtpo.tools.python.tool` runs its text in one.

It uses only the standard library.
"""

import ctypes
import fcntl
import os
import resource
import signal
import socket
import wave  # a module that is not loaded yet: tests that the installation is readable
from contextlib import suppress
from typing import Any


def findings(secrets: list[str], folders: list[str], environment: list[str], limits: dict[str, Any]) -> list[str]:
    """The sandbox's faults, one clause each.

    secrets: paths that must be hidden. folders: must be read-only. environment: the only variables allowed.
    limits: `cpu_seconds` of a program, and `most_processes` that it may start.
    """
    breaches = []
    if 0 in (*os.getresuid(), *os.getresgid()) or 0 in os.getgroups():
        breaches.append("it is root")
    if extra := sorted(set(os.environ) - {*environment}):
        breaches.append(f"it has the variables {', '.join(extra)}")
    breaches += [f"it sees {path}" for path in secrets if os.path.lexists(path)]
    breaches += [f"it writes in {folder}" for folder in folders if _writes(folder)]
    libc = ctypes.CDLL(None)
    no_new_privileges, filtered = libc.prctl(39, 0, 0, 0, 0), libc.prctl(21, 0, 0, 0, 0)
    if (no_new_privileges, filtered) != (1, 2):
        breaches.append("it has no system call filter")
    capabilities = (ctypes.c_uint32 * 6)()
    libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), capabilities)
    if any(capabilities):
        breaches.append("it has capabilities")
    if resource.getrlimit(resource.RLIMIT_CPU)[1] > limits["cpu_seconds"] + 1:
        breaches.append("its CPU time is not limited")
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
        with suppress(OSError):
            socket.socket(family).close()
            breaches.append(f"it opens sockets ({family.name})")
    with suppress(OSError):
        os.utime("/dev/null")
        breaches.append("it changes the times of the host's /dev/null")
    with suppress(OSError), open(wave.__file__) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        breaches.append("it locks files of the host")
    if (started := _forks(limits["most_processes"])) > limits["most_processes"]:
        breaches.append(f"it starts {started!s} processes")
    return breaches


def _writes(folder: str) -> bool:
    path = os.path.join(folder, "written-by-a-program")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except OSError:
        return False
    os.unlink(path)
    return True


def _forks(most: int) -> int:
    """The number of processes that this one can start; it tries at most `most` + 1."""
    children: list[int] = []
    with suppress(OSError):
        while len(children) <= most:
            child = os.fork()
            if not child:
                signal.pause()
            children.append(child)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return len(children)
