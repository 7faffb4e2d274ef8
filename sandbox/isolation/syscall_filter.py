"""The system calls that a program may not make, as a seccomp filter in classic BPF.

Out: the bytes of the filter. It refuses (EPERM) what leads out of a cell or only widens the
kernel's surface: sockets of any kind but pairs, new namespaces, mounts, tracing, keys, BPF,
io_uring, clocks, memory that no limit counts, signals by way of file owners, questions about the
network that a socket made outside belongs to. A call in another processor's convention ends the
process; calls newer than this table are unknown to the kernel (ENOSYS). `single` also refuses new
processes and threads, signals, and changes of files' metadata, which Landlock does not hold.
"""

import struct
from collections.abc import Iterable

from sandbox.isolation.kernel import ARCHITECTURES

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NUMBER, _ARCHITECTURE = 0, 4

UNKNOWN_FROM = 457
"""Numbers from here on are newer than this table; those of the x32 convention lie here too."""

_NEW_NAMESPACES = 0x7E020000

Numbers = tuple[int | None, int | None]
"""Of x86-64 and of AArch64; None: it has no such call."""

REFUSED: dict[str, Numbers] = {
    # network and other sockets
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242),
    # namespaces, mounts, roots
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "swapon": (167, 224), "swapoff": (168, 225),
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "kcmp": (312, 272),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    # what others have read
    "mincore": (27, 232), "cachestat": (451, 451),
    # files by other ways than a path
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "mknod": (133, None),
    "mknodat": (259, 33), "fanotify_init": (300, 262), "fanotify_mark": (301, 263),
    "lookup_dcookie": (212, 18),
    # memory that no limit counts, and shared objects of the machine
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194),
    "shmat": (30, 196), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "mbind": (237, 235), "set_mempolicy": (238, 237), "get_mempolicy": (239, 236),
    "set_mempolicy_home_node": (450, 450),
    # the kernel's surface
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "io_setup": (206, 0), "vmsplice": (278, 75), "personality": (135, 92),
    "modify_ldt": (154, None),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "uselib": (134, None),
    "seccomp": (317, 277), "ustat": (136, None), "sysfs": (139, None), "_sysctl": (156, None),
    "create_module": (174, None), "get_kernel_syms": (177, None), "query_module": (178, None),
    "nfsservctl": (180, 42), "vserver": (236, None),
    # the machine
    "reboot": (169, 142), "sethostname": (170, 161), "setdomainname": (171, 162),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "acct": (163, 89), "syslog": (103, 116), "vhangup": (153, 58),
    "iopl": (172, None), "ioperm": (173, None), "sync": (162, 81), "syncfs": (306, 267),
}  # fmt: skip

REFUSED_TO_ONE: dict[str, Numbers] = {
    "clone": (56, 220), "fork": (57, None), "vfork": (58, None),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None),
    "utimensat": (280, 88), "truncate": (76, 45),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
}  # fmt: skip
"""Also refused by `single`."""

_CLONE, _CLONE3, _FCNTL, _IOCTL, _PRCTL = (56, 220), (435, 435), (72, 25), (16, 29), (157, 167)
_PRLIMIT, _SOCKETPAIR, _MADVISE = (302, 261), (53, 199), (28, 233)
_SETSOCKOPT, _GETSOCKOPT = (54, 208), (55, 209)
_SENDTO, _SENDMSG, _SENDMMSG = (44, 206), (46, 211), (307, 269)

OWNER_COMMANDS = (8, 10, 15, 1024, 1026)
"""fcntl: F_SETOWN, F_SETSIG, F_SETOWN_EX, with which a file sends signals to any process, and
F_SETLEASE and F_NOTIFY, with which processes wait for each other or receive notices."""
TERMINAL_COMMANDS = (0x5412, 0x541C, 0x540E)
"""ioctl: TIOCSTI, TIOCLINUX, TIOCSCTTY."""
SOCKET_COMMANDS = 0x8900
"""ioctl: from here to 0x89FF those of any socket, about its owner and all of its network."""
PROCESS_COMMANDS = (1, 4, 22, 35, 67, 0x59616D61)
"""prctl: PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_MM, PR_SET_MEMORY_MERGE,
PR_SET_PTRACER."""
SOCKET_OPTIONS = (7, 8, 26, 32, 33, 50, 51, 52, 76)
"""setsockopt: larger buffers (SO_SNDBUF, SO_RCVBUF and their FORCE), which no limit counts, filters
in the kernel (SO_ATTACH_*), SO_PASSPIDFD."""
_PEER_HANDLE, _MERGEABLE, _URGENT = 77, 12, 1
"""SO_PEERPIDFD, MADV_MERGEABLE, MSG_OOB."""


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)


