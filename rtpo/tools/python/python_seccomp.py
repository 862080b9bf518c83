"""The system calls that a program of the Python tool may not make: a seccomp filter, put on beside the namespaces.

What it denies fails with EPERM, so that a program is told. It closes what namespaces and resource limits leave open:
memory that no limit counts (shared memory, message queues, memory files, buffers of sockets and pipes, pages left in a
pipe, events that nobody reads), what outlives a process (keys, descriptors in flight between sockets, marks on files),
what others see meanwhile (locks on files), sockets, other processes of the user, and the parts of the kernel that
programs have been let out by. Without namespaces also all that could change a file or a folder. Standard library only:
this file goes into the sandbox.
"""

import ctypes
import errno
import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_DENY = 0x00050000 | errno.EPERM
_UNKNOWN = 0x00050000 | errno.ENOSYS
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
"""offsets in struct seccomp_data"""
_UNNAMED = 449
"""from this number on calls are not listed here, and are unknown to a program; those of x32 are among them"""
_RLIMIT_CORE = 4
_CLONE_THREAD = 0x00010000
_CLONE_DENIED = 0x7E028080
"""every namespace flag of clone, and CLONE_PARENT: a namespace does not end before its zygote reaped such a child"""

Numbers = tuple[int | None, int | None]
"""of a call on x86_64 and on aarch64; None where it has none"""
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""the kernel's name for each, and its column below"""


def _table(text: str) -> dict[str, Numbers]:
    """Entries of a name and its two numbers, `-` for None; a line that begins with # is a comment."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    entries = [entry.split() for line in lines for entry in line.split(";") if entry.strip()]
    numbers = {name: [None if number == "-" else int(number) for number in both] for name, *both in entries}
    return {name: (x86_64, aarch64) for name, (x86_64, aarch64) in numbers.items()}


NUMBERS = _table(
    """
    # other processes
    ptrace 101 117; process_vm_readv 310 270; process_vm_writev 311 271; process_madvise 440 440;
    process_mrelease 448 448; pidfd_open 434 434; pidfd_getfd 438 438; pidfd_send_signal 424 424; kcmp 312 272;
    setpriority 141 140; ioprio_set 251 30; sched_setaffinity 203 122; sched_setattr 314 274;
    sched_setscheduler 144 119; sched_setparam 142 118; migrate_pages 256 238; move_pages 279 239;
    tkill 200 130; rt_sigqueueinfo 129 138; rt_tgsigqueueinfo 297 240
    # namespaces and mounts
    unshare 272 97; setns 308 268; mount 165 40; umount2 166 39; pivot_root 155 41; chroot 161 51;
    open_tree 428 428; move_mount 429 429; fsopen 430 430; fsconfig 431 431; fsmount 432 432; fspick 433 433;
    mount_setattr 442 442
    # memory that no limit counts, and what outlives a process
    memfd_create 319 279; memfd_secret 447 447; shmget 29 194; shmat 30 196; shmctl 31 195; msgget 68 186;
    msgsnd 69 189; msgrcv 70 188; msgctl 71 187; semget 64 190; semop 65 193; semctl 66 191; semtimedop 220 192;
    mq_open 240 180; mq_unlink 241 181; vmsplice 278 75; splice 275 76; tee 276 77; inotify_init 253 -;
    inotify_init1 294 26
    # a descriptor that is sent lives on in the socket; a socket's buffers can be made larger
    sendmsg 46 211; sendmmsg 307 269; setsockopt 54 208
    # a pair's end that is given a name leaves a file
    bind 49 200; keyctl 250 219; add_key 248 217; request_key 249 218
    # the network
    socket 41 198
    # parts of the kernel
    bpf 321 280; perf_event_open 298 241; userfaultfd 323 282; io_setup 206 0; io_uring_setup 425 425;
    io_uring_enter 426 426; io_uring_register 427 427; init_module 175 105; finit_module 313 273;
    delete_module 176 106; kexec_load 246 104; kexec_file_load 320 294; reboot 169 142; swapon 167 224;
    swapoff 168 225; sethostname 170 161; setdomainname 171 162; acct 163 89; quotactl 179 60;
    quotactl_fd 443 443; settimeofday 164 170; clock_settime 227 112; adjtimex 159 171; clock_adjtime 305 266;
    iopl 172 -; ioperm 173 -; modify_ldt 154 -; syslog 103 116; name_to_handle_at 303 264;
    open_by_handle_at 304 265; personality 135 92; fanotify_init 300 262; fanotify_mark 301 263; flock 73 32;
    vhangup 153 58; lookup_dcookie 212 18; nfsservctl 180 42
    """
)
"""denied in whole"""

CHANGES = _table(
    """
    creat 85 -; truncate 76 45; ftruncate 77 46; fallocate 285 47; mkdir 83 -; mkdirat 258 34; mknod 133 -;
    mknodat 259 33; link 86 -; linkat 265 37; symlink 88 -; symlinkat 266 36; rename 82 -; renameat 264 38;
    renameat2 316 276; unlink 87 -; unlinkat 263 35; rmdir 84 -; chmod 90 -; fchmod 91 52; fchmodat 268 53;
    chown 92 -; lchown 94 -; fchown 93 55; fchownat 260 54; utime 132 -; utimes 235 -; futimesat 261 -;
    utimensat 280 88; setxattr 188 5; lsetxattr 189 6; fsetxattr 190 7; removexattr 197 14; lremovexattr 198 15;
    fremovexattr 199 16
    """
)
"""of files and folders: denied where there are no namespaces, and what is changed would be the host's"""
OPENS: dict[str, tuple[Numbers, int]] = {"open": ((2, None), 1), "openat": ((257, 56), 2)}
"""denied there, with the place of their flags, but for reading what is there"""
_CHANGING = 0x3 | 0x40 | 0x200 | 0x400000
"""O_ACCMODE, O_CREAT, O_TRUNC and what makes O_TMPFILE of O_DIRECTORY"""
OPENAT2 = (437, 437)
FORKS: dict[str, Numbers] = {"fork": (57, None), "vfork": (58, None)}
"""denied to a program that may not start others"""
CLONE, CLONE3 = (56, 220), (435, 435)
SIGNALS = {"kill": (62, 129), "tgkill": (234, 131)}
"""allowed to a program that may not start others with its own number alone"""
_BY_ARGUMENT: tuple[tuple[Numbers, int, tuple[int, ...], int, int], ...] = (
    # prctl, but for PR_SET_PDEATHSIG: a program ends with what started it
    ((157, 167), 0, (1,), _DENY, _ALLOW),
    # setrlimit, but for RLIMIT_CORE: at 1, and not at 0, the host's handler of core dumps is not run on a program that
    # crashes
    ((160, 164), 0, (_RLIMIT_CORE,), _DENY, _ALLOW),
    # fcntl with F_DUPFD to F_SETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ: no locks, signals to others by the kernel's hand,
    # larger pipes, leases, or hints that stay with a file
    ((72, 25), 1, (*range(5), 1030, 1032), _ALLOW, _DENY),
    # ioctl with TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, TCGETS2
    ((16, 29), 1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C542A), _ALLOW, _DENY),
)
"""a call's numbers, the place of an argument, values of it, what becomes of a call with one of them and with another"""
_SOCKETPAIR, _AF_UNIX = (53, 199), 1
_STREAMS = (0x00001, 0x00801, 0x80001, 0x80801)
"""SOCK_STREAM with and without its flags: a pair of datagram sockets can be turned to other addresses"""
_PRLIMIT = (302, 261)

Step = tuple[int, int, int, int]


def _load(offset: int) -> Step:
    return (_LOAD, 0, 0, offset)


def _return(what: int) -> Step:
    return (_RETURN, 0, 0, what)


def _on(number: int | None, body: list[Step]) -> list[Step]:
    """`body`, which returns, for a call of this number."""
    return [] if number is None else [(_EQUAL, 0, len(body), number), *body]


def _by_argument(index: int, values: tuple[int, ...], listed: int, other: int) -> list[Step]:
    """Return `listed` where the low half of an argument is one of `values`: the kernel reads no more of these."""
    steps = [_load(_ARGUMENTS + 8 * index)]
    for value in values:
        steps += [(_EQUAL, 0, 1, value), _return(listed)]
    return [*steps, _return(other)]


def steps(machine: str, pid: int, may_fork: bool, may_change: bool) -> list[Step]:
    """The filter for process `pid`, which may signal itself alone unless it may start others, and change files and
    folders where it may.

    Raises KeyError for a machine without numbers here.
    """
    name, column = MACHINES[machine]
    program = [
        _load(_MACHINE),
        (_EQUAL, 1, 0, name),
        _return(_KILL),
        _load(_NUMBER),
        (_AT_LEAST, 0, 1, _UNNAMED),
        _return(_UNKNOWN),
    ]
    for numbers in (NUMBERS if may_change else NUMBERS | CHANGES).values():
        program += _on(numbers[column], [_return(_DENY)])
    if not may_change:
        # the flags of openat2 are behind a pointer, where a filter cannot see them
        program += _on(OPENAT2[column], [_return(_UNKNOWN)])
        for numbers, index in OPENS.values():
            flags = [_load(_ARGUMENTS + 8 * index), (_ANY_BIT, 0, 1, _CHANGING)]
            program += _on(numbers[column], [*flags, _return(_DENY), _return(_ALLOW)])
    for numbers, index, values, listed, other in _BY_ARGUMENT:
        program += _on(numbers[column], _by_argument(index, values, listed, other))
    pair = [_load(_ARGUMENTS), (_EQUAL, 1, 0, _AF_UNIX), _return(_DENY)]
    program += _on(_SOCKETPAIR[column], [*pair, *_by_argument(1, _STREAMS, _ALLOW, _DENY)])
    core = [_load(_ARGUMENTS + 8), (_EQUAL, 0, 1, _RLIMIT_CORE), _return(_DENY)]
    program += _on(_PRLIMIT[column], [*core, *_by_argument(0, (0, pid), _ALLOW, _DENY)])
    # the flags of clone3 are behind a pointer, where a filter cannot see them: libc then uses clone
    program += _on(CLONE3[column], [_return(_UNKNOWN)])
    clone = [_load(_ARGUMENTS), (_ANY_BIT, 0, 1, _CLONE_DENIED), _return(_DENY)]
    if may_fork:
        program += _on(CLONE[column], [*clone, _return(_ALLOW)])
    else:
        thread = [(_ANY_BIT, 0, 1, _CLONE_THREAD), _return(_ALLOW), _return(_DENY)]
        program += _on(CLONE[column], [*clone, *thread])
        for numbers in FORKS.values():
            program += _on(numbers[column], [_return(_DENY)])
        for numbers in SIGNALS.values():
            program += _on(numbers[column], _by_argument(0, (pid,), _ALLOW, _DENY))
    return [*program, _return(_ALLOW)]


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def put_on(libc: ctypes.CDLL, pid: int, may_fork: bool, may_change: bool) -> None:
    """On this process and all it starts, for good. Raises OSError where the kernel takes no filters."""
    code = b"".join(struct.pack("HBBI", *step) for step in steps(platform.machine(), pid, may_fork, may_change))
    set_seccomp, by_filter = 22, 2
    if libc.prctl(set_seccomp, by_filter, ctypes.byref(_Filter(len(code) // 8, code)), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")
