"""Leases in force, holds, and the trajectories that wait for a lease.

In: the records as they are applied, and the coordinator's messages to generators. Out: the lease of
a trajectory, those of a generator, the trajectories that wait, the number of windows in generation.
After a replay `restore` takes the leases that the records name as being in force, and makes every
other unfinished trajectory wait for a new one. Every event costs constant time (a logarithm of the
waiting trajectories).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from headrace.protocol.records import record_types as r
from headrace.trajectory.account import Account


@dataclass
class GrantedLease:
    """A lease in force, in `training` or not; `holding`: it was asked to end."""

    lease_id: int
    generator: str
    training: bool
    holding: bool = False


@dataclass
class WaitingQueue:
    """Trajectories that wait, to be popped oldest first."""

    waits: set[int] = field(default_factory=set)
    _heap: list[int] = field(default_factory=list)
    """Heap of `waits`; may hold some that wait no longer."""

    def add(self, trajectory_id: int) -> None:
        """Let a trajectory wait."""
        if trajectory_id not in self.waits:
            self.waits.add(trajectory_id)
            heappush(self._heap, trajectory_id)

    def pop(self) -> int | None:
        """Pop the oldest that still waits; None where none does."""
        while self._heap:
            trajectory_id = heappop(self._heap)
            if trajectory_id in self.waits:
                self.waits.discard(trajectory_id)
                return trajectory_id
        return None


@dataclass
class LeaseTable:
    """Leases in force, and the trajectories that wait for one.

    Attributes:
        given: by trajectory. paused: those that wait for their environment. open: training
        trajectories that are inside a window, or may begin one: these windows count in the
        staleness bound as being generated. inside, border, evaluation: those that wait inside a
        window, at a border, to be evaluated.
    """

    account: Account
    given: dict[int, GrantedLease] = field(default_factory=dict)
    paused: set[int] = field(default_factory=set)
    open: set[int] = field(default_factory=set)
    _training: int = 0
    """Number of leases of training trajectories."""
    _by_generator: dict[str, set[int]] = field(default_factory=dict)
    """Trajectories by generator."""
    inside: WaitingQueue = field(default_factory=WaitingQueue)
    border: WaitingQueue = field(default_factory=WaitingQueue)
    evaluation: WaitingQueue = field(default_factory=WaitingQueue)

    # -- records ----------------------------------------------------------------------------------

    def restore(self, given: Mapping[int, tuple[int, str]]) -> None:
        """After a replay, put leases (id and generator) by trajectory into force.

        Every other unfinished trajectory waits for one."""
        for key, (lease_id, generator) in given.items():
            self.give(key, lease_id, generator)
        for trajectory in self.account.trajectories.values():
            if not trajectory.ended and trajectory.trajectory_id not in self.given:
                self._wait(trajectory.trajectory_id)

    def apply(self, record: r.Record) -> None:
        """Follow a record that was applied to the account."""
        match record:
            case r.GroupIssued():
                for trajectory_id in record.trajectory_ids:
                    self._wait(trajectory_id)
            case r.LeaseIssued():
                self._put(record.trajectory_id, record.lease_id, record.generator)
            case r.ChunkArrived(trajectory_id=key):
                if record.finish is not None:
                    self.release(key)
                elif record.streams is not None and record.streams.step is not None:
                    self._wait(key)
                elif self._is_inside(key):
                    self.open.add(key)
            case r.WindowsClosed():
                # To the border of a complete window, or into the next one.
                for key in (window.trajectory_id for window in record.windows):
                    self.open.discard(key)
                    if self._is_inside(key):
                        self.open.add(key)
                    if key in self.inside.waits:
                        self._wait(key)
            case r.TrajectoryEnded(trajectory_id=key):
                self.release(key)
                self.open.discard(key)
                self._leave_queue(key)
            case r.EvaluationDone():
                # A branch may be open still when its origin has ended.
                self.paused.intersection_update(self.account.trajectories)
                self.evaluation.waits.intersection_update(self.account.trajectories)

    # -- leases -----------------------------------------------------------------------------------

    def give(self, trajectory_id: int, lease_id: int, generator: str) -> None:
        """Put an earlier lease into force again; its trajectory has or begins a window."""
        self._put(trajectory_id, lease_id, generator)
        if self.given[trajectory_id].training:
            self.open.add(trajectory_id)

    def _put(self, trajectory_id: int, lease_id: int, generator: str) -> None:
        self._leave_queue(trajectory_id)
        training = self.account.trajectories[trajectory_id].purpose == "train"
        before = self.given.get(trajectory_id)
        self._training += training - (before is not None and before.training)
        self.given[trajectory_id] = GrantedLease(lease_id, generator, training)
        self._by_generator.setdefault(generator, set()).add(trajectory_id)

    def release(self, trajectory_id: int) -> None:
        """End the lease; an unfinished trajectory waits for the next."""
        lease = self.given.pop(trajectory_id, None)
        if lease is not None:
            self._training -= lease.training
            self._by_generator[lease.generator].discard(trajectory_id)
        trajectory = self.account.trajectories.get(trajectory_id)
        if trajectory is not None and not trajectory.ended:
            self._wait(trajectory_id)

    def release_all(self, generator: str) -> None:
        """End all leases of a generator that is gone."""
        for trajectory_id in list(self._by_generator.get(generator, ())):
            self.release(trajectory_id)
        self._by_generator.pop(generator, None)

    def held_by(self, generator: str) -> list[int]:
        """Return the trajectories whose lease a generator has."""
        return sorted(self._by_generator.get(generator, ()))

    def holders(self) -> set[str]:
        """Return the generators that have leases."""
        return {name for name, held in self._by_generator.items() if held}

    def of(self, trajectory_id: int) -> GrantedLease | None:
        """Return the lease in force, if there is one."""
        return self.given.get(trajectory_id)

    def training(self) -> Iterator[tuple[int, GrantedLease]]:
        """Iterate over the leases of training trajectories."""
        return ((key, given) for key, given in self.given.items() if given.training)

    def live(self) -> int:
        """Return the number of training trajectories that have a lease."""
        return self._training

    # -- waiting ----------------------------------------------------------------------------------

    def _is_inside(self, trajectory_id: int) -> bool:
        trajectory = self.account.trajectories[trajectory_id]
        return trajectory.purpose == "train" and trajectory.open_tokens > 0

    def _wait(self, trajectory_id: int) -> None:
        """Let an unfinished trajectory wait for a lease, or for its environment first."""
        if self._is_inside(trajectory_id):
            self.open.add(trajectory_id)
        if self.account.trajectories[trajectory_id].paused:
            self.paused.add(trajectory_id)
            return
        self.paused.discard(trajectory_id)
        if self.account.trajectories[trajectory_id].purpose != "train":
            self.evaluation.add(trajectory_id)
        elif trajectory_id in self.open:
            self.border.waits.discard(trajectory_id)
            self.inside.add(trajectory_id)
        else:
            self.inside.waits.discard(trajectory_id)
            self.border.add(trajectory_id)

    def _leave_queue(self, trajectory_id: int) -> None:
        for queue in (self.inside, self.border, self.evaluation):
            queue.waits.discard(trajectory_id)
        self.paused.discard(trajectory_id)

    def may_begin(self, trajectory_id: int) -> None:
        """Count a window of this trajectory as being generated."""
        self.open.add(trajectory_id)
        if trajectory_id in self.border.waits:
            self._wait(trajectory_id)

    def put_back(self, trajectory_ids: Iterable[int]) -> None:
        """Let trajectories that get no lease after all wait again."""
        for trajectory_id in trajectory_ids:
            self._wait(trajectory_id)
