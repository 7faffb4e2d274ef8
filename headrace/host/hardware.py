"""Hardware of this machine: cores, memory, GPUs, addresses.

Reads /proc, asks the system and nvidia-smi; imports no torch.
"""

import os
import random
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil

from headrace.errors import UserError

MIB, GIB = 2**20, 2**30
SHARED_MEMORY = Path("/dev/shm")
CHOSEN_PORTS = range(20_000, 32_000)
"""Below those that Linux gives to connections (from 32,768), above Ray's workers (to 19,999)."""


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU, or MIG device of one: the number that nvidia-smi gives the GPU, bytes of
    memory in all and free now (None: not known)."""

    index: int
    name: str
    memory_bytes: int
    free_bytes: int | None = None
    uuid: str = ""

    @property
    def device(self) -> str:
        """Name in CUDA_VISIBLE_DEVICES, where CUDA_DEVICE_ORDER is PCI_BUS_ID."""
        return self.uuid if self.uuid.startswith("MIG-") else str(self.index)


@dataclass(frozen=True)
class Hardware:
    """Processor cores by number, memory in bytes, and GPUs that torch can compute on.

    Attributes:
        without: why there is no GPU. misnamed: what is wrong with CUDA_VISIBLE_DEVICES. driver: its
        version. driver_cuda: the newest CUDA that it knows. torch_cuda: the one that torch was
        built for. shm_bytes: free in /dev/shm. quota: `cpu_quota`. Empty and None: not known, or
        nothing. bfloat16: whether the processor has instructions for its products.
    """

    cores: tuple[int, ...]
    memory_bytes: int
    available_bytes: int
    gpus: tuple[Gpu, ...] = ()
    without: str = ""
    misnamed: str = ""
    driver: str = ""
    driver_cuda: str = ""
    torch_cuda: str | None = None
    shm_bytes: int | None = None
    bfloat16: bool = False
    quota: int | None = None

    @property
    def core_count(self) -> int:
        """Cores that may be busy at a time."""
        return min(len(self.cores), self.quota or len(self.cores))


def detect() -> Hardware:
    """The machine that this process sees (affinity, limits, CUDA_VISIBLE_DEVICES), or UserError."""
    if sys.platform != "linux":
        raise UserError(f"this needs Linux, and here is {sys.platform}: use a container")
    total, available = _memory()
    shm = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None
    cores = tuple(sorted(os.sched_getaffinity(0)))
    machine = Hardware(
        cores, total, available, torch_cuda=torch_cuda(), shm_bytes=shm, bfloat16=has_bfloat16(),
        quota=cpu_quota(),
    )  # fmt: skip
    return _with_gpus(machine)


def has_bfloat16() -> bool:
    """Return whether the processor has bfloat16 products, by Linux (`flags` of x86, `Features` of
    Arm). Without them torch takes 14 times as long as in float32 (600 rows, 256 by 1,024, AMD EPYC,
    AVX2)."""
    listed = _found(Path("/proc/cpuinfo"), r"^(?:flags|Features)\s*:(.*)")[:1]
    return any({"avx512_bf16", "amx_bf16", "bf16"} & set(flags.split()) for flags in listed)


def torch_cuda() -> str | None:
    """Return the CUDA version of the installed torch; None for a CPU build, or none. Torch's file
    of versions is read: an import takes seconds, and after `torch.cuda` a process cannot fork GPU
    users."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return None
    built = _found(Path(found.origin).with_name("version.py"), r"^cuda\b.*= '([^']+)'")
    return str(built[0]) if built else None


def has_gpu() -> bool:
    """Return whether a role may compute on a GPU here: the driver lists one, CUDA_VISIBLE_DEVICES
    leaves it, and the installed torch is a CUDA build."""
    return torch_cuda() is not None and bool(detect().gpus)


_NONE = ("", "-1", "NoDevFiles")
"""Entries of CUDA_VISIBLE_DEVICES that end it on purpose; Slurm writes the last."""


def visible_gpus(gpus: Sequence[Gpu], names: str) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order, and the entry that names none, or
    one twice: there CUDA stops reading. An index of a GPU with MIG means its first MIG device, a
    UUID may be cut short (CUDA Programming Guide, environment variables)."""
    left: list[Gpu] = []
    for name in map(str.strip, names.split(",")):
        if name in _NONE:
            break
        if name.isdigit():
            found = [gpu for gpu in gpus if gpu.index == int(name)][:1]
        else:
            found = [gpu for gpu in gpus if gpu.uuid.startswith(name)]
        if len(found) != 1 or found[0] in left:
            return tuple(left), name
        left += found
    return tuple(left), ""


def cores_of(text: str) -> list[int]:
    """The cores of an option: `0,1`, or `all` that this process may use."""
    if text == "all":
        return sorted(os.sched_getaffinity(0))
    return [int(core) for core in text.split(",")]


def free_port(host: str = "127.0.0.1") -> int:
    """A free port, if possible outside the system's ephemeral range, since the caller binds it
    later. OSError where `host` is not this machine's."""
    for port in random.SystemRandom().sample(CHOSEN_PORTS, 100):
        if port_is_free(host, port):
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def port_is_free(host: str, port: int) -> bool:
    """Return whether a server may bind host:port now."""
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
    """Return the network interface of this machine's address towards `host`, or None."""
    address = own_address(host)
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return str(name)
    return None


