"""The zygote and the programs of the Python tool's sandbox, beside python_child.py, which says what they are.

The zygote must not see what a call is about: what it once had in its memory, every later program could find there.
"""

import ast
import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import random
import resource
import signal
import site
import socket
import sys
import threading
import traceback
import types
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rtpo.tools.python import python_child as child
    from rtpo.tools.python import python_seccomp as seccomp
else:
    import python_child as child
    import python_seccomp as seccomp

LIBRARIES = (
    *("bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "itertools"),
    *("json", "math", "operator", "random", "re", "statistics", "string", "time", "typing"),
    # the last ones numpy itself imports when they are first used
    *("sympy", "numpy", "numpy.fft", "numpy.linalg", "numpy.ma", "numpy.polynomial", "numpy.random"),
)
"""imported in the zygote; a program imports others itself"""
SCRATCH_BYTES = 64 << 20
SCRATCH_FILES = 1024
THREADS = 32
OPEN_FILES = 256
LAST_WORDS_BYTES = 16 << 20
"""address space kept for saying that memory ran out"""
LAST_WORDS_CHARACTERS = 600
_NEW_MOUNTS, _NEW_PIDS = 0x00020000, 0x20000000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXECUTION = 1, 2, 4, 8
_REMOUNT, _BIND = 32, 4096
_NO_NEW_PRIVILEGES = 38
_CAPABILITY_VERSION = 0x20080522
_ABOVE = 64
"""descriptors are moved here while the program's own are put in place"""
_HIGHEST = 1 << 16
"""of the descriptors that are closed before a program runs; the zygote has none above a few"""


# the program


def complaint(error: BaseException) -> str:
    """The error in one line, with the program's line where it has one."""
    what = traceback.format_exception_only(error)[-1].strip()
    if len(what) > LAST_WORDS_CHARACTERS:
        what = f"{what[:LAST_WORDS_CHARACTERS]} ..."
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == "<program>"]
    if isinstance(error, SyntaxError) and error.filename == "<program>":
        lines.append(error.lineno or 0)
    return f"{what} (line {lines[-1]})" if lines and lines[-1] else what


def _write(end: int, note: bytes) -> None:
    """To the output or the notes themselves, whatever the program has made of sys.stdout."""
    with suppress(OSError):  # it can close them
        os.write(end, note)


def _say(error: BaseException) -> None:
    _write(1, f"{complaint(error)}\n".encode("utf-8", "replace"))


def run_cell(code: str, names: dict[str, Any], notes: int) -> int:
    """Run code, print the value of a last expression unless it is None, and say how it failed, if it did; its exit
    status."""
    try:
        tree = ast.parse(code, "<program>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<program>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<program>", "eval"), names)
            if value is not None:
                print(value)
        return 0
    except SystemExit as end:
        if end.code in (None, 0):
            return 0
        _write(1, f"SystemExit: {end.code}\n".encode("utf-8", "replace"))
    except MemoryError as error:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        _write(notes, child.NO_MEMORY)
        _say(error)
    except BaseException as error:
        _say(error)
    return 1


