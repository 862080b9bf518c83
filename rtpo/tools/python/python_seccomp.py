"""The Python tool's seccomp filter lists the system calls that a program may make. It is a barrier beside namespaces.

A call that is not listed fails with EPERM. The list leaves out calls that reach:

- memory that no limit counts: shared memory, message and event queues, memory files, Landlock rules, pages in pipes
- objects that outlive a process: keys, descriptors in flight between sockets, marks on files
- the host's disks (sync), sockets, other processes of the user
- kernel parts that programs have escaped through
- files and folders, to change them, if there are no namespaces

This file goes into the sandbox and uses only the standard library.
"""

import ctypes
import errno
import platform
import struct
from typing import NamedTuple

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_DENY = 0x00050000 | errno.EPERM
_UNKNOWN = 0x00050000 | errno.ENOSYS
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
"""offsets in struct seccomp_data"""
_FIRST_UNKNOWN = 449
"""calls from this number on, x32's included, fail with ENOSYS; programs then use older calls"""
_RLIMIT_CORE = 4
_CLONE_THREAD = 0x00010000
_CLONE_DENIED = 0x7E028080
"""all namespace flags, and CLONE_PARENT: the zygote would have to reap such a child before the PID namespace ends"""

Numbers = tuple[int | None, int | None]
"""a call's numbers on x86_64 and aarch64; None if a machine lacks the call"""
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""each machine's AUDIT_ARCH number, and its index in `Numbers`"""


