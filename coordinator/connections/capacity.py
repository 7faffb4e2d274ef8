"""Which generators have room for more, kept as leases come and go.

In: how many trajectories each could take now. Out: the sum, the one that could take most, and
whether any holds none. Promises: no answer takes longer the more generators there are; a
coordinator asks after every message. Of those with equal room the one that has had it longest is
first.
"""

import heapq


class Capacity:
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
