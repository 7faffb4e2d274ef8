"""Where a chaos run lives: a small disk and a network of its own, so that both can be hurt.

In: nothing but root's rights. Out: `Place`, with the folder for runs, how to start a job in it, and
the faults of disk and network. Promise: nothing outside is touched, and the disk is gone with the
block. Where rights or tools are missing, `missing` says which faults cannot be made, and why.

The disk is a file system in a file (ext4 on a loop device): it is filled to the last byte, or
frozen again and again. The network is a namespace of the job: its loopback is taken down, or gets a
token bucket, or the kernel ends connections in it with RST.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chaos_faults import Kind

DISK_MIB = 1024
SLOW_RATE = "2mbit"
"""Of the slowed network: some hundred thousand bytes a second."""
_THAW_S, _FROZEN_S = 0.2, 0.6
_RESET_EVERY_S = 0.3
_TRIED = """
import socket, subprocess
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
subprocess.run(["ss", "--kill", f"sport = :{client.getsockname()[1]}"], check=True,
               stdout=subprocess.DEVNULL)
client.settimeout(1.0)
client.recv(1)
"""
"""Says by an error what became of a connection that was to be ended."""


@dataclass
class Place:
    """See the module's docstring. `root`: the folder for runs."""

    root: Path
    has_disk: bool
    has_network: bool
    missing: dict[Kind, str] = field(default_factory=dict)

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command that starts a job here."""
        if not self.has_network:
            return list(argv)
        script = 'ip link set lo up && exec "$@"'
        return ["unshare", "--net", "--", "sh", "-c", script, "sh", *argv]

    def disk_full(self, seconds: float) -> None:
        """No byte is free for so long."""
        filler = self.root.parent / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 20)):
                pass
        with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"0"):
                pass
        try:
            time.sleep(seconds)
        finally:
            filler.unlink()

    def slow_disk(self, seconds: float) -> None:
        """Whoever writes waits most of the time."""
        mount, end = str(self.root.parent), time.monotonic() + seconds
        while time.monotonic() < end:
            subprocess.run(["fsfreeze", "--freeze", mount], check=True)
            try:
                time.sleep(_FROZEN_S)
            finally:
                subprocess.run(["fsfreeze", "--unfreeze", mount], check=True)
            time.sleep(_THAW_S)

    def cut_network(self, pid: int, seconds: float) -> None:
        """Nothing arrives for so long in the network of process `pid`."""
        _inside(pid, "ip", "link", "set", "lo", "down")
        try:
            time.sleep(seconds)
        finally:
            _inside(pid, "ip", "link", "set", "lo", "up")

    def slow_network(self, pid: int, seconds: float) -> None:
        """Everything arrives late for so long in the network of process `pid`."""
        bucket = ("tbf", "rate", SLOW_RATE, "burst", "32kb", "latency", "500ms")
        _inside(pid, "tc", "qdisc", "add", "dev", "lo", "root", *bucket)
        try:
            time.sleep(seconds)
        finally:
            _inside(pid, "tc", "qdisc", "del", "dev", "lo", "root")

    def reset(self, pid: int, port: int, seconds: float) -> None:
        """Again and again for so long, all connections between process `pid` and whoever has or
        uses this port end with RST; what lay in their buffers is gone."""
        end = time.monotonic() + seconds
        while True:
            if ours := _connections(pid, port):
                which = " or ".join(f"sport = :{own}" for own in sorted(ours))
                _inside(pid, "ss", "--kill", "--tcp", f"( {which} )")
            if time.monotonic() + _RESET_EVERY_S > end:
                return
            time.sleep(_RESET_EVERY_S)


@contextlib.contextmanager
def open_place() -> Iterator[Place]:
    """A place for one job after the other; what cannot be had is in `missing`."""
    base = Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    missing: dict[Kind, str] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        problem = _disk(base, stack)
        if problem:
            missing |= {"disk_full": problem, "slow_disk": problem}
        network = network_problem()
        if network:
            missing |= {"cut_network": network, "slow_network": network, "reset": network}
        else:
            if shutil.which("tc") is None:
                missing["slow_network"] = "there is no tc"
            if problem_of_resets := _reset_problem():
                missing["reset"] = problem_of_resets
        root = base / "disk" / "runs"
        root.mkdir(parents=True)
        yield Place(root, not problem, not network, missing)


def _disk(base: Path, stack: contextlib.ExitStack) -> str:
    """Mount a small file system at base/disk; why it cannot be, or an empty text."""
    if os.geteuid() != 0:
        return "only root may mount a disk"
    image, mount = base / "image", base / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(DISK_MIB << 20)
    commands = (
        ["mkfs.ext4", "-q", "-m", "0", str(image)],
        ["mount", "-o", "loop", str(image), str(mount)],
    )
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            return f"there is no {command[0]}"
        if done.returncode != 0:
            return (done.stderr.strip().splitlines() or [f"{command[0]} failed"])[-1]
    stack.callback(subprocess.run, ["umount", "--lazy", str(mount)], check=False)
    return ""


def network_problem() -> str:
    """Why there can be no network of one's own here, or an empty text."""
    if os.geteuid() != 0:
        return "only root may make a network"
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    command = ["unshare", "--net", "--", "ip", "link", "set", "lo", "up"]
    done = subprocess.run(command, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def _reset_problem() -> str:
    """Why connections cannot be ended here from outside, or an empty text."""
    if shutil.which("ss") is None:
        return "there is no ss"
    script = 'ip link set lo up && exec "$@"'
    command = ["unshare", "--net", "--", "sh", "-c", script, "sh", sys.executable, "-c", _TRIED]
    done = subprocess.run(command, capture_output=True, text=True)
    ended = "ConnectionAbortedError" in done.stderr or "ConnectionResetError" in done.stderr
    return "" if ended else "the kernel does not end connections for `ss --kill`"


def _connections(pid: int, port: int) -> set[int]:
    """Local ports of a process's connections from or to a port."""
    which = f"( sport = :{port} or dport = :{port} )"
    told = _inside(pid, "ss", "-tnpH", "state", "established", which)
    # Bytes that wait on both sides, this end, the other end, who has it.
    rows = (line.split() for line in told.splitlines() if f"pid={pid}," in line)
    return {int(row[2].rsplit(":", 1)[1]) for row in rows}


def _inside(pid: int, *argv: str) -> str:
    """What a command says in the network of process `pid`."""
    command = ["nsenter", "--target", str(pid), "--net", "--", *argv]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
