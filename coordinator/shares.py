"""Who is left out of training, by length: whether what is dropped for its age is what is long.

Comes in: windows that were trained or left out, with the length of their response so far. Goes out:
for each tenth of the responses, shortest first, the share of tokens left out and the mean length.
Promise: filtered groups and tokens spent on a warm-up do not count; they are no matter of length.
"""

from collections import Counter

import numpy as np

DECILES = 10


class DropShares:
    """Counts since the last update."""

    def __init__(self) -> None:
        self._length: dict[int, int] = {}
        self._trained: Counter[int] = Counter()
        self._left_out: Counter[int] = Counter()

    def add(self, trajectory_id: int, length: int, *, trained: int, left_out: int) -> None:
        """A window of a response with `length` tokens so far."""
        self._length[trajectory_id] = max(length, self._length.get(trajectory_id, 0))
        self._trained[trajectory_id] += trained
        self._left_out[trajectory_id] += left_out

    def take(self) -> dict[str, float]:
        """Metrics of what was added, which is then forgotten."""
        order = sorted(self._length, key=lambda i: (self._length[i], i))
        metrics: dict[str, float] = {}
        for decile, members in enumerate(np.array_split(np.array(order, np.int64), DECILES)):
            ids = members.tolist()
            left_out = sum(self._left_out[i] for i in ids)
            tokens = left_out + sum(self._trained[i] for i in ids)
            if tokens:
                lengths = [self._length[i] for i in ids]
                metrics[f"staleness/drop_share/decile_{decile}"] = left_out / tokens
                metrics[f"staleness/length/decile_{decile}"] = sum(lengths) / len(lengths)
        for counts in (self._length, self._trained, self._left_out):
            counts.clear()
        return metrics