def _table(text: str) -> dict[str, Numbers]:
    """Parse entries of a name and two numbers, `-` for None. Lines that begin with # are comments."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    entries = [entry.split() for line in lines for entry in line.split(";") if entry.strip()]
    numbers = {
        name: [None if number == "-" else int(number) for number in numbers_of_call]
        for name, *numbers_of_call in entries
    }
    return {name: (x86_64, aarch64) for name, (x86_64, aarch64) in numbers.items()}


ALLOWED = _table(
    """
    # files that are there, and descriptors
    read 0 63; write 1 64; close 3 57; stat 4 -; fstat 5 80; lstat 6 -; newfstatat 262 79; statx 332 291; lseek 8 62;
    pread64 17 67; pwrite64 18 68; readv 19 65; writev 20 66; preadv 295 69; pwritev 296 70; preadv2 327 286;
    pwritev2 328 287; access 21 -; faccessat 269 48; faccessat2 439 439; dup 32 23; dup2 33 -; dup3 292 24;
    close_range 436 436; sendfile 40 71; copy_file_range 326 285; readahead 187 213; fadvise64 221 223;
    getdents 78 -; getdents64 217 61; getcwd 79 17; chdir 80 49; fchdir 81 50; readlink 89 -; readlinkat 267 78;
    umask 95 166; statfs 137 43; fstatfs 138 44; getxattr 191 8; lgetxattr 192 9; fgetxattr 193 10; listxattr 194 11;
    llistxattr 195 12; flistxattr 196 13
    # pipes, pairs of sockets, and waiting
    pipe 22 -; pipe2 293 59; sendto 44 206; recvfrom 45 207; recvmsg 47 212; shutdown 48 210; getsockname 51 204;
    getpeername 52 205; getsockopt 55 209; poll 7 -; ppoll 271 73; select 23 -; pselect6 270 72; epoll_create 213 -;
    epoll_create1 291 20; epoll_ctl 233 21; epoll_wait 232 -; epoll_pwait 281 22; epoll_pwait2 441 441; eventfd 284 -;
    eventfd2 290 19; signalfd 282 -; signalfd4 289 74; timerfd_create 283 85; timerfd_settime 286 86;
    timerfd_gettime 287 87
    # memory
    mmap 9 222; munmap 11 215; mremap 25 216; mprotect 10 226; brk 12 214; msync 26 227; mincore 27 232;
    madvise 28 233; mlock 149 228; munlock 150 229; mlock2 325 284; mlockall 151 230; munlockall 152 231;
    mbind 237 235; get_mempolicy 239 236; set_mempolicy 238 237; pkey_mprotect 329 288; pkey_alloc 330 289;
    pkey_free 331 290; membarrier 324 283
    # its own signals and times
    rt_sigaction 13 134; rt_sigprocmask 14 135; rt_sigreturn 15 139; rt_sigpending 127 136; rt_sigtimedwait 128 137;
    rt_sigsuspend 130 133; sigaltstack 131 132; pause 34 -; alarm 37 -; getitimer 36 102; setitimer 38 103;
    nanosleep 35 101; clock_nanosleep 230 115; clock_gettime 228 113; clock_getres 229 114; gettimeofday 96 169;
    time 201 -; times 100 153; restart_syscall 219 128
    # itself, its threads and its children
    execve 59 221; execveat 322 281; exit 60 93; exit_group 231 94; wait4 61 260; waitid 247 95; getpid 39 172;
    gettid 186 178; getppid 110 173; getpgrp 111 -; getpgid 121 155; setpgid 109 154; getsid 124 156; setsid 112 157;
    getuid 102 174; geteuid 107 175; getgid 104 176; getegid 108 177; getresuid 118 148; getresgid 120 150;
    getgroups 115 158; capget 125 90; getrlimit 97 163; getrusage 98 165; getpriority 140 141; ioprio_get 252 31;
    sched_yield 24 124; sched_getaffinity 204 123; sched_getattr 315 275; sched_getparam 143 121;
    sched_getscheduler 145 120; sched_get_priority_max 146 125; sched_get_priority_min 147 126;
    sched_rr_get_interval 148 127; getcpu 309 168; arch_prctl 158 -; set_tid_address 218 96;
    set_robust_list 273 99; get_robust_list 274 100; rseq 334 293
    # the machine
    uname 63 160; sysinfo 99 179; getrandom 318 278
    """
)
"""calls allowed with any arguments"""

CHANGES = _table(
    """
    fsync 74 82; fdatasync 75 83; creat 85 -; truncate 76 45; ftruncate 77 46;
    fallocate 285 47; mkdir 83 -; mkdirat 258 34; mknod 133 -;
    mknodat 259 33; link 86 -; linkat 265 37; symlink 88 -; symlinkat 266 36; rename 82 -; renameat 264 38;
    renameat2 316 276; unlink 87 -; unlinkat 263 35; rmdir 84 -; chmod 90 -; fchmod 91 52; fchmodat 268 53;
    chown 92 -; lchown 94 -; fchown 93 55; fchownat 260 54; utime 132 -; utimes 235 -; futimesat 261 -;
    utimensat 280 88; setxattr 188 5; lsetxattr 189 6; fsetxattr 190 7; removexattr 197 14; lremovexattr 198 15;
    fremovexattr 199 16
    """
)
"""calls that change files and folders: allowed only in namespaces, since otherwise they would change the host's"""
OPENS: dict[str, tuple[Numbers, int]] = {"open": ((2, None), 1), "openat": ((257, 56), 2)}
"""each call's numbers and the index of its flags; without namespaces it may only read existing files"""
_CHANGING = 0x3 | 0x40 | 0x200 | 0x400000
"""O_ACCMODE, O_CREAT, O_TRUNC, and the bit that O_TMPFILE adds to O_DIRECTORY"""
OPENAT2 = (437, 437)
FORKS: dict[str, Numbers] = {"fork": (57, None), "vfork": (58, None)}
"""allowed if a program may start processes"""
CLONE, CLONE3 = (56, 220), (435, 435)
SIGNALS = {"kill": (62, 129), "tgkill": (234, 131)}
"""a program that may not start processes may signal only itself, and never by SIGKILL. So a SIGKILL came from
outside"""
_SIGKILL = 9
FUTEX = (202, 98)
_FUTEX_PRIVATE = 0x80
_FUTEX_WAITS = (0, 9, 0x100, 0x109)
"""FUTEX_WAIT and FUTEX_WAIT_BITSET, by either clock. Calls that wake waiters return how many there were: on a page of a
shared file, one program could tell another something. Only programs that may start processes get these calls."""


class _ArgumentRule(NamedTuple):
    numbers: Numbers
    argument: int  # its index
    values: tuple[int, ...]
    listed: int  # the filter's result for these values
    other: int  # the result for any other value


_BY_ARGUMENT = (
    # prctl without PR_SET_PDEATHSIG: a program must end with its parent
    _ArgumentRule((157, 167), 0, (1,), _DENY, _ALLOW),
    # setrlimit without RLIMIT_CORE: it must stay 1, which, unlike 0, keeps the host's core dump handler from running
    _ArgumentRule((160, 164), 0, (_RLIMIT_CORE,), _DENY, _ALLOW),
    # fcntl with F_DUPFD to F_SETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ: no locks, no signals that the kernel sends to other
    # processes, no larger pipes, leases, or hints that stay with a file
    _ArgumentRule((72, 25), 1, (*range(5), 1030, 1032), _ALLOW, _DENY),
    # ioctl with TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, TCGETS2
    _ArgumentRule((16, 29), 1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C542A), _ALLOW, _DENY),
)
_SOCKETPAIR, _AF_UNIX = (53, 199), 1
_STREAMS = (0x00001, 0x00801, 0x80001, 0x80801)
"""SOCK_STREAM with and without its flags; no datagram sockets, which could send to other addresses"""
_PRLIMIT = (302, 261)

