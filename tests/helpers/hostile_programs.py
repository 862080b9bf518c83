"""Programs that try to get out of the Python tool's sandbox, to break it, or to leave something behind.

test_hostile_programs.py runs each in a test of its own, and all of them as an ordinary user (hostile_run.py).
"""

import asyncio
import os
import platform
import secrets
import socket
import tempfile
import textwrap
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import psutil

from rtpo.tools.base import ToolResult
from rtpo.tools.python import python_seccomp
from rtpo.tools.python import tool as python
from rtpo.tools.python.tool import PythonSettings, PythonTool
from rtpo.types import ToolOutcome

OK, ERROR = ToolOutcome.OK, ToolOutcome.PROGRAM_ERROR
TIMEOUT, MEMORY = ToolOutcome.TIMEOUT, ToolOutcome.MEMORY
ONE = PythonSettings(cpu_seconds=1, wall_seconds=60, memory_bytes=256 << 20, output_characters=1000, workers=1)
MANY = replace(ONE, processes=4)
BRIEF = replace(ONE, wall_seconds=4)
SPARE = 2
"""seconds after its limit in which a call is over"""
"""for programs that wait: enough for a slow machine to run a plain one"""
PLAIN = """
import builtins, gc, math, os, random, sympy, sys, threading
print(sympy.sqrt(8), round(math.pi, 3), len(os.listdir()), threading.active_count(), min(os.getpid(), 9))
print(random.random(), hash("a"), hasattr(builtins, "left"), "left" in globals(), "left" in sys.modules, sys.argv)
def is_open(number):
    try: return bool(os.fstat(number))
    except OSError: return False
[number for number in range(256) if is_open(number)]
"""
"""what it prints, in a healthy pool that keeps nothing, is always the same"""


@dataclass(frozen=True)
class Hostile:
    """A program, what may become of it, and what must be in its output. It prints ESCAPED where it did what it must
    not."""

    program: str
    outcomes: tuple[ToolOutcome, ...]
    says: str = ""
    settings: PythonSettings = ONE


TRY = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, action, fails=(OSError, ValueError)):
    try:
        print("ESCAPED", name, action())
    except fails:
        pass
def call(name, *args):
    if getattr(libc, name)(*args) == -1:
        raise OSError(ctypes.get_errno(), name)
    return "done"
def by_number(name, *args):
    if name not in NUMBERS:
        raise OSError(name)
    return call("syscall", ctypes.c_long(NUMBERS[name]), *args)
"""


def trying(program: str) -> str:
    return TRY + textwrap.dedent(program) + "\nprint('tried')\n"


def tries(program: str, settings: PythonSettings = ONE) -> Hostile:
    """A program that goes on where it is refused."""
    return Hostile(trying(program), (OK,), "tried", settings)


DENIED_CALLS = """
def expect_denial(name, action):
    try:
        print("ESCAPED", name, action())
    except OSError as error:
        if error.errno not in (1, 38):
            print("ESCAPED", name, error.errno)
for name in {tables}:
    if name in NUMBERS:
        expect_denial(name, lambda: by_number(name, 1, 0, 0, 0, 0, 0))
for name in {libc}:
    expect_denial(name, lambda: call(name, 0, 0, 0, 0, 0, 0))
for flag in (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x00008000):
    expect_denial("clone", lambda: by_number("clone", flag | 17, 0, 0, 0, 0))
"""
"""by the tool's own numbers for them, and by libc's functions, which have theirs"""
LIBC = """
ptrace process_vm_readv process_vm_writev setpriority sched_setaffinity sched_setscheduler sched_setparam
unshare setns mount umount2 chroot memfd_create shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semctl
vmsplice splice tee inotify_init inotify_init1 sendmsg sendmmsg setsockopt bind socket
fanotify_init name_to_handle_at open_by_handle_at personality
"""
LIBC_CHANGES = """
truncate ftruncate fallocate mkdir mkdirat mknod mknodat link linkat symlink symlinkat rename renameat unlink unlinkat
rmdir chmod fchmod fchmodat chown lchown fchown fchownat futimens setxattr lsetxattr fsetxattr removexattr
lremovexattr fremovexattr
"""


TIMES_OF_DEVICES = """
for path in DEVICES:
    attempt(path, lambda: os.utime(path))
    attempt(path, lambda: os.utime(path, (1, 1)))
    attempt(path, lambda: os.utime(os.open(path, os.O_RDONLY)))
