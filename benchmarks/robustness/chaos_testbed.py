"""Test bed of chaos runs: a small disk and a network of their own.

In: root's rights. Out: `NamespaceNetwork`, the run's host and others, whose wires can be cut and
slowed; `Testbed`, with the folder for runs, the command of a job, and the faults of disk and
network. Promise: nothing outside is touched, and all is removed with the block. Where rights or
tools are missing, `missing` says which faults are impossible, and why.

The disk is a file system in a file (ext4 on a loop device): it is filled to the last byte, or
frozen repeatedly. A host is a network namespace: its link is taken down, or gets a token bucket, or
the kernel ends connections in it with RST.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.robustness.chaos_faults import Kind
from tests.services import find_postgresql
from tests.storage.postgresql import Server

DISK_MIB = 1024
SLOW_RATE = "2mbit"
"""Rate of the slowed network: some hundred thousand bytes per second."""
_THAW_S, _FROZEN_S = 0.2, 0.6
_RESET_EVERY_S = 0.3
_RESET_CHECK = """
import socket, subprocess
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
subprocess.run(["ss", "--kill", f"sport = :{client.getsockname()[1]}"], check=True,
               stdout=subprocess.DEVNULL)
client.settimeout(1.0)
client.recv(1)
"""
"""Program whose error shows whether the kernel ended a connection."""


def hold(seconds: float, undo: Callable[[], object]) -> None:
    """Let a fault last some seconds, then undo it, also when interrupted."""
    try:
        time.sleep(seconds)
    finally:
        undo()


class NamespaceNetwork:
    """Network namespaces of the run's host (0) and others, joined by a bridge in (0).

    Addresses are 10.77.0.1 and up; nothing of it is visible from outside."""

    def __init__(self, hosts: int = 0) -> None:
        tag = f"hr{os.getpid()}"
        self.names = [f"{tag}-{number}" for number in range(hosts + 1)]
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        home = self.names[0]
        for name in self.names:
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        for number, name in enumerate(self.names[1:], 1):
            wire = f"wire{number}"
            peer = ("type", "veth", "peer", "name", "eth0", "netns", name)
            if number == 1:
                _run("ip", "-n", home, "link", "add", "bridge", "type", "bridge")
                self._address(0, "bridge")
            _run("ip", "-n", home, "link", "add", wire, *peer)
            _run("ip", "-n", home, "link", "set", wire, "master", "bridge", "up")
            self._address(number, "eth0")

    def _address(self, host: int, device: str) -> None:
        name = self.names[host]
        _run("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", device)
        _run("ip", "-n", name, "link", "set", device, "up")

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def command(self, host: int, argv: Sequence[str]) -> list[str]:
        """Return the command that runs on a host."""
        return ["ip", "netns", "exec", self.names[host], *argv]

    def run(self, host: int, *argv: str) -> str:
        """Run a command on a host; return its output."""
        return _run(*self.command(host, argv))

    def cut(self, host: int, seconds: float) -> None:
        """Cut the host's link in both directions for some seconds."""
        link = ("ip", "-n", self.names[0], "link", "set", f"wire{host}" if host else "lo")
        _run(*link, "down")
        hold(seconds, lambda: _run(*link, "up"))

    def slow(self, host: int, seconds: float) -> None:
        """Slow the host's outgoing traffic by a token bucket for some seconds."""
        device = ("dev", "eth0" if host else "lo", "root")
        bucket = ("tbf", "rate", SLOW_RATE, "burst", "32kb", "latency", "500ms")
        self.run(host, "tc", "qdisc", "add", *device, *bucket)
        hold(seconds, lambda: self.run(host, "tc", "qdisc", "del", *device))

    def reset(self, pid: int, port: int, seconds: float) -> None:
        """Repeatedly end the port's connections of process `pid` of host 0 with RST.

        For some seconds; their buffers are lost."""
        end = time.monotonic() + seconds
        while True:
            if ours := self._connections(pid, port):
                which = " or ".join(f"sport = :{own}" for own in sorted(ours))
                with contextlib.suppress(subprocess.CalledProcessError):  # It ended meanwhile.
                    self.run(0, "ss", "--kill", "--tcp", f"( {which} )")
            if time.monotonic() + _RESET_EVERY_S > end:
                return
            time.sleep(_RESET_EVERY_S)

    def _connections(self, pid: int, port: int) -> set[int]:
        """Return local ports of a process's connections from or to a port."""
        which = f"( sport = :{port} or dport = :{port} )"
        output = self.run(0, "ss", "-tnpH", "state", "established", which)
        # Bytes that wait on both sides, this end, the other end, the process.
        rows = (line.split() for line in output.splitlines() if f"pid={pid}," in line)
        return {int(row[2].rsplit(":", 1)[1]) for row in rows}

    def resets(self) -> bool:
        """Return whether the kernel supports ending connections."""
        try:
            self.run(0, sys.executable, "-c", _RESET_CHECK)
        except subprocess.CalledProcessError as error:
            text = str(error.stderr)
            return "ConnectionAbortedError" in text or "ConnectionResetError" in text
        return False

    def close(self) -> None:
        """Delete the hosts and their wires."""
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