def _fail(error: int) -> bytes:
    return _step(_RETURN, _ERROR | error)


def _low_half(argument: int) -> bytes:
    return _step(_LOAD, 16 + 8 * argument)


def _for_call(number: int, body: bytes) -> bytes:
    """`body` where the call has this number; it ends by returning."""
    return _step(_EQUAL, number, 0, len(body) // 8) + body


def _refuse_values(argument: int, values: Iterable[int]) -> bytes:
    """A body that refuses a call whose argument is one of these."""
    steps = [_low_half(argument)]
    for value in values:
        steps += [_step(_EQUAL, value, 0, 1), _fail(_EPERM)]
    return b"".join(steps) + _step(_RETURN, _ALLOW)


def instructions(machine: str, *, single: bool = False) -> bytes:
    """The filter for a machine (a key of ARCHITECTURES)."""
    column = list(ARCHITECTURES).index(machine)

    def number(numbers: Numbers) -> int:
        found = numbers[column]
        assert found is not None
        return found

    parts = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, ARCHITECTURES[machine], 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, UNKNOWN_FROM, 0, 1),
        _fail(_ENOSYS),
        # Its flags lie in memory, where no filter can look; glibc then takes clone.
        _for_call(number(_CLONE3), _fail(_ENOSYS)),
    ]
    refused = {**REFUSED, **REFUSED_TO_ONE} if single else REFUSED
    for numbers in refused.values():
        if numbers[column] is not None:
            parts.append(_for_call(number(numbers), _fail(_EPERM)))
    if not single:
        namespaces = (
            _low_half(0), _step(_ANY_BIT, _NEW_NAMESPACES, 0, 1), _fail(_EPERM),
            _step(_RETURN, _ALLOW),
        )  # fmt: skip
        parts.append(_for_call(number(_CLONE), b"".join(namespaces)))
    parts += [
        _for_call(number(_FCNTL), _refuse_values(1, OWNER_COMMANDS)),
        _for_call(
            number(_IOCTL),
            _low_half(1) + _step(_AND, 0xFFFFFF00) + _step(_EQUAL, SOCKET_COMMANDS, 0, 1)
            + _fail(_EPERM) + _refuse_values(1, TERMINAL_COMMANDS),
        ),
        _for_call(number(_SETSOCKOPT), _refuse_values(2, SOCKET_OPTIONS)),
        _for_call(number(_GETSOCKOPT), _refuse_values(2, (_PEER_HANDLE,))),
        _for_call(number(_MADVISE), _refuse_values(2, (_MERGEABLE,))),
        *(
            _for_call(
                number(call),
                _low_half(flags) + _step(_ANY_BIT, _URGENT, 0, 1) + _fail(_EPERM)
                + _step(_RETURN, _ALLOW),
            )
            for call, flags in ((_SENDTO, 3), (_SENDMSG, 2), (_SENDMMSG, 3))
        ),
        _for_call(number(_PRCTL), _refuse_values(0, PROCESS_COMMANDS)),
        _for_call(
            number(_PRLIMIT),
            _low_half(0) + _step(_EQUAL, 0, 1, 0) + _fail(_EPERM) + _step(_RETURN, _ALLOW),
        ),
        # A datagram pair could send to any address; streams cannot.
        _for_call(
            number(_SOCKETPAIR),
            _low_half(1) + _step(_AND, 0xF) + _step(_EQUAL, 1, 1, 0)
            + _fail(_EPERM) + _step(_RETURN, _ALLOW),
        ),
        _step(_RETURN, _ALLOW),
    ]  # fmt: skip
    return b"".join(parts)
