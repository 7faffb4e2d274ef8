"""The layer `namespaces`: own processes, mounts, network, IPC and host name.

As root no user namespace is needed; anybody else enters one, in which his own number is the only
user. The new root is a small tmpfs, read-only but for /tmp, with the interpreter, its libraries
and four devices bound into it, read-only; nothing of /proc and /sys is there.
"""

import contextlib
import errno
import os

from sandbox.isolation import kernel
from sandbox.limits import Limits

INSIDE_USER = 1000
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_OLD = "/old"
_SAFE = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
_WITHIN = (
    kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
)  # fmt: skip


def separate_processes() -> bool:
    """Have the next child open a process namespace; return if that took a user namespace."""
    if os.geteuid() == 0:
        with contextlib.suppress(PermissionError):
            kernel.unshare(kernel.CLONE_NEWPID)
            return False
        raise PermissionError(errno.EPERM, "root may not make namespaces here (CAP_SYS_ADMIN)")
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{INSIDE_USER} {user} 1")
    _write("/proc/self/gid_map", f"{INSIDE_USER} {group} 1")
    return True


def separate_everything(readable: list[str], covered: list[str], limits: Limits) -> int:
    """Enter the other namespaces and the new root; return the cell's own open /proc."""
    sources = [_real(path) for path in readable]
    kernel.unshare(_WITHIN)
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
    os.mkdir(f"/tmp{_OLD}")
    kernel.pivot_root("/tmp", f"/tmp{_OLD}")
    os.chdir("/")
    quiet = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    room = f"size={limits.disk_bytes},nr_inodes={limits.files},mode=1777"
    # Before what is shown, some of which may lie below it.
    os.mkdir("/tmp")
    kernel.mount("tmpfs", "/tmp", "tmpfs", quiet, room)
    shown = list(zip(sources, readable, strict=True))
    for source, path in shown:
        if not _is_within(path, covered):
            _bind(source, path, _SAFE)
    for device in DEVICES:
        _bind(device, device, kernel.MS_NOSUID | kernel.MS_NOEXEC)
    for folder in covered:
        if os.path.isdir(folder):
            _cover(folder, [(source, path) for source, path in shown if _is_within(path, [folder])])
    # POSIX semaphores live there; the same room, so that it is counted once.
    os.mkdir("/dev/shm")
    kernel.mount("/tmp", "/dev/shm", "", kernel.MS_BIND)
    os.mkdir("/proc")
    kernel.mount("proc", "/proc", "proc", quiet)
    processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    kernel.unmount("/proc")
    os.rmdir("/proc")
    kernel.unmount(_OLD)
    os.rmdir(_OLD)
    kernel.restrict_mount("/", _SAFE, recursive=False)
    os.chdir("/tmp")
    return processes


def _is_within(path: str, folders: list[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)


def _cover(folder: str, shown: list[tuple[str, str]]) -> None:
    """Hide what is in a folder, but for what is to be seen."""
    room = f"size=4k,nr_inodes={2 + len(shown)},mode=755"
    kernel.mount("tmpfs", folder, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, room)
    for source, path in shown:
        _bind(source, path, _SAFE)
    kernel.restrict_mount(folder, _SAFE, recursive=False)


def _real(path: str) -> str:
    """The path with no link above its last part: links would lead into the new root."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def _bind(source: str, path: str, flags: int) -> None:
    """Mount the outer `source` at the inner `path`; a link is created again."""
    source = _OLD + source
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.islink(source):
        os.symlink(os.readlink(source), path)
        return
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    kernel.mount(source, path, "", kernel.MS_BIND | kernel.MS_REC)
    kernel.restrict_mount(path, flags)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
