"""Weight versions and their age.

A version is a number that is given out once and never again, whatever dies. The age of a token is
counted in updates on the surviving lineage: how many updates that changed the policy lie between
the weights that sampled it and the weights that will be trained, published or not. After a rollback
to update u the versions of the lineage that was given up are as old as u is: that is where they and
the surviving weights part.
"""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.protocol.streams import Span

KEPT = 1024
"""So many of the newest versions are always known."""


@dataclass
class Versions:
    """Which update each version is from.

    Attributes:
        issued: the highest number given out; -1 before the first.
        current: the version published last; -1 before the first.
    """

    issued: int = -1
    current: int = -1
    _update_of: dict[int, int] = field(default_factory=dict)
    _known: list[int] = field(default_factory=list)
    """Keys of `_update_of`, ascending."""
    _still: list[int] = field(default_factory=list)
    """Updates of this lineage that left the policy as it was, ascending."""

    def issue(self, version: int) -> None:
        """The number is given out."""
        self.issued = max(self.issued, version)

    def publish(self, version: int, update: int) -> None:
        """The weights after `update` have this version from now on."""
        self.issue(version)
        self.current = version
        if version not in self._update_of:
            insort(self._known, version)
        self._update_of[version] = update

    def keep(self, update: int) -> None:
        """The update trained the value model alone, or was broken off: the policy's weights after
        it are still those after the update before."""
        self._still.append(update)

    def roll_back(self, update: int) -> None:
        """The learner went back to the state after `update`."""
        self._update_of = {v: min(u, update) for v, u in self._update_of.items()}
        self._still = [u for u in self._still if u <= update]

    def forget(self, before: int) -> None:
        """No token in memory is of an older version. Those that a slow generator may still sample
        from are kept."""
        keep = bisect_left(self._known, min(before, self.current - KEPT))
        for version in self._known[:keep]:
            del self._update_of[version]
        self._known = self._known[keep:]

    def knows(self, version: int) -> bool:
        """Whether the version was published, and is not so old that it was let go."""
        return version in self._update_of

    def _changes(self, update: int) -> int:
        """How many of the updates up to this one changed the policy."""
        return update - bisect_right(self._still, update)

    def age(self, version: int, update: int) -> int:
        """How many changes of the policy its weights after `update` are ahead of a version."""
        return self._changes(update) - self._changes(self._update_of[version])

    def ages(self, spans: list[Span], start: int, end: int, update: int) -> npt.NDArray[np.int64]:
        """[end - start] the age of each token's weights at `update`; 0 where no span says who
        sampled it."""
        ages = np.zeros(end - start, np.int64)
        for span in spans:
            ages[span.start - start : span.end - start] = self.age(span.version, update)
        return ages

    def oldest_allowed(self, update: int, max_age: int) -> int:
        """The oldest version of at most this age at `update`; the current one if none is: what an
        older version samples is older than that."""
        # Later versions are never older: a rollback brings all that came before it to one age.
        place = bisect_left(self._known, -max_age, key=lambda v: -self.age(v, update))
        return self._known[place] if place < len(self._known) else max(self.current, 0)
