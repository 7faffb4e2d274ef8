"""Tuning of a comparison's arms, by the same procedure with as many runs for each.

In: the arms' grids, and rows of runs on tuning seeds, which no table shows. Out: for each arm its
best point, or the point to be run next. Nothing is copied by hand: the comparison reads it here.

The procedure is one pass over the arm's coordinates (its `Grid`), in their order. At each of them
the alternatives are run with all other coordinates at the best so far, and the best of them and of
the present value is adopted. An alternative that is no better than the present value on the first
seed is not run on the others: it cannot be adopted. Points are compared by the comparison's score.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.kit.arms import Arm, Row, is_missing, key, row_of
from benchmarks.kit.study_file import Grid, Point

Score = tuple[float, ...]
"""Less is better, the first number before the second."""
PointScore = Callable[[Point, Sequence[int]], Score | None]
"""Score of a point by its runs on these seeds; None while one of them is missing."""


class TuningRun(NamedTuple):
    """A run that tuning needs next."""

    point: Point
    seed: int


@dataclass(frozen=True, slots=True)
class TuningProgress:
    """Progress of an arm's tuning; no `missing` run: it is over."""

    tried: tuple[Point, ...]
    best: Point
    missing: TuningRun | None


class TuningPoint(NamedTuple):
    """A point that was run, with its rows; `best`: it is the arm's best."""

    mode: str
    point: Point
    rows: Sequence[Row]
    best: bool


def walk(grid: Grid, seeds: Sequence[int], known: PointScore) -> TuningProgress:
    """Follow the pass as far as `known` has scores of its points."""

    def next_run(point: Point) -> TuningRun | None:
        lacking = (TuningRun(point, seed) for seed in seeds if known(point, [seed]) is None)
        return next(lacking, None)

    best: Point = grid.start
    tried = [best]
    if missing := next_run(best):
        return TuningProgress(tuple(tried), best, missing)
    for name, values in grid.alternatives.items():
        found, bar = [best], known(best, seeds[:1]) or ()
        for value in values:
            point = {**best, name: value}
            tried.append(point)
            first = known(point, seeds[:1])
            if first is not None and first >= bar:
                continue
            if missing := next_run(point):
                return TuningProgress(tuple(tried), best, missing)
            found.append(point)
        best = min(found, key=lambda point: known(point, seeds) or ())
    return TuningProgress(tuple(tried), best, None)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Tuning of arms by the existing rows.

    `arm` returns that of a mode at a point; `score` rates a point by its runs, one per seed."""

    grids: Mapping[str, Grid]
    arm: Callable[[str, Point], Arm]
    score: Callable[[Sequence[Row]], Score]
    seeds: Sequence[int]
    rows: Mapping[str, Row]

    def walk(self, mode: str) -> TuningProgress:
        """Return the progress of the arm's tuning."""

        def known(point: Point, seeds: Sequence[int]) -> Score | None:
            if any(is_missing(name, self.rows) for name in self._keys(mode, point, seeds)):
                return None
            return self.score(self._found(mode, point, seeds))

        return walk(self.grids[mode], self.seeds, known)

    def best(self, mode: str) -> Point:
        """Return the arm's best point; until its tuning is over, the first one."""
        found = self.walk(mode)
        return found.best if found.missing is None else self.grids[mode].start

    def is_fair(self, modes: Sequence[str], seeds: Sequence[int]) -> bool:
        """Return whether all these arms are tuned, equally, on none of these seeds."""
        walks = [self.walk(mode) for mode in modes]
        return (
            bool(walks)
            and all(one.missing is None for one in walks)
            and len({len(one.tried) for one in walks}) == 1
            and not set(seeds) & set(self.seeds)
        )

    def tried(self, modes: Sequence[str]) -> Iterator[TuningPoint]:
        """Yield every point of these arms that was run."""
        for mode in modes:
            found = self.walk(mode)
            for point in found.tried:
                if rows := self._found(mode, point, self.seeds):
                    over = found.missing is None
                    yield TuningPoint(mode, point, rows, best=over and point == found.best)

    def _keys(self, mode: str, point: Point, seeds: Sequence[int]) -> list[str]:
        arm = self.arm(mode, point)
        return [key(arm, seed) for seed in seeds]

    def _found(self, mode: str, point: Point, seeds: Sequence[int]) -> list[Row]:
        found = (row_of(name, self.rows) for name in self._keys(mode, point, seeds))
        return [row for row in found if row is not None]


def point_text(point: Point) -> str:
    shown = {name: v if isinstance(v, str) else f"{v:g}" for name, v in point.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())
