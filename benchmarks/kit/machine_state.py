"""Processor time during a measurement: own by role, of others, and stolen.

In: a `MachineWatch` around a measurement, and the roles of processes (`roles_in`, by the
supervisor's own log). Out: the fields of the row. Reads /proc about once a second; figures
are those of Linux, and unknown elsewhere.

How it counts. Own: the tree of processes below the one that watches, itself included. A child that
ended is counted with its parent's figure from waiting for it, or with its last sample if that is
more (its parent may not have waited). A role has the processes and threads below its own process,
so that an engine of a generator's is the generator's. Others: the processors' busy time less all
own time. Interrupts count for none. Steal is time that a virtual machine's host kept back; it is
listed apart, because no process of this machine caused it.
"""

import contextlib
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import psutil

from storage.queries.processes import supervisor_events

DISTURBED_CORES = 0.05
"""Cores used by others beyond which a measurement counts as disturbed."""
EVERY_S = 1.0
REST = "benchmark"
"""Role of the benchmark itself, the supervisor, and others without a role."""
ProcessKey = tuple[int, float]
"""A process: its pid and its start time, so that a reused pid is another process."""


class CpuTime(NamedTuple):
    """Processor seconds of a process: its own, and of its children that it waited for."""

    own: float
    waited: float


class MachineSample(NamedTuple):
    """Processor times at one moment: `at`, in seconds since the epoch.

    Busy (user, nice, system) and stolen seconds of all processors; own seconds of the tree."""

    at: float
    busy: float
    stolen: float
    own: float


@dataclass
class ProcessTree:
    """Processes below a root that were ever sampled; the root has no parent."""

    used: dict[ProcessKey, CpuTime] = field(default_factory=dict)
    parent: dict[ProcessKey, ProcessKey | None] = field(default_factory=dict)
    alive: set[ProcessKey] = field(default_factory=set)

    def record_processes(
        self, found: Mapping[ProcessKey, CpuTime], parents: Mapping[ProcessKey, ProcessKey | None]
    ) -> None:
        """Record the tree's live processes; an orphan keeps its first parent."""
        for process, used in found.items():
            self.used[process] = used
            self.parent.setdefault(process, parents.get(process))
        self.alive = set(found)

    def seconds(self, names: Mapping[int, str] | None = None) -> dict[str, float]:
        """Sum the seconds by role.

        Each process counts for the nearest of `names` (by pid) at or above it, else for `REST`."""
        names = names or {}
        children: dict[ProcessKey | None, list[ProcessKey]] = {}
        for process, parent in self.parent.items():
            children.setdefault(parent, []).append(process)
        total: dict[str, float] = {}

        def count(process: ProcessKey, above: str) -> float:
            """Add up the process and all below it; return their seconds."""
            name = names.get(process[0], above)
            below = {child: count(child, name) for child in children.get(process, ())}
            gone = sum(sum_ for child, sum_ in below.items() if child not in self.alive)
            # Children that no sample has: they were too short, or ran on after the last one.
            unseen = max(0.0, self.used[process].waited - gone)
            total[name] = total.get(name, 0.0) + self.used[process].own + unseen
            return self.used[process].own + unseen + sum(below.values())

        for root in children.get(None, ()):
            count(root, REST)
        return total


class MachineWatch:
    """Sampler of the machine's processor times from entry to exit; see `state`."""

    def __init__(self, *, every_s: float = EVERY_S) -> None:
        self._root, self._every_s = psutil.Process(), every_s
        self._tree = ProcessTree()
        self._known: dict[ProcessKey, psutil.Process] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True, name="machine-state")
        self.samples: list[MachineSample] = []
        self._first = ProcessTree()

    def __enter__(self) -> Self:
        self._sample()
        self._first = deepcopy(self._tree)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        self._sample()

    def state(self, roles: Mapping[int, str]) -> dict[str, Any]:
        """Return a row's fields, once the watch is over; `roles`: names by pid.

        Shares are in cores: 1.0 is one core for the whole time. `cpu_s`: processor seconds by role;
        `disturbed`: others took more than `DISTURBED_CORES`."""
        first, last = self.samples[0], self.samples[-1]
        wall = last.at - first.at
        before = self._first.seconds(roles)
        cpu = sorted(self._tree.seconds(roles).items())
        others = max(0.0, last.busy - first.busy - (last.own - first.own)) / wall
        return {
            "wall_s": round(wall, 2),
            "others_cpu_share": round(others, 4),
            "steal_share": round((last.stolen - first.stolen) / wall, 4),
            "disturbed": others > DISTURBED_CORES,
            "cpu_s": {name: round(max(0.0, s - before.get(name, 0.0)), 2) for name, s in cpu},
        }

    def own_between(self, start: float, end: float) -> float:
        """Return own processor seconds between two times, linear between samples."""
        times, own = [one.at for one in self.samples], [one.own for one in self.samples]
        before, after = np.interp((start, end), times, own)
        return float(after - before)

    def _go_on(self) -> None:
        while not self._over.wait(self._every_s):
            self._sample()

    def _sample(self) -> None:
        # Own processes first: what they use until the machine is read counts as others' time, and
        # is a thousandth of a second per sample.
        found: dict[ProcessKey, CpuTime] = {}
        parents: dict[ProcessKey, ProcessKey | None] = {}
        below = [self._root, *self._root.children(recursive=True)]  # parents first
        orphans = [p for p in self._known.values() if p not in below and p.is_running()]
        for process in (*below, *orphans):
            try:
                with process.oneshot():
                    times, above = process.cpu_times(), process.ppid()
                    key = (process.pid, process.create_time())
            except psutil.NoSuchProcess:
                continue
            found[key] = CpuTime(
                times.user + times.system, times.children_user + times.children_system
            )
            self._known[key] = process
            # One whose parent ended between two samples is the root's.
            born_of = next((one for one in found if one[0] == above), next(iter(found)))
            parents[key] = born_of if process != self._root else None
        self._known = {key: process for key, process in self._known.items() if key in found}
        self._tree.record_processes(found, parents)
        whole = psutil.cpu_times()
        # On Linux `user` holds what guests used; irq and softirq are left out.
        busy, stolen = whole.user + whole.nice + whole.system, getattr(whole, "steal", 0.0)
        own = sum(self._tree.seconds().values())
        self.samples.append(MachineSample(time.time(), busy, stolen, own))


def roles_in(run_dir: Path) -> dict[int, str]:
    """Return the names of all processes that the supervisor ever started, by pid."""
    rows = supervisor_events(run_dir)
    return {row["pid"]: row["name"] for row in rows if row["event"] in ("started", "restarted")}


@contextlib.contextmanager
def on_cores(cores: Collection[int]) -> Iterator[None]:
    """Restrict this process, and those started inside, to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
