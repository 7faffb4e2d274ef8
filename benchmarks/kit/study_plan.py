"""Plans of a study's runs, with each tuned arm at the best of its own points.

In: a study's file (`benchmarks.kit.study_file`) and the rows of its tuning. Out: `Study`. Nothing
is copied by hand: a comparison reads the best points from the rows. Nothing is run.
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from benchmarks.kit import study_file
from benchmarks.kit.arms import Arm, Row
from benchmarks.kit.rows import RESULTS, ResultFile, read_rows
from benchmarks.kit.study_file import Point, StudyFile, StudyPart, Variant, filled, value_of
from benchmarks.kit.time_to_target import crossing, curve
from benchmarks.kit.tuning import Tuning

Plan = list[tuple[Arm, int, int]]
"""(arm, seed, place in the seed's order)."""


@dataclass(frozen=True)
class Study:
    """A study of `headrace bench NAME`, in a `setting`; `folder`: of its rows."""

    name: str
    file: StudyFile
    setting: str | None = None
    folder: Path = RESULTS

    @classmethod
    def load(cls, name: str, setting: str | None = None) -> Self:
        """Load the study of this name. UserError for a mistake in its file."""
        return cls(name, study_file.load(study_file.FOLDER / f"{name}.toml", setting), setting)

    def path(self, part: str | None = None) -> Path:
        """Return the path of the checked-in rows of the study or a part of it."""
        if self.setting is None:
            name = self.name if part is None else f"{self.name}_{part}"
        else:
            name = f"{part or self.name}_{self.setting}"
        return self.folder / f"{name.replace('-', '_')}.jsonl"

    # -- arms --------------------------------------------------------------------------------------

    def arm(self, mode: str, point: Point | None = None, *, tuned: bool = False) -> Arm:
        """Return an arm at a point (default: its best); `tuned`: with tuning's overrides."""
        table, file = self.file.arms[mode], self.file
        if point is None:
            point = self.best(mode)
        tuning = file.tuning.overrides if file.tuning else ()
        overrides = (*file.overrides, *(tuning if tuned else file.shown), *table.overrides)
        name = f"{self.setting}/{mode}" if self.setting else mode
        return Arm(name, table.recipe or file.recipe, self._filled(overrides, point))

    def _filled(self, overrides: Sequence[str], point: Point) -> tuple[str, ...]:
        known = {**self.file.variables, **point}
        return tuple(filled(one, known) for one in self.file.expanded(overrides))

    def best(self, mode: str) -> Point:
        """Return the best point of a tuned arm; until its tuning is over, the first one."""
        return self.tuning().best(mode) if self.file.arms[mode].grid else {}

    def tuning(self, rows: ResultFile | None = None) -> Tuning:
        """Return the tuning of the arms by the existing rows."""
        file = self.file
        grids = {mode: file.grids[arm.grid] for mode, arm in file.arms.items() if arm.grid}
        return Tuning(
            grids,
            arm=lambda mode, point: self.arm(mode, point, tuned=True),
            score=lambda found: score(found, target=self.target),
            seeds=file.tuning.seeds if file.tuning else (),
            rows=read_rows(self.path("tuning")) if rows is None else rows.rows,
        )

    @property
    def target(self) -> float:
        """The target accuracy of tuning; 0 where nothing is tuned."""
        return self.file.tuning.target or 0.0 if self.file.tuning else 0.0

    # -- plans -------------------------------------------------------------------------------------

    def plan(self, arms: Collection[str], seeds: Sequence[int]) -> Plan:
        """Return the runs of these arms on these seeds, in order."""
        return self._ordered([self.arm(mode) for mode in self.file.arms if mode in arms], seeds)

    def part(self, name: str) -> dict[str, tuple[Variant, Arm]]:
        """Return the arms of a part by label: `OF, NAME`."""
        part = self.file.parts[name]
        found = {}
        for variant in part.arms:
            label = f"{variant.of}, {filled(variant.name, self.file.variables)}"
            found[label] = (variant, self._variant(part, variant, label))
        return found

    def _variant(self, part: StudyPart, variant: Variant, label: str) -> Arm:
        grid = self.file.arms[variant.of].grid
        start: Point = self.file.grids[grid].start if variant.start and grid else {}
        own = start or self.best(variant.of)
        known = {**self.file.variables, **own}
        point = {**own, **{name: value_of(f, known) for name, f in variant.point.items()}}
        arm = self.arm(variant.of, point, tuned=part.tuned)
        more = self._filled((*part.overrides, *variant.overrides), point)
        name = f"{self.setting}/{label}" if self.setting else label
        return replace(arm, name=name, overrides=(*arm.overrides, *more))

    def part_plan(self, name: str) -> Plan:
        return self._ordered(
            [arm for _, arm in self.part(name).values()], self.file.parts[name].seeds
        )

    def _ordered(self, arms: Sequence[Arm], seeds: Sequence[int]) -> Plan:
        if self.file.drawn:
            return in_drawn_order(arms, seeds)
        return [(arm, seed, place) for seed in seeds for place, arm in enumerate(arms)]


def in_drawn_order(arms: Sequence[Arm], seeds: Sequence[int]) -> Plan:
    """Plan arms seed by seed, in an order drawn for every two seeds.

    It depends on them alone; the odd one takes it backwards, so that no arm is always early."""
    plan: Plan = []
    for seed in seeds:
        names = sorted({arm.name for arm in arms})
        random.Random(seed // 2).shuffle(names)
        turn = sorted(arms, key=lambda arm: names.index(arm.name), reverse=bool(seed % 2))
        plan += [(arm, seed, place) for place, arm in enumerate(turn)]
    return plan


def score(rows: Sequence[Row], *, target: float) -> tuple[float, float, float]:
    """Score a point: uncrossed runs, mean seconds (inf: failed), -final accuracy.

    Uncrossed runs count to their last commit, by which recorded tunings were decided. Without a
    target (0) the final accuracy alone."""
    missed, seconds, final = 0, 0.0, 0.0
    for row in rows:
        if target:
            crossed = crossing(curve(row), target)
            missed += crossed is None
            seconds += crossed.at if crossed else row.get("train_time_s", float("inf"))
        final += row.get("final", 0.0)
    return missed, seconds / len(rows), -final / len(rows)
