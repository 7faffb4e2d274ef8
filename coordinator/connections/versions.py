"""Weight versions and their age.

A version is a number that is given out once and never again, whatever dies. The age of a token is
the number of updates on the surviving lineage that changed the policy between the weights that
sampled it and the weights that will be trained, published or not. After a rollback the surviving
lineage takes the same batches again, so a version of the abandoned lineage stands where the update
of the same batch stands; before the surviving lineage has come to it, its age is 0.
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
    """Number of policy changes before each version.

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

    def issue(self, version: int) -> None:
        """Give the number out."""
        self.issued = max(self.issued, version)

    def publish(self, version: int, update: int) -> None:
        """Make this the version of the weights after `update`."""
        self.issue(version)
        self.current = version
        if version not in self._changes_of:
            insort(self._known, version)
        self._changes_of[version] = self._changes(update)

    def keep_version(self, update: int) -> None:
        """Note an update that left the policy as it was: broken off, or of values alone."""
        self._still.append(update)

    def roll_back(self, update: int) -> None:
        """Go back with the learner to the state after `update`."""
        self._still = [u for u in self._still if u <= update]

    def forget(self, before: int) -> None:
        """Forget versions before `before`, but not the newest KEPT, for slow generators."""
        keep = bisect_left(self._known, min(before, self.current - KEPT))
        for version in self._known[:keep]:
            del self._changes_of[version]
        self._known = self._known[keep:]

    def knows(self, version: int) -> bool:
        """Return whether the version was published and is not forgotten."""
        return version in self._changes_of

    def _changes(self, update: int) -> int:
        """Return the number of updates up to this one that changed the policy."""
        return update - bisect_right(self._still, update)

    def age(self, version: int, update: int) -> int:
        """Return the number of policy changes from a version to weights after `update`."""
        return max(0, self._changes(update) - self._changes_of[version])

    def ages(self, spans: list[Span], start: int, end: int, update: int) -> npt.NDArray[np.int64]:
        """Return [end - start] ages of tokens' weights at `update`; 0 outside of spans."""
        ages = np.zeros(end - start, np.int64)
        for span in spans:
            ages[span.start - start : span.end - start] = self.age(span.version, update)
        return ages

    def oldest_allowed(self, update: int, max_age: int) -> int:
        """Return the oldest version of at most this age at `update`, or else the current."""
        # After a rollback abandoned versions are younger than some that came later.
        oldest = max(self.current, 0)
        for version in reversed(self._known):
            if self.age(version, update) > max_age:
                break
            oldest = version
        return oldest