Step = tuple[int, int, int, int]  # a BPF instruction: code, steps to skip if true, steps to skip if false, operand


def _load(offset: int) -> Step:
    return (_LOAD, 0, 0, offset)


def _return(result: int) -> Step:
    return (_RETURN, 0, 0, result)


def _on(number: int | None, body: list[Step]) -> list[Step]:
    """Steps that run `body` for this call number. `body` must return."""
    return [] if number is None else [(_EQUAL, 0, len(body), number), *body]


def _by_argument(index: int, values: tuple[int, ...], listed: int, other: int) -> list[Step]:
    """Return `listed` if an argument is one of `values`, else `other`. Only its low half counts, as in the kernel."""
    steps = [_load(_ARGUMENTS + 8 * index)]
    for value in values:
        steps += [(_EQUAL, 0, 1, value), _return(listed)]
    return [*steps, _return(other)]


def steps(machine: str, pid: int, may_fork: bool, may_change: bool) -> list[Step]:
    """The filter for process `pid`. Without `may_fork` it may signal only itself. may_change: files and folders.

    Raises KeyError for an unsupported machine.
    """
    name, column = MACHINES[machine]
    program = [
        _load(_MACHINE),
        (_EQUAL, 1, 0, name),
        _return(_KILL),
        _load(_NUMBER),
        (_AT_LEAST, 0, 1, _FIRST_UNKNOWN),
        _return(_UNKNOWN),
    ]
    for numbers in (ALLOWED | CHANGES if may_change else ALLOWED).values():
        program += _on(numbers[column], [_return(_ALLOW)])
    # openat2 and clone3 pass their flags by pointer, which a filter cannot read: libc falls back to older calls
    program += _on(OPENAT2[column], [_return(_ALLOW if may_change else _UNKNOWN)])
    program += _on(CLONE3[column], [_return(_UNKNOWN)])
    for numbers, index in OPENS.values():
        flags = [] if may_change else [_load(_ARGUMENTS + 8 * index), (_ANY_BIT, 0, 1, _CHANGING), _return(_DENY)]
        program += _on(numbers[column], [*flags, _return(_ALLOW)])
    for numbers, index, values, listed, other in _BY_ARGUMENT:
        program += _on(numbers[column], _by_argument(index, values, listed, other))
    pair = [_load(_ARGUMENTS), (_EQUAL, 1, 0, _AF_UNIX), _return(_DENY)]
    program += _on(_SOCKETPAIR[column], [*pair, *_by_argument(1, _STREAMS, _ALLOW, _DENY)])
    core = [_load(_ARGUMENTS + 8), (_EQUAL, 0, 1, _RLIMIT_CORE), _return(_DENY)]
    program += _on(_PRLIMIT[column], [*core, *_by_argument(0, (0, pid), _ALLOW, _DENY)])
    return [*program, *_of_processes(column, pid, may_fork), _return(_DENY)]


def _of_processes(column: int, pid: int, may_fork: bool) -> list[Step]:
    """Rules for starting, waking and signalling processes and threads."""
    clone = [_load(_ARGUMENTS), (_ANY_BIT, 0, 1, _CLONE_DENIED), _return(_DENY)]
    if may_fork:
        always = (*FORKS.values(), *SIGNALS.values(), FUTEX)
        allowed = [step for numbers in always for step in _on(numbers[column], [_return(_ALLOW)])]
        return [*_on(CLONE[column], [*clone, _return(_ALLOW)]), *allowed]
    thread = [(_ANY_BIT, 0, 1, _CLONE_THREAD), _return(_ALLOW), _return(_DENY)]
    program = _on(CLONE[column], [*clone, *thread])
    for (_, numbers), place in zip(SIGNALS.items(), (1, 2), strict=True):
        kill = [_load(_ARGUMENTS + 8 * place), (_EQUAL, 0, 1, _SIGKILL), _return(_DENY)]
        program += _on(numbers[column], [*kill, *_by_argument(0, (pid,), _ALLOW, _DENY)])
    private = [_load(_ARGUMENTS + 8), (_ANY_BIT, 0, 1, _FUTEX_PRIVATE), _return(_ALLOW)]
    return program + _on(FUTEX[column], [*private, *_by_argument(1, _FUTEX_WAITS, _ALLOW, _DENY)])


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def install(libc: ctypes.CDLL, pid: int, may_fork: bool, may_change: bool) -> None:
    """Install the filter on this process and all its children, irrevocably. Raises OSError if the kernel refuses."""
    code = b"".join(struct.pack("HBBI", *step) for step in steps(platform.machine(), pid, may_fork, may_change))
    set_seccomp, by_filter = 22, 2
    if libc.prctl(set_seccomp, by_filter, ctypes.byref(_Filter(len(code) // 8, code)), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")
