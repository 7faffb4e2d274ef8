"""Memory and CPU seconds of a run's processes by /proc, and their GPU use by NVML.

In: process ids of this host. Out: bytes and seconds, of each process together with all that it
started; GPUs only where NVML is installed. Pages that they share count in each of them; the time of
a process that has ended counts as its parent's, or as it was last measured. Linux only: elsewhere
nothing is known.
"""

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class ProcessSample(NamedTuple):
    """A process: parent, bytes in memory, CPU seconds, and start in the host's ticks.

    The seconds are its own and those of its ended children; the start distinguishes it from a later
    process with its id."""

    parent: int
    resident: int
    cpu_s: float
    began: int


class HostUsage:
    """Memory and CPU seconds of some processes; the run had used `before_s` before.

    Processes older than this one count from their first measurement."""

    def __init__(self, before_s: float = 0.0) -> None:
        self._before_s = before_s
        own = _process(os.getpid())
        self._since = own.began if own else 0
        self._families: dict[int, list[int]] = {}
        self._gpus, self._on_gpu = GpuUsage(), set[int]()
        self._first: dict[tuple[int, int], float] = {}
        self._last: dict[tuple[int, int], float] = {}

    def find(self, roots: Iterable[int]) -> dict[int, int]:
        """Find these processes with all that they started; return live ones' bytes by id."""
        known = _processes(int(folder.name) for folder in _PROC.glob("[0-9]*"))
        self._families = families(roots, known)
        self._count(known)
        return {
            root: sum(known[pid].resident for pid in family)
            for root, family in self._families.items()
        }

    def seconds(self) -> dict[int, float]:
        """Return the CPU seconds of each process last found, with all that it started."""
        return {root: used for (root, _), used in self._last.items() if root in self._families}

    def gpus(self) -> dict[int, float]:
        """Return the number of GPUs that each has kept busy since the last call, if it ever did."""
        busy, known = self._gpus.busy(), self._families.items()
        # Of one that stood still NVML has no sample.
        self._on_gpu |= {root for root, family in known if not busy.keys().isdisjoint(family)}
        return {
            root: sum(busy.get(pid, 0.0) for pid in family)
            for root, family in known
            if root in self._on_gpu
        }

    def cpu_s(self) -> float | None:
        """Return the CPU seconds so far of all processes ever found; None where none was."""
        self._count(_processes(pid for family in self._families.values() for pid in family))
        if not self._last:
            return None
        return self._before_s + sum(last - self._first[key] for key, last in self._last.items())

    def _count(self, known: Mapping[int, ProcessSample]) -> None:
        for root, family in self._families.items():
            if root not in known:
                continue
            key = root, known[root].began
            used = sum(known[pid].cpu_s for pid in family if pid in known)
            self._first.setdefault(key, 0.0 if key[1] >= self._since else used)
            # Never less: a child that has ended and was not waited for takes its seconds along.
            self._last[key] = max(used, self._last.get(key, 0.0))


class GpuUsage:
    """GPU use of the host's processes, as far as NVML shows it."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._seen_us = 0
        with contextlib.suppress(ImportError):
            import pynvml

            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                self._nvml = pynvml

    def busy(self) -> dict[int, float]:
        """Return the number of GPUs that each process has kept busy since the last call."""
        found = defaultdict[int, float](float)
        last = self._seen_us
        for index in range(self._nvml.nvmlDeviceGetCount() if self._nvml else 0):
            samples = defaultdict[int, list[int]](list)
            # It is an error that nobody used a GPU, and that a part of one cannot tell.
            with contextlib.suppress(self._nvml.NVMLError):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                for one in self._nvml.nvmlDeviceGetProcessUtilization(handle, last):
                    samples[one.pid].append(one.smUtil)
                    self._seen_us = max(self._seen_us, one.timeStamp)
            for pid, shares in samples.items():
                found[pid] += sum(shares) / len(shares) / 100
        return found


def families(roots: Iterable[int], table: Mapping[int, ProcessSample]) -> dict[int, list[int]]:
    """Return each root process that lives, with all that it started."""
    children = defaultdict[int, list[int]](list)
    for pid, process in table.items():
        children[process.parent].append(pid)
    found = {}
    for root in roots:
        if root in table:
            found[root] = [root]
            for pid in found[root]:
                found[root] += children[pid]
    return found


def _processes(pids: Iterable[int]) -> dict[int, ProcessSample]:
    return {pid: process for pid in pids if (process := _process(pid)) is not None}


def _process(pid: int) -> ProcessSample | None:
    """Read a process as it is now; None where it is gone."""
    try:
        # A command's name is in brackets and may hold any character.
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = [int(field) for field in text.rpartition(")")[2].split()[1:22]]
    return ProcessSample(fields[0], fields[20] * _PAGE, sum(fields[10:14]) * _TICK_S, fields[18])
