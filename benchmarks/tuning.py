"""The best setting of each arm of the race, found by the same procedure with as many runs for each.

In: rows of runs on tuning seeds, which no table shows. Out: for each arm its best point, or the
point that is to be run next. Nothing is copied by hand: the race asks here.

The procedure is one pass over the arm's coordinates (`benchmarks.race_settings.GRIDS`), in their
order. At each of them the alternatives are run with all other coordinates at the best so far, and
the best of them and of the present value is taken over. A point is better when more of its runs
cross the setting's tuning target, then when they take fewer seconds on average, then when they end
higher; a run that failed is worse than any other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import tries
from benchmarks.crossings import crossing
from benchmarks.race_settings import GRIDS, ONE, Grid, Point, Setting, arm_of
from benchmarks.study import Row, key

Score = tuple[float, float, float]
"""Less is better: runs that never crossed, mean seconds, final accuracy with its sign turned."""
Known = Callable[[Point], Score | None]


@dataclass(frozen=True, slots=True)
class Walk:
    """How far tuning is: all points in their order, the best of them so far, and the one to run
    next, None when it is over."""

    tried: tuple[Point, ...]
    best: Point
    missing: Point | None


def walk(grid: Grid, known: Known) -> Walk:
    """Follow the pass as far as `known` says how good its points are."""
    best, tried = grid.start, [grid.start]
    if known(best) is None:
        return Walk(tuple(tried), best, best)
    for name, values in grid.alternatives:
        found = [best]
        for value in values:
            point = {**best, name: value}
            tried.append(point)
            if known(point) is None:
                return Walk(tuple(tried), best, point)
            found.append(point)
        best = min(found, key=lambda point: known(point) or ())
    return Walk(tuple(tried), best, None)


def score(rows: Sequence[Row], target: float) -> Score:
    """How good a point is by its runs, one a tuning seed."""
    missed, seconds, final = 0, 0.0, 0.0
    for row in rows:
        points = [(at, accuracy) for _, at, accuracy, _ in row.get("evaluations", ())]
        crossed = crossing(points, target) if points else None
        missed += crossed is None
        seconds += crossed.at if crossed else row.get("train_time_s", float("inf"))
        final += row.get("final", 0.0)
    return missed, seconds / len(rows), -final / len(rows)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Tuning of a setting's arms by the rows there are. `engine`: that of the arms in turns."""

    setting: Setting
    rows: Mapping[str, Row]
    engine: str = ONE

    def walk(self, mode: str) -> Walk:
        """How far the arm is."""

        def known(point: Point) -> Score | None:
            keys = self.keys(mode, point)
            if any(tries.is_missing(name, self.rows) for name in keys):
                return None
            found = [row for name in keys if (row := tries.row_of(name, self.rows)) is not None]
            return score(found, self.setting.tuning_target)

        return walk(GRIDS[mode], known)

    def keys(self, mode: str, point: Point) -> list[str]:
        """Keys of the point's runs."""
        arm = arm_of(self.setting, mode, point, engine=self.engine, tuning=True)
        return [key(arm, seed) for seed in self.setting.tuning_seeds]

    def best(self, mode: str) -> Point:
        """The arm's best point; where its tuning is not over, the one where it begins."""
        found = self.walk(mode)
        return found.best if found.missing is None else GRIDS[mode].start

    def is_fair(self, modes: Sequence[str], seeds: Sequence[int]) -> bool:
        """Whether all of these arms are tuned, each with as many runs, on none of these seeds."""
        walks = [self.walk(mode) for mode in modes]
        return (
            bool(walks)
            and all(one.missing is None for one in walks)
            and len({len(one.tried) for one in walks}) == 1
            and not set(seeds) & set(self.setting.tuning_seeds)
        )

    def table(self, modes: Sequence[str]) -> list[dict[str, Any]]:
        """One line a point that was run: arm, point, score, whether it is the arm's best."""
        lines = []
        for mode in modes:
            found = self.walk(mode)
            for point in found.tried:
                keys = self.keys(mode, point)
                rows = [row for name in keys if (row := tries.row_of(name, self.rows)) is not None]
                if rows:
                    missed, seconds, final = score(rows, self.setting.tuning_target)
                    lines.append(
                        {
                            "arm": mode,
                            "point": dict(point),
                            "crossed": len(rows) - int(missed),
                            "seconds": seconds,
                            "final": -final,
                            "best": found.missing is None and point == found.best,
                        }
                    )
        return lines


def words(point: Point) -> str:
    """A point in words."""
    return ", ".join(f"{name} {value:g}" for name, value in point.items())
