"""Programs after what no limit counts and no exit ends: kernel objects that outlive a process, memory that is nobody's,
files without bytes. `LEFTOVERS` run in namespaces; `MESSAGES` are to reach a later call, or somebody of the host, where
there are limits alone."""

from dataclasses import replace

from hostile_programs import (
    BRIEF,
    ERROR,
    LIBC,
    LIBC_CHANGES,
    LOCKS,
    MEMORY,
    OK,
    ONE,
    TIMEOUT,
    TIMES_OF_DEVICES,
    Hostile,
    denied,
    tries,
)

WEAK = replace(ONE, isolation="limits")
IN_FLIGHT = """
import socket, array
a, b = socket.socketpair()
for s in (a, b):
    ends = array.array("i", [1, a.fileno(), b.fileno()])
    s.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, ends)])
print("ESCAPED")
"""
LASTING_MARKS = """
import fcntl, sympy
files = [os.open(path, os.O_RDONLY) for path in (sympy.__file__, "/", "/usr/lib", *PATHS) if os.path.exists(path)]
for file in files:
    for command in (1024, 1026, 1036, 1038, 1033, 8, 10, 15):
        attempt("fcntl", lambda: fcntl.fcntl(file, command, ctypes.create_string_buffer(b"\\2", 8).raw))
    for request in (0x40086602, 0x401C5820, 0x40087602, 0x40806685, 0x800C6613, 0xC0045877, 0x8901, 0x40049409):
        attempt("ioctl", lambda: fcntl.ioctl(file, request, bytes(8)))
"""
WITHOUT_A_NAME = """
file = os.open("/", os.O_RDONLY)
for number in (*range(449, 480), *range(512, 548), 0x40000000 + 1, 0x40000000 + 257):
    attempt(number, lambda: call("syscall", ctypes.c_long(number), file, b"", 0, 0, 0, 0))
"""


def held(program: str, says: str = "held") -> Hostile:
    """A program that takes until it is refused, and looks at what it got."""
    return Hostile(f"import os\n{program}", (OK,), says)


LEFTOVERS = {
    # kernel objects that outlive a process
    "descriptors in flight": Hostile(IN_FLIGHT, (ERROR,), "PermissionError"),
    "marks that stay on files": tries(f"PATHS = []\n{LASTING_MARKS}"),
    "system calls without a name here": tries(WITHOUT_A_NAME),
    "a semaphore with a name": Hostile(
        "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.sem_open(b'/left', 0o100, 0o666, 1)\nprint('made')",
        (OK, ERROR),
    ),
    "timers without end": held(
        """
import ctypes
libc, timers = ctypes.CDLL(None), 0
while timers < 1000 and libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0:
    timers += 1
print("ESCAPED" if timers > 64 else "held", timers)
"""
    ),
    "signals that wait": held(
        """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
for number in range(34, 65):
    for _ in range(1000): os.kill(os.getpid(), number)
print("held")
"""
    ),
    "a session and a group": held(
        """
for action in (os.setsid, lambda: os.setpgid(0, 0), lambda: os.nice(5), lambda: os.umask(0)):
    try: action()
    except OSError: pass
print("held")
"""
    ),
    "a filter that asks nobody": Hostile(
        """
        import ctypes, struct
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(38, 1, 0, 0, 0)
        code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FC00000))
        program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 1, ctypes.addressof(code)))
        libc.syscall(317, 1, 8, program)
        """,
        (TIMEOUT, OK, ERROR),
        settings=BRIEF,
    ),
    "epolls in a ring": held(
        """
import select, socket
polls = [select.epoll() for _ in range(100)]
pairs = socket.socketpair()
for place, poll in enumerate(polls):
    for other in (polls[place - 1], *pairs):
        try: poll.register(other)
        except OSError: pass
print("held")
"""
    ),
    # memory that is nobody's
    "sockets filled": held(
        """
import socket
kept, total = [], 0
try:
    while True:
        for end in socket.socketpair():
            kept.append(end)
            end.setblocking(False)
            try:
                while True: total += end.send(bytes(1 << 16))
            except BlockingIOError: pass
except OSError:
    print("ESCAPED" if total > 64 << 20 else "held", len(kept))
"""
    ),
    "pipes filled": held(
        """
total, kept = 0, []
try:
    while True:
        kept += os.pipe()
        os.set_blocking(kept[-1], False)
        try:
            while True: total += os.write(kept[-1], bytes(1 << 16))
        except BlockingIOError: pass
except OSError:
    print("ESCAPED" if total > 16 << 20 else "held", len(kept))
"""
    ),
    "memory that is locked": tries(
        """
        import mmap
        libc.mmap.restype = ctypes.c_void_p
        page = ctypes.create_string_buffer(1 << 16)
        attempt("mlock", lambda: call("mlock", page, 1 << 16))
        attempt("mlock2", lambda: call("mlock2", page, 1 << 16, 1))
        attempt("mlockall", lambda: call("mlockall", 3))
        attempt("locked", lambda: mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x2000))
        attempt("huge", lambda: mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000))
        """
    ),
    "address space without memory": Hostile(
        "import mmap\nmmap.mmap(-1, 1 << 36, 0x4022, 0)", (ERROR, MEMORY), "annot allocate memory"
    ),
    "zeros that are shared": Hostile(
        "import mmap, os\nmmap.mmap(os.open('/dev/zero', os.O_RDWR), 1 << 30)", (ERROR, MEMORY), "annot allocate memory"
    ),
    "mappings without end": Hostile(
        """
        import mmap
        kept = []
        try:
            while True: kept.append(mmap.mmap(-1, 4096, prot=len(kept) % 2 + 1))
        except (OSError, MemoryError):
            kept.clear()
            print("held")
        """,
        (OK, TIMEOUT, MEMORY),
    ),
    "files deleted and held": held(
        """
kept, total = [], 0
try:
    while True:
        kept.append(open("left", "wb", 0))
        os.unlink("left")
        total += kept[-1].write(bytes(1 << 20))
except OSError:
    print("ESCAPED" if total > 64 << 20 else "held", total >> 20)
""",
        "held 6",
    ),
    "files deleted and mapped": Hostile(
        """
        import mmap, os
        kept, total = [], 0
        try:
            while True:
                with open("left", "w+b", 0) as file:
                    os.unlink("left")
                    file.truncate(1 << 20)
                    kept.append(mmap.mmap(file.fileno(), 1 << 20))
                kept[-1][:] = bytes(1 << 20)
                total += 1
        finally:
            print("ESCAPED" if total > 64 else "held", total)
        """,
        (OK, ERROR, MEMORY),
    ),
    # files without bytes
    "bytes beyond the end": tries(
        """
        file = os.open("left", os.O_RDWR | os.O_CREAT)
        for mode in (0, 1, 0x10):
            attempt("fallocate", lambda: call("fallocate", file, mode, ctypes.c_long(0), ctypes.c_long(1 << 30)))
        attempt("posix_fallocate", lambda: os.posix_fallocate(file, 0, 1 << 30))
        attempt("hole", lambda: os.ftruncate(file, 1 << 40))
        """
    ),
    "room kept in many files": held(
        """
import ctypes
libc, total = ctypes.CDLL(None), 0
for number in range(200):
    file = os.open(f"left{number}", os.O_RDWR | os.O_CREAT)
    libc.fallocate(file, 1, ctypes.c_long(0), ctypes.c_long(1 << 20))
    total += os.fstat(file).st_blocks * 512
    os.close(file)
print("ESCAPED" if total > 64 << 20 else "held", total >> 20)
""",
        "held 6",
    ),
    "files that are holes": held(
        """
for number in range(100):
    with open(f"left{number}", "wb") as file: file.truncate(64 << 20)
print("ESCAPED" if sum(os.stat(name).st_blocks for name in os.listdir()) > 100 else "held")
"""
    ),
    "links without end": held(
        """
made = 0
try:
    while True:
        os.symlink("x" * 4000, f"{'long' * 50}{made}")
        made += 1
except OSError:
    pass
print("ESCAPED" if made > 1024 else "held", made)
"""
    ),
    "names of one file": held(
        """
made = 0
open("left", "w").close()
try:
    while True:
        os.link("left", f"left{made}")
        made += 1
except OSError:
    pass
print("ESCAPED" if made > 1024 else "held", made)
"""
    ),
    "attributes without end": held(
        """
total = 0
try:
    for number in range(100_000):
        os.setxattr(".", f"user.left{number}", bytes(1 << 15))
        total += 1 << 15
except OSError:
    pass
print("ESCAPED" if total > 64 << 20 else "held", total >> 20)
"""
    ),
    "queues and devices in the scratch folder": tries(
        """
        import stat
        os.mkfifo("left")
        attempt("null", lambda: os.mknod("null", stat.S_IFCHR | 0o666, os.makedev(1, 3)))
        attempt("socket", lambda: __import__("socket").socket(1).bind("socket"))
        """
    ),
}


