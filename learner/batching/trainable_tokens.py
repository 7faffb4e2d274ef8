"""Trainable tokens: those that the policy sampled.

Only these have a loss, a value or an advantage. In: sequences, and ranges of their positions, one
per segment (a window or a whole trajectory). Out: `TrainableTokens`, the sampled tokens of all
segments end to end, and the mapping between streams by position and streams by sampled token.
Promise: inserted tokens (a tool's answer, a template) are context of later ones and nothing else.

Legend: T sampled tokens, S segments.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.protocol.messages.batches import BatchSequence
from headrace.protocol.token_spans import Float32
from learner.batching.packing import ranges

Int64 = npt.NDArray[np.int64]
Run = tuple[int, int]


class TokenRange(NamedTuple):
    """Positions [start, end) of a sequence."""

    sequence: int
    start: int
    end: int


def runs_between(sampled: Sequence[Run], start: int, end: int) -> list[Run]:
    """Clip the runs to positions [start, end)."""
    return [(max(a, start), min(b, end)) for a, b in sampled if a < end and b > start]


def count_before(runs: Sequence[Run], position: int) -> int:
    """Count the runs' tokens before a position."""
    return sum(min(b, position) - a for a, b in runs if a < position)


class TrainableTokens:
    """The sampled tokens of some ranges, in flat order.

    Attributes:
        lengths: [S] sampled tokens of each segment. positions: [T] each token's position. segments:
        [T] each token's segment.
    """

    def __init__(self, sequences: Sequence[BatchSequence], stretches: Sequence[TokenRange]) -> None:
        self._runs = [runs_between(sequences[s].sampled, a, b) for s, a, b in stretches]
        bounds = np.array([run for runs in self._runs for run in runs], np.int64).reshape(-1, 2)
        owner = np.repeat(np.arange(len(stretches)), [len(runs) for runs in self._runs])
        first, counts = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
        self.lengths = np.zeros(len(stretches), np.int64)
        np.add.at(self.lengths, owner, counts)
        self._offsets = (np.cumsum(self.lengths) - self.lengths).tolist()
        self.positions = ranges(first, counts)
        self.segments = np.repeat(owner, counts)
        starts, sizes = (
            np.array(x, np.int64)
            for x in ([s.start for s in stretches], [s.end - s.start for s in stretches])
        )
        self._stops = np.cumsum(sizes)
        self._is_dense = int(sizes.sum()) == self.positions.size
        self._places = ranges((self._stops - sizes - starts)[owner] + first, counts)

    def pick(self, dense: Sequence[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
        """[T] the sampled tokens' values, of streams with one for each position."""
        joined = np.concatenate([np.zeros(0, dtype), *dense]).astype(dtype, copy=False)
        if joined.size != (self._stops[-1] if self._stops.size else 0):
            raise ValueError("a stream has not one value for each position of its segment")
        return joined if self._is_dense else joined[self._places]

    def spread(self, flat: Float32) -> list[Float32]:
        """Split a stream [T] into an array per segment, NaN where nothing was sampled."""
        dense = flat
        if not self._is_dense:
            dense = np.full(self._stops[-1], np.nan, np.float32)
            dense[self._places] = flat
        return np.split(dense, self._stops[:-1]) if self._stops.size else []

    def earner(self, segment: int, position: int) -> int | None:
        """The token of a segment that earned a reward at a position.

        The last one sampled there or before; None where that is in an earlier segment."""
        before = count_before(self._runs[segment], position + 1)
        return self._offsets[segment] + before - 1 if before else None

    def between(self, segment: int, start: int, end: int) -> slice:
        """The tokens of a segment that were sampled at positions [start, end)."""
        runs, offset = self._runs[segment], self._offsets[segment]
        return slice(offset + count_before(runs, start), offset + count_before(runs, end))
