"""Who is connected: generators, reward workers, the learner, monitors.

Pure bookkeeping: last sign of life, what each generator holds and has loaded, and how much room it
has, what each worker is scoring, and the seconds each said it worked and waited. No answer about
room takes longer the more generators there are: a coordinator asks after every message.
"""

import heapq
import math
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.protocol.messages.control import GeneratorReport, Hello


class GeneratorCapacity:
    """Names by how many trajectories each could take."""

    def __init__(self) -> None:
        self.total = 0
        self._free: dict[str, int] = {}
        self._names: dict[int, dict[str, None]] = {}
        """By room, in the order in which they came to it."""
        self._sizes: list[int] = []
        """A heap of what `_names` has, largest (negated) first, and of some that it had."""
        self._idle: set[str] = set()

    def set(self, name: str, free: int, *, idle: bool) -> None:
        """A generator could take `free` (0 or more); `idle`: it holds nothing."""
        if self._free.get(name) != free:
            self._forget(name)
            self._free[name] = free
            self.total += free
            if free not in self._names:
                self._names[free] = {}
                self._add_size(free)
            self._names[free][name] = None
        (self._idle.add if idle else self._idle.discard)(name)

    def remove(self, name: str) -> None:
        """A generator is gone, if it was there."""
        self._forget(name)
        self._idle.discard(name)

    def has(self, name: str) -> bool:
        """Whether this one has room."""
        return self._free.get(name, 0) > 0

    def most(self) -> str:
        """Who could take most. LookupError: nobody has room."""
        if self.total == 0:
            raise LookupError("no generator has room")
        while -self._sizes[0] not in self._names:
            heapq.heappop(self._sizes)
        return next(iter(self._names[-self._sizes[0]]))

    @property
    def any_idle(self) -> bool:
        """Whether a generator holds nothing."""
        return bool(self._idle)

    def _add_size(self, free: int) -> None:
        heapq.heappush(self._sizes, -free)
        if len(self._sizes) > 2 * len(self._names) + 8:
            self._sizes = [-size for size in self._names]
            heapq.heapify(self._sizes)

    def _forget(self, name: str) -> None:
        free = self._free.pop(name, None)
        if free is None:
            return
        self.total -= free
        del self._names[free][name]
        if not self._names[free]:
            del self._names[free]


@dataclass
class Peer:
    """One connected process."""

    hello: Hello
    last_seen: float = field(default_factory=time.monotonic)
    welcomed: float = -math.inf
    """When it was last sent a Welcome."""

    def welcomed_within(self, seconds: float) -> bool:
        """Whether its Welcome is so new."""
        return time.monotonic() - self.welcomed < seconds


@dataclass
class GeneratorPeer(Peer):
    """A generator: the leases it holds, the version it samples from.

    What changes how many trajectories it could take goes through its methods, so that `room`, which
    all generators share, always knows.
    """

    tested: bool = True
    """It has passed its self-test, or has none to pass."""
    room: GeneratorCapacity = field(default_factory=GeneratorCapacity)
    live: set[int] = field(default_factory=set)
    """Trajectory ids."""
    loaded: int = -1
    noticed: set[int] = field(default_factory=set)
    """Versions it was given notice of and has not answered for."""
    not_loaded_at: float | None = None
    """When it said that it could not load the newest version."""
    report: GeneratorReport | None = None
    leases_until: int = -1
    """Its leases below this id have been sent to it, or never will be."""
    moved: set[int] = field(default_factory=set)
    """Leases that it had and that were given to others while it was silent."""

    @property
    def pending(self) -> int:
        """Tokens that it had sampled and not sent at its last report."""
        return self.report.pending_tokens if self.report else 0

    @property
    def free(self) -> int:
        """Trajectories it could take now."""
        return max(0, self.hello.capacity - len(self.live)) if self.tested else 0

    def says(self, hello: Hello) -> None:
        """It said Hello again."""
        self.hello = hello
        self._tell()

    def passed(self) -> None:
        """It has passed its self-test."""
        self.tested = True
        self._tell()

    def add_lease(self, trajectory_id: int) -> None:
        """It has a lease on a trajectory."""
        self.live.add(trajectory_id)
        self._tell()

    def drop_lease(self, trajectory_id: int) -> None:
        """It has none any more, if it had one."""
        self.live.discard(trajectory_id)
        self._tell()

    def _tell(self) -> None:
        self.room.set(self.hello.name, self.free, idle=not self.live)