def message(program: str) -> Hostile:
    return tries(program, WEAK)


MESSAGES = {
    "every denied system call": denied("[*ALWAYS, *ALONE, *CHANGES]", LIBC + LIBC_CHANGES, WEAK),
    "a shared mapping": message(
        """
        import mmap
        file = os.open(SECRET, os.O_RDONLY)
        attempt("mapped", lambda: mmap.mmap(file, 0))
        libc.mmap.restype = ctypes.c_void_p
        view = libc.mmap(None, 4096, 1, 1, file, ctypes.c_long(0))
        attempt("protected", lambda: call("mprotect", ctypes.c_void_p(view), 4096, 3))
        """
    ),
    "times of devices": message(TIMES_OF_DEVICES),
    "locks": message(LOCKS),
    "an empty file": message(
        """
        import stat, tempfile
        path = FOLDER + "/left"
        for flags in (os.O_WRONLY | os.O_CREAT, os.O_RDONLY | os.O_CREAT, os.O_RDWR | os.O_CREAT | os.O_EXCL):
            attempt("open", lambda: os.open(path, flags))
        attempt("unnamed", lambda: os.open(FOLDER, os.O_TMPFILE | os.O_RDWR))
        attempt("creat", lambda: call("creat", path.encode(), 0o666))
        for kind in (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK):
            attempt("mknod", lambda: os.mknod(path, kind | 0o666))
        attempt("temporary", lambda: tempfile.mkstemp())
        """
    ),
    "other processes by their files": message(
        """
        for name in ("mem", "comm", "oom_score_adj", "coredump_filter", "clear_refs", "timerslack_ns"):
            for pid in (HARNESS, os.getppid(), "self"):
                attempt(name, lambda: os.open(f"/proc/{pid}/{name}", os.O_WRONLY))
        for name in ("mem", "environ", "maps"):
            attempt(name, lambda: os.read(os.open(f"/proc/{os.getppid()}/{name}", os.O_RDONLY), 1))
        """
    ),
    "its own streams again": message(
        "for path in ('/proc/self/fd/1', '/dev/stdout', '/dev/null'): attempt(path, lambda: os.open(path, os.O_RDWR))"
    ),
}
"""of programs whose user owns SECRET and FOLDER, or may write there"""
