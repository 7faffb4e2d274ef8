"""Weight versions and their age.

A version is a number that is given out once and never again, whatever dies. The age of a token is
counted in updates on the surviving lineage: how many updates that changed the policy lie between
the weights that sampled it and the weights that will be trained, published or not. After a rollback
the surviving lineage takes the same batches again, so a version of the lineage that was given up
stands where the update of the same batch stands; before the surviving lineage has come to it, its
age is 0.
"""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.protocol.token_spans import Span

KEPT = 1024
"""Number of newest versions that are always known."""


@dataclass
class Versions:
    """How many changes of the policy each version has behind it.

    Attributes:
        issued: the highest number given out; -1 before the first. current: the version published
        last; -1 before the first.
    """

    issued: int = -1
    current: int = -1
    _changes_of: dict[int, int] = field(default_factory=dict)
    _known: list[int] = field(default_factory=list)
    """Keys of `_changes_of`, ascending."""
    _still: list[int] = field(default_factory=list)
    """Updates of this lineage that left the policy as it was, ascending."""
    _allowed: tuple[tuple[int, int, int], int] = field(default=((-1, -1, -1), 0), compare=False)
    """The last answer of `oldest_allowed`, and to what."""

    def issue(self, version: int) -> None:
        """The number is given out."""
        self.issued = max(self.issued, version)

    def publish(self, version: int, update: int) -> None:
        """The weights after `update` have this version from now on."""
        self.issue(version)
        self.current = version
        if version not in self._changes_of:
            insort(self._known, version)
        self._changes_of[version] = self._changes(update)

    def keep_version(self, update: int) -> None:
        """The update trained the value model alone, or was broken off: the policy's weights after
        it are still those after the update before."""
        self._still.append(update)

    def roll_back(self, update: int) -> None:
        """The learner went back to the state after `update`."""
        self._still = [u for u in self._still if u <= update]

    def forget(self, before: int) -> None:
        """No token in memory is of an older version. Those that a slow generator may still sample
        from are kept."""
        keep = bisect_left(self._known, min(before, self.current - KEPT))
        for version in self._known[:keep]:
            del self._changes_of[version]
        self._known = self._known[keep:]

    def knows(self, version: int) -> bool:
        """Whether the version was published, and is not so old that it was let go."""
        return version in self._changes_of

    def _changes(self, update: int) -> int:
        """How many of the updates up to this one changed the policy."""
        return update - bisect_right(self._still, update)

    def age(self, version: int, update: int) -> int:
        """How many changes of the policy its weights after `update` are ahead of a version."""
        return max(0, self._changes(update) - self._changes_of[version])

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
        asked = update, max_age, self.current
        if self._allowed[0] != asked:
            # After a rollback versions that were given up are younger than some that came later.
            oldest = max(self.current, 0)
            for version in reversed(self._known):
                if self.age(version, update) > max_age:
                    break
                oldest = version
            self._allowed = asked, oldest
        return self._allowed[1]
