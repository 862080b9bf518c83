"""System calls that no program of the Python tool may make, by name: what its list must leave out."""

from rtpo.tools.python.python_seccomp import _table

DENIED = _table(
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
    # the host's disks
    sync 162 81; syncfs 306 267; sync_file_range 277 84
    # parts of the kernel
    landlock_create_ruleset 444 444; landlock_add_rule 445 445; landlock_restrict_self 446 446; seccomp 317 277;
    timer_create 222 107; connect 42 203; accept 43 202; listen 50 201; capset 126 91; setresuid 117 147;
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
