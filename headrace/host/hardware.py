"""What this machine has: cores, memory, GPUs, addresses.

Reads /proc, asks the system and nvidia-smi; imports no torch.
"""

import os
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU."""

    index: int
    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Hardware:
    """What a launcher may use: processor cores by number, memory in bytes, GPUs."""

    cores: tuple[int, ...]
    memory_bytes: int
    available_bytes: int
    gpus: tuple[Gpu, ...] = ()


def detect() -> Hardware:
    """The machine as this process sees it (affinity, container limits, CUDA_VISIBLE_DEVICES)."""
    total, available = _memory()
    return Hardware(tuple(sorted(os.sched_getaffinity(0))), total, available, _gpus())


def torch_cuda() -> str | None:
    """The CUDA version that the installed torch was built for; None for a CPU build, or none.
    Torch's file of versions is read: an import takes seconds, and who asks `torch.cuda` cannot
    fork a process that uses a GPU."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return None
    versions = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    built = re.search(r"^cuda\b.*= '([^']+)'", versions, re.MULTILINE)
    return built[1] if built else None


def has_gpu() -> bool:
    """Whether a role may compute on a GPU here: the driver lists one, CUDA_VISIBLE_DEVICES leaves
    it, and the installed torch is a CUDA build."""
    return torch_cuda() is not None and bool(_gpus())


def cores_of(text: str) -> list[int]:
    """The cores of an option: `0,1`, or `all` that this process may use."""
    if text == "all":
        return sorted(os.sched_getaffinity(0))
    return [int(core) for core in text.split(",")]


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody uses now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def port_is_free(host: str, port: int) -> bool:
    """Whether a server may bind host:port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def own_address(host: str, port: int = 1) -> str:
    """This machine's IPv4 address as `host` sees it; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def interface_towards(host: str) -> str | None:
    """The network interface that this machine's address towards `host` belongs to; None where
    no interface has it."""
    address = own_address(host)
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return str(name)
    return None


_ESTABLISHED = "01"


def connections(port: int) -> int:
    """How many connections to a port of this machine are open now."""
    found = 0
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state = line.split()[:4]
            found += state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port
    return found


def _memory() -> tuple[int, int]:
    """(total, available) bytes, the container's limit taken into account."""
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit is not None and limit < total:
        cache = _cgroup_stat("inactive_file")
        total, available = limit, min(available, limit - (used or 0) + cache)
    return total, max(0, available)


def _cgroup(name: str) -> int | None:
    try:
        text = Path("/sys/fs/cgroup", name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _cgroup_stat(name: str) -> int:
    try:
        lines = Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)


def _gpus() -> tuple[Gpu, ...]:
    program = shutil.which("nvidia-smi")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if program is None or visible == "":
        return ()
    query = ["--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run([program, *query], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if answer.returncode != 0:
        return ()
    rows = [line.split(", ") for line in answer.stdout.splitlines() if line.count(", ") == 2]
    gpus = [Gpu(int(index), name, int(mib) * 2**20) for index, name, mib in rows if mib.isdigit()]
    if visible is not None:
        wanted = visible.split(",")
        gpus = [gpu for gpu in gpus if str(gpu.index) in wanted] if wanted[0].isdigit() else gpus
    return tuple(gpus)
