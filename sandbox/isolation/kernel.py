"""System calls that Python's `os` does not have, or has only in newer versions.

Each raises OSError with the kernel's errno. Numbers are those of x86-64 and of the generic table
(AArch64); on another processor `MACHINE` is None and there is no sandbox.
"""

import ctypes
import os
import platform
import struct
import sys

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Machine to AUDIT_ARCH, as a syscall filter sees it."""
MACHINE = (
    platform.machine()
    if sys.platform == "linux" and sys.byteorder == "little" and platform.machine() in ARCHITECTURES
    else None
)

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
_MOUNT_SETATTR = 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(what: str, number: int, *arguments: int | bytes | None) -> int:
    """Call the kernel by number; integers are passed as 64 bits, bytes by address."""
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *given), what)


def unshare(flags: int) -> None:
    """Enter new namespaces (for processes: the next child does)."""
    _checked(_libc.unshare(flags), "unshare")


def prctl(option: int, *arguments: int) -> int:
    given = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    return _checked(_libc.prctl(option, *given), f"prctl {option}")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    done = _libc.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()
    )
    _checked(done, f"mount {source} on {target}")


def unmount(target: str) -> None:
    """Take a mount out of the tree; who holds it open keeps it."""
    _checked(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root and move the old one to `old`."""
    assert MACHINE is not None
    syscall("pivot_root", _PIVOT_ROOT[MACHINE], new.encode(), old.encode())


def restrict_mount(path: str, flags: int, *, recursive: bool = True) -> None:
    """Add MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC to a mount and all below it (Linux 5.12)."""
    attributes = struct.pack("<QQQQ", flags, 0, 0, 0)
    how = AT_RECURSIVE if recursive else 0
    syscall("mount_setattr", _MOUNT_SETATTR, AT_FDCWD, path.encode(), how, attributes, 32)


def drop_capabilities() -> None:
    """Hold no capability, now or after an exec."""
    assert MACHINE is not None
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # EINVAL: the kernel's last one was before. EPERM: none to drop.
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)


def clear_capabilities() -> None:
    """Give up what is held."""
    assert MACHINE is not None
    header = struct.pack("<Ii", 0x20080522, 0)
    syscall("capset", _CAPSET[MACHINE], header, bytes(24))


def install_filter(instructions: bytes) -> None:
    """Put a syscall filter (classic BPF) on this process and its children, for good."""
    code = ctypes.create_string_buffer(instructions, len(instructions))
    program = struct.pack("<HxxxxxxQ", len(instructions) // 8, ctypes.addressof(code))
    block = ctypes.create_string_buffer(program, len(program))
    prctl(PR_SET_SECCOMP, 2, ctypes.addressof(block))
