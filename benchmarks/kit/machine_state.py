"""Whose processor time a measurement saw: its own by role, that of others, and what was stolen.

In: a `MachineWatch` around a measurement, and which process is which role (`roles_in`, from the
supervisor's own account). Out: a `MachineState` for the row. Looks at /proc about once a second;
figures are those of Linux, and nothing is known elsewhere.

How it counts. Own: the tree of processes below the one that watches, itself included. A child that
ended is counted with its parent's figure from waiting for it, or with its last sample if that is
more (nobody may have waited). A role has the processes and threads below its own process, so that
an engine of a generator's is the generator's. Others: the processors' busy time less all own time.
Interrupts are nobody's. Steal is time that a virtual machine's host kept back; it is listed apart,
because no process of this machine caused it.
"""

import json
import os
import threading
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import psutil

DISTURBED_CORES = 0.05
"""A measurement beside which others took more than so much of a core is not a clean one."""
EVERY_S = 1.0
REST = "benchmark"
"""Own processes that belong to no role: the benchmark itself and the run's supervisor."""


ProcessKey = tuple[int, float]
"""A process: its pid and when it was born, so that a pid that is used again is another one."""


class CpuSeconds(NamedTuple):
    """Processor seconds of a process: its own, and of its children that it waited for."""

    own: float
    waited: float


class MachineSample(NamedTuple):
    """The machine at one time: seconds since the epoch; busy (user, nice and system time) and
    stolen seconds of all processors together; own seconds of the whole tree."""

    at: float
    busy: float
    stolen: float
    own: float


@dataclass
class ProcessTree:
    """Processes below a root, as far as they were ever seen; the root has no parent."""

    used: dict[ProcessKey, CpuSeconds] = field(default_factory=dict)
    parent: dict[ProcessKey, ProcessKey | None] = field(default_factory=dict)
    alive: set[ProcessKey] = field(default_factory=set)

    def see(
        self,
        found: Mapping[ProcessKey, CpuSeconds],
        parents: Mapping[ProcessKey, ProcessKey | None],
    ) -> None:
        """All processes of the tree that live now. A parent is the one that was there first: an
        orphan stays where it was born."""
        for process, used in found.items():
            self.used[process] = used
            self.parent.setdefault(process, parents.get(process))
        self.alive = set(found)

    def seconds(self, names: Mapping[int, str] | None = None) -> dict[str, float]:
        """Seconds by role: each process counts for the nearest one of `names` (by pid) at or above
        it, for `REST` where there is none."""
        names = names or {}
        children: dict[ProcessKey | None, list[ProcessKey]] = {}
        for process, parent in self.parent.items():
            children.setdefault(parent, []).append(process)
        total: dict[str, float] = {}

        def count(process: ProcessKey, above: str) -> float:
            """Adds up the process and all below it; returns how much that is."""
            name = names.get(process[0], above)
            below = {child: count(child, name) for child in children.get(process, ())}
            gone = sum(sum_ for child, sum_ in below.items() if child not in self.alive)
            # What it waited for and no look saw: it was too short, or ran on after the last one.
            unseen = max(0.0, self.used[process].waited - gone)
            total[name] = total.get(name, 0.0) + self.used[process].own + unseen
            return self.used[process].own + unseen + sum(below.values())

        for root in children.get(None, ()):
            count(root, REST)
        return total


@dataclass(frozen=True, slots=True)
class MachineState:
    """What a row says of the machine while it was measured. Shares are in cores: 1.0 is one core
    for the whole time. `cpu_s`: processor seconds of each role."""

    wall_s: float
    others_cpu_share: float
    steal_share: float
    cpu_s: dict[str, float]

    @property
    def disturbed(self) -> bool:
        """Whether others took more than `DISTURBED_CORES`."""
        return self.others_cpu_share > DISTURBED_CORES

    def as_row(self) -> dict[str, Any]:
        """The fields of a row."""
        return {
            "wall_s": round(self.wall_s, 2),
            "others_cpu_share": round(self.others_cpu_share, 4),
            "steal_share": round(self.steal_share, 4),
            "disturbed": self.disturbed,
            "cpu_s": {name: round(s, 2) for name, s in sorted(self.cpu_s.items())},
        }


class MachineWatch:
    """Looks at the machine from entry to exit: `with MachineWatch() as watch: ...; watch.state(roles)`.
    `root`: the process whose tree is one's own, this one where nothing is said."""

    def __init__(self, root: int | None = None, *, every_s: float = EVERY_S) -> None:
        self._root, self._every_s = psutil.Process(root or os.getpid()), every_s
        self._tree = ProcessTree()
        self._known: dict[ProcessKey, psutil.Process] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True, name="machine-state")
        self.looks: list[MachineSample] = []
        self._first: ProcessTree | None = None

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def state(self, roles: Mapping[int, str]) -> MachineState:
        """The figures, once the watch is over; `roles`: names by pid."""
        first, last = self.looks[0], self.looks[-1]
        wall = last.at - first.at
        before = self._first.seconds(roles) if self._first else {}
        cpu = self._tree.seconds(roles)
        return MachineState(
            wall_s=wall,
            others_cpu_share=max(0.0, last.busy - first.busy - (last.own - first.own)) / wall,
            steal_share=(last.stolen - first.stolen) / wall,
            cpu_s={name: max(0.0, s - before.get(name, 0.0)) for name, s in cpu.items()},
        )

    def own_between(self, start: float, end: float) -> float:
        """Own processor seconds between two times (since the epoch), linear between looks."""
        times, own = [look.at for look in self.looks], [look.own for look in self.looks]
        before, after = np.interp((start, end), times, own)
        return float(after - before)

    def _go_on(self) -> None:
        while not self._over.wait(self._every_s):
            self._look()

    def _look(self) -> None:
        # Own processes first: what they use until the machine is read counts as others' time, and
        # is a thousandth of a second a look.
        found: dict[ProcessKey, CpuSeconds] = {}
        parents: dict[ProcessKey, ProcessKey | None] = {}
        for process in self._processes():
            try:
                with process.oneshot():
                    times, above = process.cpu_times(), process.ppid()
                    key = (process.pid, process.create_time())
            except psutil.NoSuchProcess:
                continue
            found[key] = CpuSeconds(
                times.user + times.system, times.children_user + times.children_system
            )
            self._known[key] = process
            # One whose parent ended between two looks is the root's.
            born_of = next((one for one in found if one[0] == above), next(iter(found)))
            parents[key] = born_of if process != self._root else None
        self._known = {key: process for key, process in self._known.items() if key in found}
        self._tree.see(found, parents)
        if self._first is None:
            self._first = deepcopy(self._tree)
        busy, stolen = _processors()
        own = sum(self._tree.seconds().values())
        self.looks.append(MachineSample(time.time(), busy, stolen, own))

    def _processes(self) -> list[psutil.Process]:
        """The tree as it is, parents first, and orphans of it that still live."""
        below = [self._root, *self._root.children(recursive=True)]
        orphans = [p for p in self._known.values() if p not in below and p.is_running()]
        return [*below, *orphans]


def _processors() -> tuple[float, float]:
    """(busy, stolen) seconds of all processors since they started."""
    times = psutil.cpu_times()
    # On Linux `user` holds what guests used; irq and softirq are left out.
    busy = times.user + times.nice + times.system
    return busy, getattr(times, "steal", 0.0)


def roles_in(run_dir: Path) -> dict[int, str]:
    """Names by pid of all processes that the run's supervisor started, restarts included."""
    path = run_dir / "supervisor.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return {row["pid"]: row["name"] for row in rows if row["event"] in ("started", "restarted")}