class ScoreKey(NamedTuple):
    """What a source is asked about: a trajectory, its lines, or its group."""

    trajectory_id: int
    source: str


@dataclass
class RewardPeer(Peer):
    """A reward worker and what it is scoring."""

    scoring: set[ScoreKey] = field(default_factory=set)
    auditing: set[int] = field(default_factory=set)
    """Trajectories that it scores for the audit."""


@dataclass
class EnvironmentPeer(Peer):
    """An environment worker.

    Attributes:
        asked: by trajectory, the turn in question. knows: episodes that it has been asked about.
        ended: those of them that have ended, to be sent.
    """

    asked: dict[int, int] = field(default_factory=dict)
    knows: set[int] = field(default_factory=set)
    ended: list[int] = field(default_factory=list)


@dataclass
class Peers:
    """All of them, by name."""

    generators: dict[str, GeneratorPeer] = field(default_factory=dict)
    rewards: dict[str, RewardPeer] = field(default_factory=dict)
    environments: dict[str, EnvironmentPeer] = field(default_factory=dict)
    learner: Peer | None = None
    monitors: dict[str, Peer] = field(default_factory=dict)
    identities: dict[str, str] = field(default_factory=dict)
    """By name, the identity of the socket that speaks for the process."""
    room: GeneratorCapacity = field(default_factory=GeneratorCapacity)
    """Of the generators."""

    @property
    def capacity(self) -> int:
        """Trajectories that all generators hold at a time."""
        return sum(generator.hello.capacity for generator in self.generators.values())

    def join(self, hello: Hello, *, tested: bool) -> None:
        """A generator is new."""
        generator = GeneratorPeer(hello, tested=tested, room=self.room)
        self.generators[hello.name] = generator
        generator.says(hello)

    def leave(self, name: str) -> GeneratorPeer | None:
        """A generator is gone, if it was there."""
        generator = self.generators.pop(name, None)
        if generator is not None:
            self.room.remove(name)
            generator.room = (
                GeneratorCapacity()
            )  # Whoever still knows it says nothing of the others' room.
        return generator

    def of(self, name: str, identity: str) -> Peer | None:
        """The peer of that name, if this is its socket."""
        return self.find(name) if self.identities.get(name) == identity else None

    def find(self, name: str) -> Peer | None:
        """The peer of that name."""
        if self.learner and self.learner.hello.name == name:
            return self.learner
        return (
            self.generators.get(name)
            or self.rewards.get(name)
            or self.environments.get(name)
            or self.monitors.get(name)
        )

    def everyone(self) -> list[tuple[str, Peer]]:
        """All peers."""
        pairs: list[tuple[str, Peer]] = [
            *self.generators.items(),
            *self.rewards.items(),
            *self.environments.items(),
            *self.monitors.items(),
        ]
        if self.learner:
            pairs.append((self.learner.hello.name, self.learner))
        return pairs

    def excuse(self, seconds: float) -> None:
        """Nobody was listened to for so long: that time is nobody's silence."""
        now = time.monotonic()
        for _, peer in self.everyone():
            peer.last_seen = min(now, peer.last_seen + seconds)

    def heard(self) -> dict[str, float]:
        """Seconds since each process was heard; monitors come and go."""
        now = time.monotonic()
        return {
            name: now - peer.last_seen
            for name, peer in self.everyone()
            if name not in self.monitors
        }

    def silent(self, timeout_s: float) -> list[str]:
        """Names of those who were not heard for so long."""
        now = time.monotonic()
        return [name for name, peer in self.everyone() if now - peer.last_seen > timeout_s]
