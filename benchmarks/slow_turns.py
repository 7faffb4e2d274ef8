"""What a journal says of a stream whose rewards are slow in every second turn.

In: a run's records. Out: `Turn`s in pairs, one instant and one slow. Times are the coordinator's: a
slot is free from the arrival of an answer's last chunk to the next lease.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.slow_source import TURN_S, slow_at
from headrace.errors import RunFailedError
from headrace.protocol.records import (
    ChunkArrived,
    LeaseIssued,
    RewardArrived,
    TrajectoryEnded,
    UpdateCommitted,
)

SETTLE_S = 1.0
"""A turn's first second is not measured: scores of the turn before are still to come."""


@dataclass(frozen=True)
class Turn:
    """What a stream did in a turn, `SETTLE_S` at its beginning apart."""

    slow: bool
    tokens_per_s: float
    """Generated, and accepted by the coordinator."""
    answers_per_s: float
    longest_free_s: float
    """The longest time from the end of an answer to the next one in its slot."""
    most_unscored: int
    """Most answers that had ended and had no score."""


@dataclass(frozen=True)
class Stream:
    """Turns in pairs, (instant, slow), and tokens trained a second over all of them."""

    pairs: list[tuple[Turn, Turn]]
    trained_per_s: float


def longest_free(
    ended: Iterable[float], leased: Iterable[float], slots: int, start: float, end: float
) -> float:
    """The longest that a slot was free between `start` and `end`, slots being filled in the order
    in which they became free. Before their first lease they do not count."""
    free: deque[float | None] = deque([None] * slots)
    longest = 0.0
    for at, taken in _in_order(leased, ended, end):
        if not taken:
            free.append(at)
        elif (since := free.popleft()) is not None and at >= start:
            longest = max(longest, at - max(since, start))
    return max([longest, *(end - max(at, start) for at in free if at is not None)])


def most_open(began: Iterable[float], ended: Iterable[float], start: float, end: float) -> int:
    """Most things that had begun and not ended, at any time between `start` and `end`."""
    now, most = 0, 0
    for at, begins in _in_order(began, ended, end):
        if at > start:
            most = max(most, now)
        now += 1 if begins else -1
    return max(most, now)


def _in_order(
    these: Iterable[float], others: Iterable[float], end: float
) -> list[tuple[float, bool]]:
    """Times up to `end`, and whether each is of these; of the same time others come first."""
    events = [*((at, True) for at in these), *((at, False) for at in others)]
    return sorted(event for event in events if event[0] <= end)


def read_turns(records: Sequence[object], pairs: int, *, slots: int) -> Stream:
    """What a journal says of the first so many pairs. RunFailedError where an answer got no score
    or the run was too short."""
    lost = [r for r in records if isinstance(r, RewardArrived) and r.status != "ok"]
    if lost:
        raise RunFailedError(f"an answer was not scored: {lost[0].status}, {lost[0].error}")
    commits = [r for r in records if isinstance(r, UpdateCommitted)]
    if len(commits) < 2:
        raise RunFailedError("the stream trained nothing")
    first = math.ceil(commits[0].at / TURN_S)
    # What follows the last update but one may be the run's end.
    whole = (int(commits[-2].at // TURN_S) - first) // 2
    if whole < pairs:
        raise RunFailedError(f"the stream lasted for {whole} pairs of turns, not for {pairs}")
    turns = [_turn(records, (first + n) * TURN_S, slots) for n in range(2 * pairs)]
    seconds = commits[-2].at - commits[0].at
    return Stream(
        [(b, a) if a.slow else (a, b) for a, b in zip(turns[::2], turns[1::2], strict=True)],
        (commits[-2].trained_tokens - commits[0].trained_tokens) / seconds,
    )


def _turn(records: Sequence[object], began: float, slots: int) -> Turn:
    start, end = began + SETTLE_S, began + TURN_S
    chunks = [r for r in records if isinstance(r, ChunkArrived)]
    last = [c.at for c in chunks if c.finish is not None]
    leased = [r.at for r in records if isinstance(r, LeaseIssued)]
    ended = [r.at for r in records if isinstance(r, TrajectoryEnded)]
    scored = [r.at for r in records if isinstance(r, RewardArrived)]
    return Turn(
        slow=slow_at(began),
        tokens_per_s=sum(c.token_ids.size for c in chunks if start < c.at <= end) / (end - start),
        answers_per_s=sum(start < at <= end for at in ended) / (end - start),
        longest_free_s=longest_free(last, leased, slots, start, end),
        most_unscored=most_open(ended, scored, start, end),
    )
