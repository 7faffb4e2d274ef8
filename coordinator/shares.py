"""Which tokens are left out of training, by the length of their response: shows whether age limits
drop long responses more often than short ones.

Comes in: windows that were trained or left out, and why, with the length of their response so far.
Goes out: for each tenth of the responses, shortest first, the share of tokens left out for their
age, the share masked for another reason, and the mean length. Promise: filtered groups and tokens
spent on a warm-up do not count, because their length is not why they are left out.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

DECILES = 10


class DropShares:
    """Counts since the last update."""

    def __init__(self) -> None:
        self._length: dict[int, int] = {}
        self._trained: Counter[int] = Counter()
        self._stale: Counter[int] = Counter()
        self._masked: Counter[int] = Counter()

    def add(
        self, trajectory_id: int, length: int, *, trained: int, left_out: Mapping[str, int]
    ) -> None:
        """A window of a response with `length` tokens so far; `left_out` has tokens by reason."""
        stale = left_out.get("stale", 0)
        self._length[trajectory_id] = max(length, self._length.get(trajectory_id, 0))
        self._trained[trajectory_id] += trained
        self._stale[trajectory_id] += stale
        self._masked[trajectory_id] += sum(left_out.values()) - stale

    def take(self) -> dict[str, list[float | None]]:
        """Metrics of what was added, which is then forgotten; None for a tenth without tokens."""
        order = sorted(self._length, key=lambda i: (self._length[i], i))
        drops: list[float | None] = [None] * DECILES
        masks, sizes = drops.copy(), drops.copy()
        for decile, members in enumerate(np.array_split(np.array(order, np.int64), DECILES)):
            ids = members.tolist()
            trained, stale, masked = (
                sum(counts[i] for i in ids) for counts in (self._trained, self._stale, self._masked)
            )
            if tokens := trained + stale + masked:
                lengths = [self._length[i] for i in ids]
                drops[decile] = stale / tokens
                masks[decile] = masked / tokens
                sizes[decile] = sum(lengths) / len(lengths)
        for counts in (self._length, self._trained, self._stale, self._masked):
            counts.clear()
        named = {
            "staleness/drop_share": drops,
            "staleness/mask_share": masks,
            "staleness/length": sizes,
        }
        return named if any(size is not None for size in sizes) else {}