_ESTABLISHED = "01"


def connections(port: int) -> int:
    """Return the number of open connections to a port of this machine."""
    found = 0
    for table in ("tcp", "tcp6"):
        for line in _found(Path("/proc/net", table), r"^ *\d+: (.*)$"):
            local, _, state = line.split()[:3]
            found += state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port
    return found


_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_MEMORY_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Limit, use and file cache, by the controller that /proc names: of version 2, and of 1."""


def _memory() -> tuple[int, int]:
    """(total, available) bytes, with the limits of containers and jobs around this process."""
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    for kind, folder in _groups("memory"):
        limit, used, cache = _MEMORY_FILES[kind]
        bound = min(map(int, _found(folder / limit, r"^(\d+)$")), default=memory.total)
        if bound < memory.total:
            taken = sum(map(int, _found(folder / used, r"^(\d+)$")))
            cached = sum(map(int, _found(folder / "memory.stat", rf"^{cache} (\d+)$")))
            total, available = min(total, bound), min(available, bound - taken + cached)
    return total, max(0, available)


def cpu_quota() -> int | None:
    """Return the cores' worth of time, rounded up, that the limits of containers and jobs leave
    (`docker --cpus`, a CPU limit of Kubernetes); None: all. More threads than that are stopped for
    a part of each period."""
    bounds = []
    for kind, folder in _groups("cpu"):
        if kind:
            texts = [_found(folder / f"cpu.cfs_{n}_us", r"^(\d+)$") for n in ("quota", "period")]
            bounds += list(zip(*texts, strict=False))
        else:
            bounds += _found(folder / "cpu.max", r"^(\d+) (\d+)$")
    return min((-(-int(time) // int(period)) for time, period in bounds), default=None)


def _groups(controller: str) -> Iterator[tuple[str, Path]]:
    """Yield the folders of this process's control groups and of those around them, and their
    controller: empty in version 2."""
    form = rf"^\d+:(?:[\w,]+,)?({controller}|)(?:,[\w,]+)?:(.*)$"
    for kind, name in _found(_OWN_GROUPS, form):
        group = _CONTROL_GROUPS / kind / name.strip("/")
        yield from ((kind, folder) for folder in (group, *group.parents))


def _found(path: Path, form: str) -> list[Any]:
    """Everything of a form in a file; nothing where there is none."""
    try:
        return re.findall(form, path.read_text(), re.MULTILINE)
    except OSError:
        return []


def _with_gpus(machine: Hardware) -> Hardware:
    """The machine with its GPUs and their driver, or with why it has none."""
    told = nvidia_smi("-q", "-x")
    try:
        gpus = tuple(_listed(ElementTree.fromstring(told)))
    except ElementTree.ParseError:
        return replace(machine, without="nvidia-smi lists none")
    versions = dict(re.findall(r"<(driver|kmd|cuda)(?:_umd)?_version>([\d.]+)<", told))
    driver = versions.get("driver") or versions.get("kmd", "")
    machine = replace(machine, driver=driver, driver_cuda=versions.get("cuda", ""))
    if machine.torch_cuda is None:
        return replace(machine, without=f"torch is a CPU build ({len(gpus)} listed)")
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return replace(machine, gpus=gpus, without="" if gpus else "nvidia-smi lists none")
    (left, stray), said = visible_gpus(gpus, names), f"CUDA_VISIBLE_DEVICES = {names!r}"
    wrong = f"{said}: {stray!r} names none of {', '.join(g.device for g in gpus)}, or one twice"
    without = "" if left else f"{said} leaves none"
    return replace(machine, gpus=left, without=without, misnamed=wrong if stray else "")


@cache
def nvidia_smi(*arguments: str) -> str:
    """Return nvidia-smi's output, once as it may take seconds; empty without it or a driver."""
    command = ["nvidia-smi", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _listed(log: ElementTree.Element) -> Iterator[Gpu]:
    """Yield the GPUs of nvidia-smi's XML, each MIG device by itself (only another list has its
    UUID), but those without a memory size."""
    mig = log.find(".//mig_device") is not None
    uuids = iter(re.findall(r"\(UUID: (MIG-[^)]+)\)", nvidia_smi("-L") if mig else ""))
    for index, entry in enumerate(log.iter("gpu")):
        name = entry.findtext("product_name", "GPU")
        places = [(name, entry, entry.findtext("uuid", ""))]
        if entry.findtext("mig_mode/current_mig") == "Enabled":
            places = [(f"{name} MIG", d, next(uuids, "")) for d in entry.iter("mig_device")]
        for title, place, uuid in places:
            total, free = (_mib(place.findtext(f"fb_memory_usage/{x}")) for x in ("total", "free"))
            if total is not None:
                yield Gpu(index, title, total, free, uuid)


def _mib(text: str | None) -> int | None:
    """Bytes of `81559 MiB`; None for anything else."""
    found = re.fullmatch(r"(\d+) MiB", text or "")
    return int(found[1]) * MIB if found else None
