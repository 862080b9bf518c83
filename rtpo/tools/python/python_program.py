"""The zygote and the programs of the Python tool's sandbox; python_child.py describes these processes.

The zygote must not see a call's code or output: every later program inherits its memory and could read them.
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
    # numpy imports its submodules on first use
    *("sympy", "numpy", "numpy.fft", "numpy.linalg", "numpy.ma", "numpy.polynomial", "numpy.random"),
)
"""the zygote imports these before it forks"""
SCRATCH_BYTES = 64 << 20
SCRATCH_FILES = 1024
THREADS = 32
OPEN_FILES = 256
LAST_WORDS_BYTES = 16 << 20
"""address space reserved for the message that memory ran out"""
LAST_WORDS_CHARACTERS = 600
_NEW_MOUNTS, _NEW_PIDS = 0x00020000, 0x20000000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXECUTION = 1, 2, 4, 8
_REMOUNT, _BIND = 32, 4096
_NO_NEW_PRIVILEGES = 38
_CAPABILITY_VERSION = 0x20080522
_FIRST_INHERITED = 64
"""inherited descriptors move to this number and above, so that the program's own can be 0 to 4"""
_HIGHEST = 1 << 16
"""descriptors up to here are closed before a program runs; the zygote has only a few"""


# the program


def complaint(error: BaseException) -> str:
    """The error in one line, with the program's line number if there is one."""
    message = traceback.format_exception_only(error)[-1].strip()
    if len(message) > LAST_WORDS_CHARACTERS:
        message = f"{message[:LAST_WORDS_CHARACTERS]} ..."
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == "<program>"]
    if isinstance(error, SyntaxError) and error.filename == "<program>":
        lines.append(error.lineno or 0)
    return f"{message} (line {lines[-1]})" if lines and lines[-1] else message


def _write(end: int, note: bytes) -> None:
    """Write to a descriptor directly: the program may have replaced sys.stdout."""
    with suppress(OSError):  # the program may have closed the descriptor
        os.write(end, note)


def _print_error(error: BaseException) -> None:
    _write(1, f"{complaint(error)}\n".encode("utf-8", "replace"))


def run_cell(code: str, names: dict[str, Any], notes: int) -> int:
    """Run code and print a final expression's value unless it is None. Prints any error. Returns the exit status."""
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
        _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (hard_limit, hard_limit))
        _write(notes, child.NO_MEMORY)
        _print_error(error)
    except BaseException as error:
        _print_error(error)
    return 1


def run_cells(cells: list[str], settings: child.Settings, notes: int, discard: int) -> int:
    """Run cells in one Python namespace, as `__main__`; returns the last cell's exit status.

    Only the last cell's output is kept. discard: descriptor that takes the output of the others.
    """
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv = [""]
    output = os.dup(1)
    status = 0
    for place, code in enumerate(cells):
        is_last = place == len(cells) - 1
        for stream in (1, 2):
            os.dup2(output if is_last else discard, stream)
        if is_last:
            os.close(output)
            os.close(discard)
        seconds = settings.cpu_seconds * (1 if is_last else child.REPLAY_FACTOR)
        if place and is_last:
            used = resource.getrusage(resource.RUSAGE_SELF)
            seconds += ceil(used.ru_utime + used.ru_stime)
        _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (min(seconds, hard_limit), hard_limit))
        _write(notes, child.BEGUN)
        status = run_cell(code, main.__dict__, notes)
        if is_last:
            _end_interpreter()
        _write(notes, child.DONE)
    return status


def _end_interpreter() -> None:
    """End as an interpreter does, but skip freeing its objects, which is slow."""
    for end in (threading._shutdown, atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):  # type: ignore[attr-defined]
        with suppress(BaseException):
            end()


def confine(settings: child.Settings, cells: int, zygote: int) -> None:
    """Set limits and drop all privileges, irrevocably. Raises OSError if the kernel refuses or the zygote has ended.

    zygote: its process id in this PID namespace.
    """
    # the kernel counts threads too, and keeper, zygote and init if they have the same user
    processes = (THREADS if settings.processes == 1 else settings.processes) + (0 if settings.user else 3)
    seconds = settings.cpu_seconds * (1 + child.REPLAY_FACTOR) + 1 if cells > 1 else settings.cpu_seconds
    for name, soft, hard in (
        # the hard limit is a second higher: a program can ignore the soft limit's SIGXCPU
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
        _, hard_limit = resource.getrlimit(name)
        if hard_limit != resource.RLIM_INFINITY:
            soft, hard = min(soft, hard_limit), min(hard, hard_limit)
        resource.setrlimit(name, (soft, hard))
    if settings.user is not None:
        os.setgroups([])
        os.setresgid(settings.user, settings.user, settings.user)
        os.setresuid(settings.user, settings.user, settings.user)
    child.ask_kernel("capset", (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)())
    # after the change of user, which would reset it
    child.ask_kernel("prctl", child.PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != zygote:
        raise ProcessLookupError("the zygote has ended")
    child.ask_kernel("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    seccomp.install(child.libc, os.getpid(), settings.processes > 1, settings.namespaces)


def become_program(settings: child.Settings, zygote: int, code: int, output: int, notes: int, report: int) -> NoReturn:
    """Run the cells in this process and exit, with status 0 if the last cell succeeded."""
    try:
        os.setsid()
        with os.fdopen(code) as file:
            cells = json.load(file)
        output, notes, report = (
            fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FIRST_INHERITED) for end in (output, notes, report)
        )
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
        _print_error(error)
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
    """Remount device nodes read-only, so that programs cannot change the host's nodes, such as their times.

    Programs can still write to the devices."""
    for node in os.scandir("/dev"):
        if not node.is_symlink():
            kept = os.statvfs(node.path).f_flag & (_NO_SUID | _NO_EXECUTION)
            child.ask_kernel("mount", None, node.path.encode(), None, _REMOUNT | _BIND | _READ_ONLY | kept, None)


def run_program(settings: child.Settings, ends: list[int], own_namespace: int, keeper: socket.socket) -> None:
    """Start a program and send its pidfd to the keeper. When the keeper asks, end all its processes and report
    `child.ENDED`.

    ends: descriptors of the program's code, output, notes and report.
    own_namespace: pidfd of the zygote, to return to its own PID namespace.
    """
    init, init_input = None, -1
    if settings.namespaces:
        child.ask_kernel("unshare", _NEW_PIDS)
        standard_in, init_input = os.pipe()
        init = os.posix_spawn(child.INIT, ["cat"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, standard_in, 0)])
        os.close(standard_in)
    # read it here: in the program, os.getppid() would give another process once the zygote has ended
    zygote = 0 if settings.namespaces else os.getpid()
    pid = os.fork()
    if not pid:
        become_program(settings, zygote, *ends)
    if settings.namespaces:
        child.ask_kernel("setns", own_namespace, _NEW_PIDS)
    for end in ends:
        os.close(end)
    handle = os.pidfd_open(pid)
    socket.send_fds(keeper, [b"r"], [handle])
    keeper.recv(1)
    # without a PID namespace there is only the program: it may not start processes
    os.kill(pid if init is None else init, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    if init is not None:
        os.waitpid(init, 0)
        os.close(init_input)
    os.close(handle)
    keeper.send(child.ENDED.pack(status, usage.ru_utime + usage.ru_stime))


def warm_up() -> None:
    """Make sympy load and cache now, once for all programs, what it otherwise loads on first use."""
    import sympy

    x = sympy.Symbol("x")
    sympy.solve(x**2 - 2, x)
    sympy.solveset(x**2 - 2, x)
    sympy.integrate(sympy.sin(x) ** 2, x)
    sympy.simplify((x**2 - 1) / (x - 1))
    sympy.lambdify(x, x)(1)


def serve(settings: child.Settings, keeper: socket.socket, keeper_pid: int) -> NoReturn:
    """Run a program for each order of the keeper, until the keeper ends."""
    child.ask_kernel("prctl", child.PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != keeper_pid:
        os._exit(1)
    if settings.namespaces:
        seal_devices()
    # move packages behind the standard library: PYTHONPATH, set for interpreters that programs start, puts them first
    sys.path[:] = [*(path for path in sys.path if path not in settings.site), *settings.site]
    for define in (site.setquit, site.setcopyright, site.sethelper):
        define()
    for name in LIBRARIES:
        importlib.import_module(name)
    warm_up()
    atexit._clear()
    own_namespace = os.pidfd_open(os.getpid())
    gc.collect()
    gc.freeze()
    with suppress(BrokenPipeError, ConnectionResetError):
        keeper.send(b"r")
        while True:
            order, ends, _, _ = socket.recv_fds(keeper, 1, 4, socket.MSG_CMSG_CLOEXEC)
            if not order:
                break
            run_program(settings, ends, own_namespace, keeper)
    os._exit(0)