def run_cells(cells: list[str], settings: child.Settings, notes: int, nowhere: int) -> int:
    """Run cells in one namespace, as `__main__`; what all but the last print goes nowhere. Exit status of the last."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv = [""]
    output = os.dup(1)
    status = 0
    for place, code in enumerate(cells):
        is_last = place == len(cells) - 1
        for stream in (1, 2):
            os.dup2(output if is_last else nowhere, stream)
        if is_last:
            os.close(output)
            os.close(nowhere)
        seconds = settings.cpu_seconds * (1 if is_last else child.REPLAY_FACTOR)
        if place and is_last:
            used = resource.getrusage(resource.RUSAGE_SELF)
            seconds += ceil(used.ru_utime + used.ru_stime)
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (min(seconds, most), most))
        _write(notes, child.BEGUN)
        status = run_cell(code, main.__dict__, notes)
        if is_last:
            _end_interpreter()
        _write(notes, child.DONE)
    return status


def _end_interpreter() -> None:
    """What an interpreter does at its end, but for taking itself apart, which is slow."""
    for end in (threading._shutdown, atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):  # type: ignore[attr-defined]
        with suppress(BaseException):
            end()


def confine(settings: child.Settings, cells: int, zygote: int) -> None:
    """Limits and no privileges, for good. zygote: its process number, seen from here. Raises OSError, also where the
    zygote has gone."""
    # threads count as processes, and so do keeper, zygote and init where they are of the same user
    processes = (THREADS if settings.processes == 1 else settings.processes) + (0 if settings.user else 3)
    seconds = settings.cpu_seconds * (1 + child.REPLAY_FACTOR) + 1 if cells > 1 else settings.cpu_seconds
    for name, soft, hard in (
        # a second more: SIGXCPU, which comes first, can be ignored
        (resource.RLIMIT_CPU, seconds, seconds + 1),
        (resource.RLIMIT_AS, settings.memory_bytes, settings.memory_bytes + LAST_WORDS_BYTES),
        (resource.RLIMIT_NPROC, processes, processes),
        (resource.RLIMIT_FSIZE, *(2 * [SCRATCH_BYTES if settings.namespaces else 0])),
        (resource.RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES),
        (resource.RLIMIT_CORE, 1, 1),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
        (resource.RLIMIT_SIGPENDING, THREADS, THREADS),
    ):
        _, most = resource.getrlimit(name)
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(name, (soft, hard))
    if settings.user is not None:
        os.setgroups([])
        os.setresgid(settings.user, settings.user, settings.user)
        os.setresuid(settings.user, settings.user, settings.user)
    child.ask_kernel("capset", (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)())
    # after the change of user, which would take it back
    child.ask_kernel("prctl", child.PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != zygote:
        raise ProcessLookupError("the zygote has gone")
    child.ask_kernel("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    seccomp.put_on(child.libc, os.getpid(), settings.processes > 1, settings.namespaces)


def be_program(settings: child.Settings, zygote: int, code: int, output: int, notes: int, report: int) -> NoReturn:
    """Never returns; the exit status is 0 where the last cell ended well."""
    try:
        os.setsid()
        with os.fdopen(code) as file:
            cells = json.load(file)
        output, notes, report = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for end in (output, notes, report))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(notes, 3, inheritable=False)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 4, inheritable=False)
        random.seed(0)
        sys.modules["numpy"].random.seed(0)
        if settings.namespaces:
            _mount_scratch(settings.user)
        confine(settings, len(cells), zygote)
        if settings.namespaces:
            os.chdir(child.SCRATCH)
    except BaseException as error:
        os.write(report, complaint(error).encode())
        os._exit(1)
    os.closerange(5, _HIGHEST)
    status = 1
    try:
        status = run_cells(cells, settings, 3, 4)
    except BaseException as error:
        _say(error)
    finally:
        os._exit(status)


def _mount_scratch(user: int | None) -> None:
    child.ask_kernel("unshare", _NEW_MOUNTS)
    owner = os.getuid() if user is None else user
    group = os.getgid() if user is None else user
    options = f"size={SCRATCH_BYTES},nr_inodes={SCRATCH_FILES},mode=0700,uid={owner},gid={group}"
    flags = _NO_SUID | _NO_DEVICES | _NO_EXECUTION
    child.ask_kernel("mount", b"tmpfs", child.SCRATCH.encode(), b"tmpfs", flags, options.encode())


# the zygote


def seal_devices() -> None:
    """Keep programs from changing what the host sees of its device nodes, such as their times; for all of them at once.

    A read-only mount of a node does not keep from writing to the device."""
    for node in os.scandir("/dev"):
        if not node.is_symlink():
            kept = os.statvfs(node.path).f_flag & (_NO_SUID | _NO_EXECUTION)
            child.ask_kernel("mount", None, node.path.encode(), None, _REMOUNT | _BIND | _READ_ONLY | kept, None)


def run_program(settings: child.Settings, ends: list[int], home: int, keeper: socket.socket) -> None:
    """Start a program, give its handle to the keeper, and once that says so end all of its processes and tell what
    became of it (`child.ENDED`). ends: where its code is, and for its output, its notes and its report."""
    init, init_input = None, -1
    if settings.namespaces:
        child.ask_kernel("unshare", _NEW_PIDS)
        standard_in, init_input = os.pipe()
        init = os.posix_spawn(child.INIT, ["cat"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, standard_in, 0)])
        os.close(standard_in)
    # asked of the program, this would be another process' number once the zygote has gone
    zygote = 0 if settings.namespaces else os.getpid()
    pid = os.fork()
    if not pid:
        be_program(settings, zygote, *ends)
    if settings.namespaces:
        child.ask_kernel("setns", home, _NEW_PIDS)
    for end in ends:
        os.close(end)
    handle = os.pidfd_open(pid)
    socket.send_fds(keeper, [b"r"], [handle])
    keeper.recv(1)
    # without a namespace it could start no other
    os.kill(pid if init is None else init, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    if init is not None:
        os.waitpid(init, 0)
        os.close(init_input)
    os.close(handle)
    keeper.send(child.ENDED.pack(status, usage.ru_utime + usage.ru_stime))


def warm_up() -> None:
    """Once here for all programs: what sympy imports and keeps when it is first used."""
    import sympy

    x = sympy.Symbol("x")
    sympy.solve(x**2 - 2, x)
    sympy.solveset(x**2 - 2, x)
    sympy.integrate(sympy.sin(x) ** 2, x)
    sympy.simplify((x**2 - 1) / (x - 1))
    sympy.lambdify(x, x)(1)


def serve(settings: child.Settings, keeper: socket.socket, keeper_pid: int) -> NoReturn:
    """A program for each order of the keeper's, until that ends."""
    child.ask_kernel("prctl", child.PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != keeper_pid:
        os._exit(1)
    if settings.namespaces:
        seal_devices()
    # PYTHONPATH, which is for interpreters that programs start, puts them before the standard library
    sys.path[:] = [*(path for path in sys.path if path not in settings.site), *settings.site]
    for define in (site.setquit, site.setcopyright, site.sethelper):
        define()
    for name in LIBRARIES:
        importlib.import_module(name)
    warm_up()
    atexit._clear()
    home = os.pidfd_open(os.getpid())
    gc.collect()
    gc.freeze()
    with suppress(BrokenPipeError, ConnectionResetError):
        keeper.send(b"r")
        while True:
            order, ends, _, _ = socket.recv_fds(keeper, 1, 4, socket.MSG_CMSG_CLOEXEC)
            if not order:
                break
            run_program(settings, ends, home, keeper)
    os._exit(0)