"""
LOCKS = """
import fcntl, sympy
for path in (sympy.__file__, "/usr/lib", "/dev/null"):
    file = os.open(path, os.O_RDONLY)
    attempt("flock", lambda: fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB))
    attempt("lockf", lambda: fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB))
    for command in (5, 6, 7, 36, 37, 38):
        attempt("fcntl", lambda: fcntl.fcntl(file, command, bytes(64)))
"""


def denied(tables: str, libc: str, settings: PythonSettings) -> Hostile:
    """Every system call of these tables of `World.names`, and these functions of libc."""
    return tries(DENIED_CALLS.format(tables=tables, libc=libc.split()), settings)


HOSTILE = {
    # processes
    "fork bomb": Hostile("import os\nwhile True: os.fork()", (ERROR,), "PermissionError"),
    "fork bomb where some processes are allowed": Hostile(
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", (TIMEOUT,), settings=MANY
    ),
    "processes are counted": Hostile(
        """
        import os, signal
        started = 0
        try:
            while True:
                if not os.fork():
                    signal.pause()
                started += 1
        except OSError:
            print("ESCAPED" if started > 3 else "held", started)
        """,
        (OK,),
        "held 3",
        MANY,
    ),
    "thread bomb": Hostile(
        """
        import threading, time
        threading.stack_size(1 << 16)
        try:
            while True:
                threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        except RuntimeError:
            print("ESCAPED" if threading.active_count() > 33 else "held", threading.active_count())
        """,
        (OK,),
        "held",
    ),
    "subprocess": Hostile("import subprocess\nsubprocess.run(['/bin/true'])", (ERROR,), "PermissionError"),
    "shell": Hostile("import os\nos.system('echo ESCAPED')", (OK,)),
    "orphan daemon": Hostile(
        """
        import os, time
        if not os.fork():
            os.setsid()
            if not os.fork():
                time.sleep(600)
            os._exit(0)
        print("left")
        """,
        (OK,),
        "left",
        MANY,
    ),
    "orphan that ignores signals and holds the output": Hostile(
        """
        import os, signal, time
        if not os.fork():
            for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN)
            os.setsid()
            while True:
                print("more", flush=True)
                time.sleep(0.01)
        print("left")
        """,
        (OK,),
        "left",
        MANY,
    ),
    "other program": Hostile(
        """
        import os, sys
        code = "import os, socket\\ntry: socket.socket()\\nexcept OSError: print('held', os.getuid() != 0)"
        os.execv(sys.executable, [sys.executable, "-c", code])
        """,
        (OK,),
        "held True",
    ),
    "a child of the zygote's": Hostile(
        """
        import ctypes, os
        if ctypes.CDLL(None).syscall(NUMBERS["clone"], 0x8000 | 17, 0, 0, 0, 0) == 0:
            os._exit(0)
        """,
        (OK,),
        settings=replace(BRIEF, processes=4),
    ),
    # memory
    "bytes": Hostile("len(bytearray(1 << 30))", (MEMORY,), "MemoryError"),
    "a list that grows": Hostile("rows = []\nwhile True: rows.append([0] * 100_000)", (MEMORY,), "MemoryError"),
    "an array": Hostile("import numpy\nnumpy.ones(1 << 28).sum()", (MEMORY,), "MemoryError"),
    "a string": Hostile("'a' * 10**12", (MEMORY,), "MemoryError"),
    "a dictionary": Hostile("{number: str(number) for number in range(10**9)}", (MEMORY, TIMEOUT)),
    "memory that is caught again and again": Hostile(
        """
        rows = []
        while True:
            try: rows.append(bytearray(1 << 22))
            except MemoryError: pass
        """,
        (TIMEOUT,),
    ),
    "shared mapping": Hostile("import mmap\nmmap.mmap(-1, 1 << 30)", (ERROR, MEMORY), "annot allocate memory"),
    "hog in a thread": Hostile(
        """
        import threading
        thread = threading.Thread(target=lambda: bytearray(1 << 30))
        thread.start()
        thread.join()
        """,
        (OK,),
        "MemoryError",
    ),
    "limits raised": tries(
        """
        import resource
        for name in ("CPU", "AS", "NPROC", "FSIZE", "NOFILE"):
            kind = getattr(resource, f"RLIMIT_{name}")
            most = resource.getrlimit(kind)[1]
            attempt(name, lambda: resource.setrlimit(kind, (most + 1, most + 1)))
        attempt("core", lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
        """
    ),
    # output
    "endless output": Hostile("while True: print('x' * 1000)", (TIMEOUT,), "x" * 500),
    "endless output on both streams": Hostile(
        "import os\nwhile True:\n  os.write(1, b'x' * 65536)\n  os.write(2, b'y' * 65536)", (TIMEOUT,)
    ),
    "one long line": Hostile("print('x' * 50_000_000)", (OK, MEMORY)),
    "binary output": Hostile("import os\nos.write(1, bytes(range(256)) * 100)", (OK,), "25600"),
    "output closed": Hostile("import sys\nsys.stdout.close()\nsys.stderr.close()\n1 / 0", (ERROR,), "ZeroDivision"),
    "output replaced": Hostile("import sys\nsys.stdout = sys.stderr = None\n1 / 0", (ERROR,), "ZeroDivision"),
    # the network
    "TCP to a service of the host": tries(
        """
        import socket
        attempt("tcp", lambda: socket.create_connection(("127.0.0.1", PORT), 1))
        attempt("localhost", lambda: socket.create_connection(("localhost", PORT), 1))
        attempt("outside", lambda: socket.create_connection(("1.1.1.1", 53), 1))
        """
    ),
    "UDP": tries(
        """
        import socket
        attempt("udp", lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"ESCAPED", ("127.0.0.1", PORT)))
        """
    ),
    "IPv6": tries("import socket\nattempt('v6', lambda: socket.create_connection(('::1', PORT), 1))"),
    "Unix socket of the host": tries(
        """
        import socket
        for address in (UNIX, b"\\0" + ABSTRACT.encode()):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                attempt("unix", lambda: socket.socket(socket.AF_UNIX, kind).connect(address))
        """
    ),
    "other families": tries(
        """
        import socket
        for family in (socket.AF_NETLINK, socket.AF_PACKET, socket.AF_VSOCK, socket.AF_CAN, socket.AF_ALG):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
                attempt("family", lambda: socket.socket(family, kind))
        attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
        """
    ),
    "names": tries("import socket\nattempt('dns', lambda: socket.getaddrinfo('example.org', 80))"),
    "HTTP": tries(
        """
        import urllib.request
        attempt("http", lambda: urllib.request.urlopen(f"http://127.0.0.1:{PORT}", timeout=1).read())
        """
    ),
    # reading
    "environment of others": Hostile(
        """
        import glob, os
        print(dict(os.environ))
        for path in ["/proc/1/environ", f"/proc/{HARNESS}/environ", *glob.glob("/proc/*/environ")]:
            try: print("ESCAPED", open(path).read())
            except OSError: pass
        """,
        (OK,),
        "HOME",
    ),
    "files of the system": tries(
        """
        for path in ("/etc/shadow", "/etc/passwd", "/etc/hosts", "/proc/1/maps", "/proc/self/mem", "/sys/kernel"):
            attempt(path, lambda: open(path, "rb").read())
        for path in ("/home", "/var", "/proc", "/sys", "/mnt", "/opt", "/run", "/srv", "/boot"):
            attempt(path, lambda: os.listdir(path))
        """
    ),
    "files of the user": tries(
        """
        for path in (SECRET, PROJECT + "/README.md", PROJECT + "/.git/config", HOME + "/.bashrc", HOME + "/.ssh"):
            attempt(path, lambda: open(path).read())
        """
    ),
    "way up": tries(
        """
        for path in ("/tmp/../.." + SECRET, "/proc/self/root" + SECRET, "/proc/self/cwd/../.." + SECRET):
            attempt(path, lambda: open(path).read())
        folder = os.open("/", os.O_RDONLY)
        attempt("from the root", lambda: os.open("../../.." + SECRET, os.O_RDONLY, dir_fd=folder))
        """
    ),
    "links": tries(
        """
        os.symlink(SECRET, "link")
        attempt("symlink", lambda: open("link").read())
        os.symlink(FOLDER, "folder")
        attempt("symlinked folder", lambda: open("folder/written", "w"))
        for path in (SECRET, "/sandbox/python_child.py", "/etc/ld.so.cache"):
            attempt("hard link", lambda: os.link(path, "hard"))
        """
    ),
    "memory of the zygote": Hostile(
        """
        import ctypes, gc, sys
        environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
        place = 0
        while environ[place]:
            print(environ[place])
            place += 1
        print(sys.orig_argv)
        seen = [str(thing)[:300] for thing in gc.get_objects() if isinstance(thing, (str, list, dict))][-200:]
        print([text for text in seen if "secret" in text.lower()][:3])
        """,
        (OK,),
        "HOME=",
    ),
    "descriptors": tries(
        """
        for number in range(4, 1024):
            attempt(number, lambda: os.fstat(number))
        attempt("notes", lambda: os.read(3, 1))
        """
    ),
    # results
    "a forged result": Hostile(
        """
        import json, os, struct
        reply = {"failure": "x", "begun": 9, "is_done": True, "status": 0, "cpu_seconds": 0, "output": "ESCAPED"}
        data = json.dumps(reply).encode() + b"\\n"
        for number in range(3, 256):
            for text in (data, struct.pack("!I", len(data)) + data):
                try: os.write(number, text)
                except OSError: pass
        print("forged")
        """,
        (OK, MEMORY),
        "forged",
    ),
    "forged notes": Hostile("import os\nfor _ in range(500): os.write(3, b'bdm' * 20_000)", (OK, TIMEOUT, MEMORY)),
    "everything closed": Hostile("import os\nos.closerange(0, 1024)\n1 / 0", (ERROR, OK)),
    "pipe taken over": Hostile("import os\nos.dup2(3, 1)\nos.dup2(3, 2)\nprint('b' * 1000)", (OK, MEMORY)),
    "exit with status 0": Hostile("import os\nprint('a', flush=True)\nos._exit(0)", (OK,), "a"),
    "hook at exit": Hostile("import atexit\natexit.register(print, 'late')", (OK,), "late"),
    "hook at exit that does not end": Hostile(
        "import atexit\n@atexit.register\ndef f():\n  while True: pass", (TIMEOUT,)
    ),
    "an error that does not say what": Hostile(
        """
        class E(BaseException):
            def __str__(self):
                raise self
        raise E
        """,
        (ERROR,),
        "E",
    ),
    "a long error": Hostile("raise ValueError('x' * 1_000_000)", (ERROR,), "ValueError: xxx"),
    # writing
    "writing outside": tries(
        """
        import glob, sys, sympy
        folders = ["/", "/dev", "/etc", "/usr/lib", "/sandbox", "/root", FOLDER, PROJECT, sys.prefix, *sys.path]
        for folder in [*folders, os.path.dirname(sympy.__file__), "/var/tmp", "/run", "/dev/shm/.."]:
            attempt(folder, lambda: open(os.path.join(folder, "written"), "w")) if folder != "/dev/shm/.." else None
            attempt(folder, lambda: os.mkdir(os.path.join(folder, "made"))) if folder != "/dev/shm/.." else None
        for path in (sympy.__file__, "/sandbox/python_child.py", "/sandbox/python_seccomp.py", os.__file__, SECRET):
            attempt("open", lambda: open(path, "a"))
            attempt("chmod", lambda: os.chmod(path, 0o777))
            attempt("unlink", lambda: os.unlink(path))
            attempt("rename", lambda: os.rename(path, path + "2"))
            attempt("truncate", lambda: os.truncate(path, 0))
        """
    ),
    "devices": tries(
        """
        import stat
        attempt("block", lambda: os.mknod("disk", stat.S_IFBLK | 0o666, os.makedev(8, 0)))
        attempt("memory", lambda: os.mknod("memory", stat.S_IFCHR | 0o666, os.makedev(1, 1)))
        for path in ("/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/tty", "/dev/ptmx", "/dev/fuse", "/dev/kvm"):
            attempt(path, lambda: os.open(path, os.O_RDONLY))
        """
    ),
    "times of devices": tries(TIMES_OF_DEVICES),
    "locks": tries(LOCKS),
    "other users": tries(
        """
        for name in ("setuid", "setgid", "seteuid", "setegid"):
            attempt(name, lambda: getattr(os, name)(0))
        attempt("setgroups", lambda: os.setgroups([0]))
        attempt("setresuid", lambda: os.setresuid(0, 0, 0))
        attempt("chown", lambda: [open("mine", "w").close(), os.chown("mine", 0, 0)])
        version, all_of_them = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[2**32 - 1] * 6)
        attempt("capset", lambda: call("capset", version, all_of_them))
        """
    ),
    "scratch folder filled": Hostile(
        """
        total = 0
        try:
            for number in range(1000):
                with open(f"file{number}", "wb", 0) as file:
                    while True:
                        total += file.write(bytes(1 << 20))
        except OSError:
            try:
                for number in range(1000):
                    with open(f"more{number}", "wb", 0) as file:
                        total += file.write(bytes(1 << 20))
            except OSError:
                pass
        print("ESCAPED" if total > 64 << 20 else "held", total >> 20)
        """,
        (OK,),
        "held 6",
    ),
    "shared memory filled": Hostile(
        """
        from multiprocessing.shared_memory import SharedMemory
        parts = []
        try:
            for number in range(100):
                parts.append(SharedMemory(f"left{number}", create=True, size=4 << 20))
                parts[-1].buf[:] = bytes(4 << 20)
        except BaseException as error:
            print(type(error).__name__)
        print("ESCAPED" if len(parts) > 16 else "held")
        """,
        (OK, ERROR, MEMORY),
    ),
    "files without end": Hostile(
        """
        made = 0
        try:
            while True:
                open(f"{made}", "w").close()
                made += 1
        except OSError:
            print("ESCAPED" if made > 1024 else "held", made)
        """,
        (OK,),
        "held",
    ),
    "descriptors without end": Hostile(
        """
        import os
        ends = []
        try:
            while True: ends += os.pipe()
        except OSError as error:
            print("ESCAPED" if len(ends) > 256 else "held", error)
        """,
        (OK,),
        "held",
    ),
    "folders in folders": Hostile(
        """
        import os
        try:
            for _ in range(5000):
                os.mkdir("a")
                os.chdir("a")
        except OSError as error:
            print("held", error)
        """,
        (OK,),
        "held",
    ),
    # signals and other processes
    "signals to all": tries("for n in (9, 15, 19): attempt('all', lambda: os.kill(-1, n))"),
    "signals to its parent": tries(
        """
        for pid in (1, os.getppid(), HARNESS, 0, -os.getpgid(0)):
            for number in range(1, 65):
                attempt("kill", lambda: os.kill(pid, number))
        """
    ),
    "signals where processes are allowed": Hostile(
        """
        import os
        for pid in (1, -1, *range(3, 5000), HARNESS):
            for number in (1, 2, 3, 9, 10, 15, 19, 24, 34):
                try: os.kill(pid, number)
                except OSError: pass
        print("alive")
        """,
        (OK, ERROR),
        settings=MANY,
    ),
    "limits of others": tries(
        """
        import resource
        for pid in (1, HARNESS):  # 0, its parent's number, is its own
            attempt("prlimit", lambda: resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0)))
            attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
            attempt("affinity", lambda: os.sched_setaffinity(pid, {0}))
        attempt("outliving", lambda: call("prctl", 1, 0, 0, 0, 0))
        """
    ),
    "every denied system call": denied("[*ALWAYS, *ALONE]", LIBC, ONE),
    "every denied system call where processes are allowed": denied("ALWAYS", LIBC, MANY),
    # time
    "sleeping": Hostile("import time\nprint('here', flush=True)\ntime.sleep(600)", (TIMEOUT,), "here", BRIEF),
    "busy": Hostile("while True: pass", (TIMEOUT,), "TimeoutError"),
    "busy with every signal ignored": Hostile(
        """
        import signal
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True: pass
        """,
        (TIMEOUT,),
    ),
    "stopped by itself": Hostile("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", (TIMEOUT,), settings=BRIEF),
    "a thread that goes on": Hostile(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\nprint('main')",
        (TIMEOUT,),
        "main",
        BRIEF,
    ),
    "a busy thread that is left": Hostile(
        """
        import threading
        def spin():
            while True: pass
        threading.Thread(target=spin, daemon=True).start()
        """,
        (OK,),
    ),
    "an alarm for later": Hostile(
        "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.3)\nprint('set')", (OK,), "set"
    ),
    "a huge integer": Hostile("x = 7 ** (10 ** 9)", (TIMEOUT, MEMORY)),
    "a regular expression that explodes": Hostile("import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')", (TIMEOUT,)),
    "input": Hostile("input()", (ERROR,), "EOFError"),
    # crashes
    "null pointer": Hostile("import ctypes\nctypes.string_at(0)", (ERROR,), "signal 11"),
    "abort": Hostile("import os\nos.abort()", (ERROR,), "signal 6"),
    "its own end": Hostile("import os\nos.kill(os.getpid(), 9)", (ERROR,), "signal 9"),
    "deep recursion": Hostile("def f(): f()\nf()", (ERROR,), "RecursionError"),
    "recursion without a limit": Hostile(
        """
        import sys
        sys.setrecursionlimit(10**9)
        class Deep:
            def __getattr__(self, name): return getattr(self, name + "x")
        Deep().a
        """,
        (ERROR, MEMORY, TIMEOUT),
    ),
    "nested source": Hostile("-" * 50_000 + "1", (ERROR, MEMORY)),
    "interpreter taken apart": Hostile(
        "import builtins, sys\nsys.modules.clear()\nfor name in list(vars(builtins)): delattr(builtins, name)",
        (ERROR, OK),
    ),
    # what is left for the next call
    "patches": Hostile(
        """
        import builtins, math, random, sympy, sys
        builtins.left = builtins.print = builtins.len = sympy.integrate = sympy.Symbol = 1
        math.pi = 3
        random.seed(1)
        sys.modules["left"] = sys
        left = 1
        """,
        (OK,),
    ),
    "files": Hostile("import os\nopen('left', 'w').write('x')\nopen('/dev/shm/left', 'w')\nos.mkdir('left2')", (OK,)),
}


def tables() -> dict[str, object]:
    """Of denied calls: their numbers here, and the names of those denied always, to a program that may not start
    others, and to one that may change no file."""
    _, column = python_seccomp.MACHINES[platform.machine()]
    alone = python_seccomp.FORKS | python_seccomp.SIGNALS
    alone |= {"clone": python_seccomp.CLONE, "clone3": python_seccomp.CLONE3}
    both = {"ALWAYS": python_seccomp.NUMBERS, "ALONE": alone, "CHANGES": python_seccomp.CHANGES}
    numbers = {name: columns[column] for table in both.values() for name, columns in table.items()}
    known = {name: number for name, number in numbers.items() if number is not None}
    return {"NUMBERS": known} | {name: list(table) for name, table in both.items()}


DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


class World:
    """What hostile programs are after: services, files, variables and processes of the host."""

    def __init__(self) -> None:
        self.secret = secrets.token_hex(16)

    def __enter__(self) -> "World":
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            self.folder = Path(folder)
            self.folder.chmod(0o777)
            (self.folder / "secret").write_text(self.secret)
            os.environ["RTPO_SECRET"] = self.secret
            stack.callback(os.environ.pop, "RTPO_SECRET")
            abstract = f"rtpo-{self.secret[:8]}"
            self.listeners = []
            tcp = socket.create_server(("127.0.0.1", 0))
            port = tcp.getsockname()[1]
            udp = socket.socket(type=socket.SOCK_DGRAM)
            udp.bind(("127.0.0.1", port))
            for address in (f"{folder}/socket", f"\0{abstract}"):
                unix = socket.socket(socket.AF_UNIX)
                unix.bind(address)
                unix.listen()
                self.listeners.append(unix)
            (self.folder / "socket").chmod(0o777)
            self.listeners += [tcp, udp]
            for listener in self.listeners:
                stack.callback(listener.close)
                listener.setblocking(False)
            self._names = {
                "PORT": port,
                "UNIX": f"{folder}/socket",
                "ABSTRACT": abstract,
                "SECRET": f"{folder}/secret",
                "FOLDER": folder,
                "PROJECT": str(Path(python.__file__).parents[2]),
                "HOME": os.path.expanduser("~"),
                "HARNESS": os.getpid(),
                "DEVICES": DEVICES,
            } | tables()
            self._state = self.state()
            self._plain: dict[PythonSettings, ToolResult] = {}
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, program: str, settings: PythonSettings) -> ToolResult:
        return asyncio.run(PythonTool(settings).call({"code": program}, []))

    def escapes(self, hostile: Hostile) -> list[str]:
        """Run it, and a plain program after it: what is not as it should be."""
        if hostile.settings not in self._plain:
            self._plain[hostile.settings] = self.run(PLAIN, hostile.settings)
        plain, processes = self._plain[hostile.settings], self._processes()
        begin = time.monotonic()
        result = self.run(self.text(hostile), hostile.settings)
        found = self.late(time.monotonic() - begin, hostile.settings)
        if result.outcome not in hostile.outcomes:
            found.append(f"outcome {result.outcome.value}")
        if hostile.says not in result.output:
            found.append(f"does not say {hostile.says!r}")
        if "ESCAPED" in result.output or self.secret in result.output:
            found.append("escaped")
        if len(result.output) > ONE.output_characters + 200:
            found.append(f"{len(result.output)} characters of output")
        found = [f"{clause}: {result.output}" for clause in found]
        if (after := self.run(PLAIN, hostile.settings)) != plain:
            found.append(f"the next call gives {after}, not {plain}")
        if (state := self.state()) != self._state:
            found.append(f"made of the host's files {state}")
        for listener in self.listeners:
            try:
                heard = listener.recv(1) if listener.type == socket.SOCK_DGRAM else listener.accept()
            except BlockingIOError:
                continue
            found.append(f"reached a service of the host: {heard}")
        if (now := self._processes()) != processes:
            found.append(f"processes {processes} are now {now}")
        return found

    def text(self, hostile: Hostile) -> str:
        names = "; ".join(f"{name} = {value!r}" for name, value in self._names.items())
        return f"{names}\n{textwrap.dedent(hostile.program)}"

    def late(self, seconds: float, settings: PythonSettings) -> list[str]:
        return [f"took {seconds:.1f} s"] if seconds > settings.wall_seconds + SPARE else []

    def lasting(self, hostiles: Mapping[str, Hostile], isolation: Literal["namespaces", "limits"]) -> dict[str, Any]:
        """Those that do not end in time in an isolation, whatever processes they may start; and what they change."""
        found: dict[str, Any] = {}

        async def run(name: str, hostile: Hostile, settings: PythonSettings, place: asyncio.Semaphore) -> None:
            async with place:
                begin = time.monotonic()
                await PythonTool(settings).call({"code": self.text(hostile)}, [])
                if late := self.late(time.monotonic() - begin, settings):
                    found[f"{name} of {settings.processes} processes"] = late

        async def run_all(settings: PythonSettings) -> None:
            waiting = {"code": "import time\ntime.sleep(0.5)"}  # until both interpreters have started
            await asyncio.gather(*[PythonTool(settings).call(waiting, []) for _ in range(2)])
            place = asyncio.Semaphore(2)
            await asyncio.gather(*[run(name, hostile, settings, place) for name, hostile in hostiles.items()])

        for processes in (1, 4) if isolation == "namespaces" else (1,):
            settings = replace(ONE, isolation=isolation, processes=processes, wall_seconds=2, workers=2)
            asyncio.run(run_all(settings))
            python.close_pools()
        if (state := self.state()) != self._state:
            found["files of the host"] = state
        return found

    def state(self) -> list[tuple[object, ...]]:
        """Any change of a file or folder changes its ctime too."""
        paths = [self.folder, *sorted(self.folder.iterdir()), *map(Path, DEVICES)]
        states = [path.stat() for path in paths]
        return [(path.name, state.st_ctime_ns, state.st_blocks) for path, state in zip(paths, states, strict=True)]

    def _processes(self) -> list[tuple[int, str]]:
        """This process's own: bubblewrap, a keeper and a zygote for each pool."""
        return sorted((process.pid, process.name()) for process in psutil.Process().children(recursive=True))