class ChaosDatabase(Server):
    """A PostgreSQL server on a Unix socket, which other networks reach, too."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        super().__init__(binaries, folder)
        self.url = f"postgresql+psycopg://tester@/postgres?host={folder}&port={self._port}"

    def away(self, seconds: float) -> None:
        """Kill the server, and start it again after some seconds."""
        self.stop()
        time.sleep(seconds)
        self.start()

    def pause(self, seconds: float) -> None:
        """Stop all its processes for some seconds."""
        self.freeze()
        hold(seconds, self.thaw)


@dataclass
class Testbed:
    """Test bed of one job after the other. `root`: the folder for runs."""

    root: Path
    network: NamespaceNetwork | None
    missing: dict[Kind, str] = field(default_factory=dict)
    database: ChaosDatabase | None = None

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command that starts a job here."""
        return self.network.command(0, argv) if self.network else list(argv)

    def disk_full(self, seconds: float) -> None:
        """Fill the disk to the last byte for some seconds."""
        filler = self.root.parent / "filler"
        for size in (1 << 20, 1):
            with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass
        hold(seconds, filler.unlink)

    def slow_disk(self, seconds: float) -> None:
        """Freeze the disk most of the time, for some seconds."""
        mount, end = str(self.root.parent), time.monotonic() + seconds
        while time.monotonic() < end:
            _run("fsfreeze", "--freeze", mount)
            hold(_FROZEN_S, lambda: _run("fsfreeze", "--unfreeze", mount))
            time.sleep(_THAW_S)


@contextlib.contextmanager
def open_testbed() -> Iterator[Testbed]:
    """Create a test bed; `missing` has the faults that cannot be applied here."""
    base = Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    missing: dict[Kind, str] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        if problem := _disk(base, stack):
            missing |= {"disk_full": problem, "slow_disk": problem}
        network = None
        if problem := network_problem():
            missing |= {"cut_network": problem, "slow_network": problem, "reset": problem}
        else:
            network = stack.enter_context(contextlib.closing(NamespaceNetwork()))
            if shutil.which("tc") is None:
                missing["slow_network"] = "there is no tc"
            if shutil.which("ss") is None:
                missing["reset"] = "there is no ss"
            elif not network.resets():
                missing["reset"] = "the kernel does not end connections for `ss --kill`"
        database = None
        try:
            database = start_database(base / "sql", stack)
        except (OSError, subprocess.CalledProcessError) as error:
            missing |= {"freeze_sql": str(error), "lose_sql": str(error)}
        root = base / "disk" / "runs"
        root.mkdir(parents=True)
        yield Testbed(root, network, missing, database)


def network_problem() -> str:
    """Say why no network namespace can be created here, or return an empty text."""
    if os.geteuid() != 0:
        return "only root may make a network"
    name = f"hr{os.getpid()}-try"
    return _problem("ip", "netns", "add", name) or _problem("ip", "netns", "del", name)


def _disk(base: Path, stack: contextlib.ExitStack) -> str:
    """Mount a small file system at base/disk; return why that fails, or an empty text."""
    if os.geteuid() != 0:
        return "only root may mount a disk"
    image, mount = base / "image", base / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(DISK_MIB << 20)
    problem = _problem("mkfs.ext4", "-q", "-m", "0", str(image))
    problem = problem or _problem("mount", "-o", "loop", str(image), str(mount))
    if not problem:
        stack.callback(subprocess.run, ["umount", "--lazy", str(mount)], check=False)
    return problem


def start_database(folder: Path, stack: contextlib.ExitStack) -> ChaosDatabase:
    """Start a server in a new folder. OSError or CalledProcessError: that fails."""
    binaries = find_postgresql()
    if binaries is None:
        raise FileNotFoundError("there is no PostgreSQL server")
    folder.mkdir()
    folder.parent.chmod(0o711)  # it does not run as root
    database = ChaosDatabase(binaries, folder)
    database.start()
    stack.callback(database.stop)
    return database


def _problem(*argv: str) -> str:
    """Run a command; return a line that says why it fails, or an empty text."""
    if shutil.which(argv[0]) is None:
        return f"there is no {argv[0]}"
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"{argv[0]} failed"])[-1]


def _run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout
