"""The best setting of each arm of a comparison, by the same procedure with as many runs for each.

In: the arms' grids, and rows of runs on tuning seeds, which no table shows. Out: for each arm its
best point, or the point that is to be run next. Nothing is copied by hand: the comparison asks
here.

The procedure is one pass over the arm's coordinates (its `Grid`), in their order. At each of them
the alternatives are run with all other coordinates at the best so far, and the best of them and of
the present value is taken over. An alternative that is no better than the present value on the
first seed is not run on the others: it cannot be taken over. Which point is better, the
comparison's score says.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.kit.arms import Arm, Row, is_missing, key, row_of
from benchmarks.kit.study_file import Grid, Point

Score = tuple[float, ...]
"""Less is better, the first number before the second."""
PointScore = Callable[[Point, Sequence[int]], Score | None]
"""How good a point is by its runs on these seeds; None while one of them is missing."""


class TuningRun(NamedTuple):
    """A run that tuning asks for."""

    point: Point
    seed: int


@dataclass(frozen=True, slots=True)
class TuningProgress:
    """How far tuning is: all points in their order, the best of them so far, and the run that comes
    next, None when it is over."""

    tried: tuple[Point, ...]
    best: Point
    missing: TuningRun | None


class TuningPoint(NamedTuple):
    """A point that was run: its rows, and whether it is the arm's best."""

    mode: str
    point: Point
    rows: Sequence[Row]
    best: bool


def walk(grid: Grid, seeds: Sequence[int], known: PointScore) -> TuningProgress:
    """Follow the pass as far as `known` says how good its points are."""

    def next_run(point: Point) -> TuningRun | None:
        for seed in seeds:
            if known(point, [seed]) is None:
                return TuningRun(point, seed)
        return None

    def in_full(point: Point) -> Score:
        return known(point, seeds) or ()

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
        best = min(found, key=in_full)
    return TuningProgress(tuple(tried), best, None)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Tuning of arms by the rows there are. `arm` makes that of a mode at a point of its grid;
    `score` says how good a point is by its runs, one for each of `seeds`."""

    grids: Mapping[str, Grid]
    arm: Callable[[str, Point], Arm]
    score: Callable[[Sequence[Row]], Score]
    seeds: Sequence[int]
    rows: Mapping[str, Row]

    def walk(self, mode: str) -> TuningProgress:
        """How far the arm is."""

        def known(point: Point, seeds: Sequence[int]) -> Score | None:
            if any(is_missing(name, self.rows) for name in self._keys(mode, point, seeds)):
                return None
            return self.score(self._found(mode, point, seeds))

        return walk(self.grids[mode], self.seeds, known)

    def best(self, mode: str) -> Point:
        """The arm's best point; where its tuning is not over, the one where it begins."""
        found = self.walk(mode)
        return found.best if found.missing is None else self.grids[mode].start

    def is_fair(self, modes: Sequence[str], seeds: Sequence[int]) -> bool:
        """Whether all of these arms are tuned, each with as many points, on none of these seeds."""
        walks = [self.walk(mode) for mode in modes]
        return (
            bool(walks)
            and all(one.missing is None for one in walks)
            and len({len(one.tried) for one in walks}) == 1
            and not set(seeds) & set(self.seeds)
        )

    def tried(self, modes: Sequence[str]) -> Iterator[TuningPoint]:
        """Every point of these arms that was run."""
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


def words(point: Point) -> str:
    """A point in words."""
    return ", ".join(f"{name} {value:g}" for name, value in point.items())
