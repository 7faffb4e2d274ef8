"""Diversity of a group's answers: the largest edit distance between two of them.

In: groups whose answers are all scored. Out: distances, by source. Promises: a thread and not the
event loop computes them, for at most one group per second, of at most MOST_ANSWERS answers and
MOST_CHARACTERS of each; the hash of a group's number samples it, so that runs agree. The work is
the coordinator's because it alone knows when a group is whole.
"""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import combinations

from headrace.data.edit_distance import edit_distance
from headrace.protocol.token_spans import Int32
from headrace.trajectory.trajectories import Trajectory

GROUP_SHARE = 0.1
"""Share of the groups that are measured."""
MOST_ANSWERS = 8
MOST_CHARACTERS = 2000
EVERY_S = 1.0
"""Minimum number of seconds between two groups."""
_MOST_WAITING = 4


def chosen(key: str, share: float) -> bool:
    """Return whether a key is in this share of all keys, by its hash."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def largest_distance(texts: Sequence[str]) -> int:
    """Return the largest edit distance between two texts; 0 where all are equal."""
    return max((edit_distance(a, b) for a, b in combinations(set(texts), 2)), default=0)


class GroupDiversity:
    """Queue of groups to measure; `report` is called with a source and a distance."""

    def __init__(
        self, decode: Callable[[Int32], str], report: Callable[[str, int], None], *, seed: int
    ) -> None:
        self._decode, self._report, self._seed = decode, report, seed
        self._waiting: deque[tuple[str, list[str]]] = deque(maxlen=_MOST_WAITING)
        self._next = 0.0

    def add(self, source: str, members: Sequence[Trajectory]) -> None:
        """Queue a group, where it has all its scores and is in the sample."""
        if len(members) < 2 or not chosen(f"{self._seed}/{members[0].group_id}", GROUP_SHARE):
            return
        if any(not t.ended or (t.complete and t.reward_status is None) for t in members):
            return
        answers = [t for t in members if t.complete][:MOST_ANSWERS]
        if len(answers) > 1:
            texts = [self._decode(t.sampled_tokens()[:MOST_CHARACTERS]) for t in answers]
            self._waiting.append((source, [text[:MOST_CHARACTERS] for text in texts]))

    async def measure(self) -> None:
        """Measure the next group, if one waits and it is time."""
        if not self._waiting or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        source, texts = self._waiting.popleft()
        self._report(source, await asyncio.to_thread(largest_distance, texts))
