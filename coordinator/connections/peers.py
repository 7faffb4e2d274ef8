"""Connected processes: generators, workers, learner, monitors.

Pure bookkeeping: the last sign of life, the leases, weights and free capacity of each generator,
the seconds it worked and waited, and the requests of each worker. The sum of free capacity, which
the coordinator reads after every message, takes the same time for any number of generators.
"""

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.protocol.messages.control import GeneratorReport, Hello


class GeneratorCapacity:
    """Generator names by the number of trajectories that each could take."""

    def __init__(self) -> None:
        self.total = 0
        self._free: dict[str, int] = {}
        self._names: dict[int, dict[str, None]] = {}
        """Names by free capacity, in the order in which they reached it."""
        self._idle: set[str] = set()

    def set(self, name: str, free: int, *, idle: bool) -> None:
        """Set a generator's number of free trajectories; `idle`: it holds none."""
        if self._free.get(name) != free:
            self._forget(name)
            self._free[name] = free
            self.total += free
            self._names.setdefault(free, {})[name] = None
        (self._idle.add if idle else self._idle.discard)(name)

    def remove(self, name: str) -> None:
        """Remove a generator, if it is known."""
        self._forget(name)
        self._idle.discard(name)

    def has(self, name: str) -> bool:
        """Return whether this generator has free capacity."""
        return self._free.get(name, 0) > 0

    def most(self) -> str:
        """Return the generator with most free capacity; LookupError where none has any."""
        if self.total == 0:
            raise LookupError("no generator has room")
        return next(iter(self._names[max(self._names)]))

    @property
    def any_idle(self) -> bool:
        """True where a generator holds no trajectory."""
        return bool(self._idle)

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
    """Time of its last Welcome (time.monotonic)."""


@dataclass
class GeneratorPeer(Peer):
    """A generator: the leases it holds, the version it samples from.

    Its methods make all changes of its free capacity, so that `room`, which all generators share,
    is always up to date.

    Attributes:
        tested: it has passed its self-test, or has none to pass. live: trajectory ids. noticed:
        announced versions that it has not answered for. not_loaded_at: time at which it could not
        load the newest version (time.monotonic). leases_until: lease ids below it have been sent to
        this generator, or never will be. moved: leases that others got while it was silent.
    """

    tested: bool = True
    room: GeneratorCapacity = field(default_factory=GeneratorCapacity)
    live: set[int] = field(default_factory=set)
    loaded: int = -1
    noticed: set[int] = field(default_factory=set)
    not_loaded_at: float | None = None
    report: GeneratorReport | None = None
    leases_until: int = -1
    moved: set[int] = field(default_factory=set)

    @property
    def free(self) -> int:
        """Number of trajectories that it could take now."""
        return max(0, self.hello.capacity - len(self.live)) if self.tested else 0

    def update_hello(self, hello: Hello) -> None:
        """Take over a new Hello of the same process."""
        self.hello = hello
        self._update_room()

    def passed(self) -> None:
        """Mark its self-test as passed."""
        self.tested = True
        self._update_room()

    def add_lease(self, trajectory_id: int) -> None:
        """Add a lease on a trajectory."""
        self.live.add(trajectory_id)
        self._update_room()

    def drop_lease(self, trajectory_id: int) -> None:
        """Remove its lease on a trajectory, if it has one."""
        self.live.discard(trajectory_id)
        self._update_room()

    def _update_room(self) -> None:
        self.room.set(self.hello.name, self.free, idle=not self.live)


class ScoreKey(NamedTuple):
    """Key of a request to a reward source: for a trajectory, its lines or its group."""

    trajectory_id: int
    source: str


@dataclass
class RewardPeer(Peer):
    """A reward worker and the requests that it is scoring, and how many they are by source."""

    scoring: set[ScoreKey] = field(default_factory=set)
    in_flight: Counter[str] = field(default_factory=Counter)
    auditing: set[int] = field(default_factory=set)
    """Ids of trajectories that it scores for the audit."""

    def asked(self, key: ScoreKey) -> None:
        """Note a request that is sent."""
        self.in_flight[key.source] += key not in self.scoring
        self.scoring.add(key)

    def answered(self, key: ScoreKey) -> None:
        """Note that a request has its answer."""
        self.scoring.remove(key)
        self.in_flight[key.source] -= 1


@dataclass
class EnvironmentPeer(Peer):
    """An environment worker.

    Attributes:
        asked: turns in flight, by trajectory. knows: episodes that it has been asked about. ended:
        those of them that have ended, to be sent.
    """

    asked: dict[int, int] = field(default_factory=dict)
    knows: set[int] = field(default_factory=set)
    ended: list[int] = field(default_factory=list)


@dataclass
class Peers:
    """All connected processes, by name."""

    generators: dict[str, GeneratorPeer] = field(default_factory=dict)
    rewards: dict[str, RewardPeer] = field(default_factory=dict)
    environments: dict[str, EnvironmentPeer] = field(default_factory=dict)
    learner: Peer | None = None
    monitors: dict[str, Peer] = field(default_factory=dict)
    identities: dict[str, str] = field(default_factory=dict)
    """Socket identities that speak for the processes, by name."""
    room: GeneratorCapacity = field(default_factory=GeneratorCapacity)
    """Free capacity of all generators."""

    @property
    def capacity(self) -> int:
        """Maximum number of trajectories that all generators hold at a time."""
        return sum(generator.hello.capacity for generator in self.generators.values())

    def join(self, hello: Hello, *, tested: bool) -> None:
        """Add a new generator."""
        generator = GeneratorPeer(hello, tested=tested, room=self.room)
        self.generators[hello.name] = generator
        generator.update_hello(hello)

    def leave(self, name: str) -> GeneratorPeer | None:
        """Remove a generator, if it is known, and return it."""
        generator = self.generators.pop(name, None)
        if generator is not None:
            self.room.remove(name)
            # References to it that remain must not change the capacity of the others.
            generator.room = GeneratorCapacity()
        return generator

    def of(self, name: str, identity: str) -> Peer | None:
        """Return the peer of that name, if this is its socket."""
        return self.find(name) if self.identities.get(name) == identity else None

    def find(self, name: str) -> Peer | None:
        """Return the peer of that name."""
        if self.learner and self.learner.hello.name == name:
            return self.learner
        return (
            self.generators.get(name)
            or self.rewards.get(name)
            or self.environments.get(name)
            or self.monitors.get(name)
        )

    def everyone(self) -> list[tuple[str, Peer]]:
        """Return the names and peers of all connected processes."""
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
        """Leave a time in which this process did not listen out of every peer's silence."""
        now = time.monotonic()
        for _, peer in self.everyone():
            peer.last_seen = min(now, peer.last_seen + seconds)

    def heard(self) -> dict[str, float]:
        """Return the seconds since each process but monitors was heard, by name."""
        now = time.monotonic()
        return {
            name: now - peer.last_seen
            for name, peer in self.everyone()
            if name not in self.monitors
        }

    def silent(self, timeout_s: float) -> list[tuple[str, Peer]]:
        """Return the processes that were not heard for `timeout_s`, with their names."""
        now = time.monotonic()
        return [pair for pair in self.everyone() if now - pair[1].last_seen > timeout_s]
