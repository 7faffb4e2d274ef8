"""Checks of a stretch of a sequence as it came in.

In: where the stretch begins, its size, its spans and streams. Out: what is wrong with it, or None.
Promise: a stretch without a problem can be appended, journaled, projected and trained: its pieces
leave no gap, its version spans cover exactly the tokens that the policy sampled, and every run and
point lies inside it.
"""

import math
from collections.abc import Iterable, Sequence

from headrace.protocol.token_spans import PLAIN, Span, Streams

_UNCOVERED = "version spans do not cover the sampled tokens"


def stretch_problem(
    start: int, size: int, spans: Sequence[Span], streams: Streams | None
) -> str | None:
    """Return what is wrong with positions [start, start + size), in words, or None."""
    end = start + size
    if streams is None and len(spans) == 1 and size:
        # Nearly all there is: one answer under one version.
        whole = (spans[0].start, spans[0].end) == (start, end)
        return None if whole else _UNCOVERED
    streams = streams or PLAIN
    if streams.step is not None:
        return "a generator speaks for an environment"
    sampled = [(start, end)] if size else []
    if streams.pieces:
        runs = [(piece.start, piece.end) for piece in streams.pieces]
        if not _cover(runs, start, end):
            return "pieces do not cover the tokens"
        sampled = [(p.start, p.end) for p in streams.pieces if p.source == "policy"]
    covered = _joined((span.start, span.end) for span in spans)
    if covered is None or covered != _joined(sampled):
        return _UNCOVERED
    inside = [(run.start, run.end) for run in streams.weights]
    inside += [(run.start, run.end) for run in streams.coefficients]
    inside += [(run.start, run.end) for run in streams.marks]
    if any(not start <= first < last <= end for first, last in inside):
        return "a run of a stream lies outside the tokens"
    if any(not start <= reward.position < end for reward in streams.rewards):
        return "a reward lies outside the tokens"
    if any(not (math.isfinite(w.value) and w.value >= 0) for w in streams.weights):
        return "a loss weight is negative or not finite"
    values = [r.value for r in streams.rewards] + [c.value for c in streams.coefficients]
    if not all(map(math.isfinite, values)):
        return "a reward or coefficient is not finite"
    return None


def _cover(runs: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    """Return whether the runs, none of them empty, go from start to end without a gap."""
    for first, last in runs:
        if first != start or last <= first:
            return False
        start = last
    return start == end


def _joined(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]] | None:
    """Runs joined where they touch; None where one is empty or begins before the last one ended."""
    joined: list[tuple[int, int]] = []
    for first, last in runs:
        if last <= first or (joined and first < joined[-1][1]):
            return None
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined
