"""Times to a target accuracy, and their statistics with censored runs.

In: evaluations of runs as (position, accuracy), a position being training seconds, tokens or
processor seconds; or rows, whose evaluations are (version, seconds, accuracy, length). Out:
crossings, means over runs of which some are censored, ratios of two arms with their intervals over
seeds.

- A curve is smoothed by the mean of each point and its two neighbours (its one neighbour at an
  end), and joined linearly. A run crosses where that line first reaches the target.
- A run that never crosses is censored: its time is longer than it ran. Over runs, the estimate of
  Kaplan and Meier (J. Am. Stat. Assoc. 53, 1958) is the share that had not crossed by a time. Its
  area up to the longest time is the restricted mean, which is the plain mean where all crossed, and
  where some did not a lower bound.
- Intervals are paired bootstraps over seeds: a resample draws seeds, and takes both arms of each.
"""

import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

Points = Sequence[tuple[float, float]]
"""(position, accuracy), by position."""
DENSE = 0.1
"""Maximum gap of the evaluations around a crossing, as a share of its time."""
RESAMPLES = 10_000
LEVEL = 0.95


class TimeToTarget(NamedTuple):
    """Time of a crossing, or, where `reached` is False, of a run without one."""

    value: float
    reached: bool


Pair = tuple[TimeToTarget, TimeToTarget]
"""Times of two arms at the same seed."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A run's crossing of the target, at time `at`.

    `place` is its position in the row of evaluations: 2.25 is a quarter of the way from the third
    to the fourth. `gap` is the largest distance of two neighbours among its evaluations."""

    at: float
    place: float
    gap: float

    @property
    def is_dense(self) -> bool:
        """True if evaluations were close enough for a time within a tenth."""
        return self.gap <= DENSE * self.at


def smooth(points: Points) -> list[tuple[float, float]]:
    """Replace each accuracy by the mean of itself and its neighbours."""
    values = [value for _, value in points]
    return [
        (at, statistics.fmean(values[max(0, index - 1) : index + 2]))
        for index, (at, _) in enumerate(points)
    ]


def largest_fall(points: Points, *, until: float = math.inf) -> float:
    """Return smoothed accuracy's largest fall from its best, up to second `until`."""
    line = [value for at, value in smooth(points) if at <= until]
    return max(
        (top - value for top, value in zip(accumulate(line, max), line, strict=True)), default=0.0
    )


def crossing(points: Points, target: float) -> Crossing | None:
    """Return where the smoothed curve first reaches the target; None: it never does."""
    line = smooth(points)
    for index, (at, value) in enumerate(line):
        before_at, before = line[max(0, index - 1)]
        if value >= target:
            if index == 0:
                return Crossing(at, 0.0, _gap(points[:2]))
            share = (target - before) / (value - before)
            gap = _gap(points[max(0, index - 2) : index + 2])
            return Crossing(before_at + share * (at - before_at), index - 1 + share, gap)
    return None


def _gap(points: Points) -> float:
    """Return the largest distance of two neighbours."""
    return max((after - at for (at, _), (after, _) in pairwise(points)), default=0.0)


def curve(row: Mapping[str, Any]) -> Points:
    """Return a row's accuracy over training seconds; empty where the run failed."""
    return [(seconds, accuracy) for _, seconds, accuracy, _ in row.get("evaluations", ())]


def time_to(row: Mapping[str, Any], target: float) -> TimeToTarget:
    """Return training seconds to the target, or to the last evaluation if it never crossed."""
    return spent_at(row, target, [at for at, _ in curve(row)])


def spent_at(row: Mapping[str, Any], target: float, values: Sequence[float]) -> TimeToTarget:
    """Return the cost up to the target, given `values` of it at each evaluation."""
    found = crossing(curve(row), target)
    if found is None:
        return TimeToTarget(values[-1], False)
    return TimeToTarget(float(np.interp(found.place, np.arange(len(values)), values)), True)


def survival(times: Sequence[TimeToTarget]) -> list[tuple[float, float]]:
    """Kaplan and Meier's (time, share that had not crossed after it) at each crossing.

    A run that ended without one at just that time still counts there."""
    steps: list[tuple[float, float]] = []
    share, there = 1.0, len(times)
    for value, ended in groupby(sorted(times), lambda time: time.value):
        reached = [time.reached for time in ended]
        if any(reached):
            share *= 1.0 - sum(reached) / there
            steps.append((value, share))
        there -= len(reached)
    return steps


def restricted_mean(times: Sequence[TimeToTarget], until: float | None = None) -> float:
    """Return the area under `survival` up to a time, by default the longest of all runs."""
    until = until or max(time.value for time in times)
    steps = [(0.0, 1.0), *(step for step in survival(times) if step[0] < until), (until, 0.0)]
    return sum(share * (after - at) for (at, share), (after, _) in pairwise(steps))


def ratio_of_means(pairs: Iterable[Pair]) -> float:
    """Divide the mean of the first times by that of the second.

    Where runs of a side never crossed, both means are restricted to the time that it was seen."""
    sides = list(zip(*pairs, strict=True))
    censored = [side for side in sides if not all(time.reached for time in side)]
    ends = (max(time.value for time in side) for side in censored or sides)
    until = min(ends) if censored else max(ends)
    over, under = (restricted_mean(side, until) for side in sides)
    return over / under


def quotient(pair: Pair) -> float:
    """Divide the first time by the second, both up to the end of a run that never crossed."""
    seen = min((time.value for time in pair if not time.reached), default=math.inf)
    over, under = (min(time.value, seen) for time in pair)
    return over / under


def ratio_by_log(pairs: Iterable[Pair]) -> float:
    """Return the geometric mean of the pairs' quotients, where every seed counts alike."""
    return statistics.geometric_mean(map(quotient, pairs))


def interval(
    pairs: Mapping[int, Pair], of: Callable[[Iterable[Pair]], float] = ratio_of_means
) -> tuple[float, float] | None:
    """Return a 95 % interval of two arms' ratio, by paired bootstrap over seeds.

    None with fewer than two seeds, too few to resample. The draws are the same every time."""
    if len(pairs) < 2:
        return None
    draw, known = random.Random(0), [pairs[one] for one in sorted(pairs)]
    found = sorted(of(draw.choices(known, k=len(known))) for _ in range(RESAMPLES))
    tail = (1 - LEVEL) / 2
    return found[int(tail * RESAMPLES)], found[math.ceil((1 - tail) * RESAMPLES) - 1]


def compare_times(pairs: Mapping[int, Pair]) -> dict[str, Any]:
    """Compare two arms' times over seeds; empty without seeds.

    `ratio` (of their restricted means) and `log_ratio`, their intervals, those of single seeds;
    `censored`, runs without a crossing, and `censored_sides`, those of each arm."""
    if not pairs:
        return {}
    of_seed = {seed: quotient(pair) for seed, pair in pairs.items()}
    sides = zip(*pairs.values(), strict=True)
    censored = [sum(not time.reached for time in side) for side in sides]
    return {
        "ratio": ratio_of_means(pairs.values()),
        "ratio_min": min(of_seed.values()),
        "ratio_max": max(of_seed.values()),
        "interval": interval(pairs),
        "log_ratio": ratio_by_log(pairs.values()),
        "log_interval": interval(pairs, ratio_by_log),
        "censored": sum(censored),
        "censored_sides": censored,
        "ratio_of_seed": of_seed,
    }


def interval_text(bounds: Sequence[float] | None) -> str:
    """Format as `low to high`; `-` where there are too few seeds."""
    return f"{bounds[0]:.2f} to {bounds[1]:.2f}" if bounds else "-"


def brief_text(found: Mapping[str, Any], kind: str = "") -> str:
    """Format two arms' ratio (`log_`: by log) and its interval; `-` where there is none."""
    if not found:
        return "-"
    return f"{found[f'{kind}ratio']:.2f} ({interval_text(found[f'{kind}interval'])})"


def ratio_text(found: Mapping[str, Any]) -> str:
    """Format two arms' ratio (`compare_times`), its range over seeds, its interval."""
    return (
        f"{found['ratio']:.2f} (seeds {found['ratio_min']:.2f} to "
        f"{found['ratio_max']:.2f}; 95 % interval {interval_text(found['interval'])})"
    )
