"""How different the answers of a group still are: the largest edit distance between two of them.

Comes in: groups whose answers are all scored. Goes out: distances, by source. Promises: the event
loop computes none of it, a thread does, for at most one group per second, of at most MOST_ANSWERS
answers and MOST_CHARACTERS of each; a group is looked at or not by the hash of its number, so that
runs agree. The work is the coordinator's because it alone sees when a group is whole.
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
"""Share of the groups that are looked at."""
MOST_ANSWERS = 8
MOST_CHARACTERS = 2000
EVERY_S = 1.0
"""Least seconds between two groups."""
_MOST_WAITING = 4


def chosen(key: str, share: float) -> bool:
    """Whether a thing is in a share of all things, by a hash of its name."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def largest_distance(texts: Sequence[str]) -> int:
    """The largest edit distance between two of several texts; 0 where all are one."""
    return max((edit_distance(a, b) for a, b in combinations(set(texts), 2)), default=0)


class GroupDiversity:
    """Groups that wait to be looked at. `decode` turns token ids into text; `tell` is called with
    a source and a distance."""

    def __init__(
        self, decode: Callable[[Int32], str], tell: Callable[[str, int], None], *, seed: int
    ) -> None:
        self._decode, self._tell, self._seed = decode, tell, seed
        self._waiting: deque[tuple[str, list[str]]] = deque(maxlen=_MOST_WAITING)
        self._next = 0.0

    def add(self, source: str, members: Sequence[Trajectory]) -> None:
        """A group may have its last score; it is taken where that is so and chance says so."""
        if len(members) < 2 or not chosen(f"{self._seed}/{members[0].group_id}", GROUP_SHARE):
            return
        if any(not t.ended or (t.complete and t.reward_status is None) for t in members):
            return
        answers = [t for t in members if t.complete][:MOST_ANSWERS]
        if len(answers) > 1:
            texts = [self._decode(t.sampled_tokens()[:MOST_CHARACTERS]) for t in answers]
            self._waiting.append((source, [text[:MOST_CHARACTERS] for text in texts]))

    async def measure(self) -> None:
        """Look at the next group, if one waits and it is time."""
        if not self._waiting or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        source, texts = self._waiting.popleft()
        self._tell(source, await asyncio.to_thread(largest_distance, texts))
