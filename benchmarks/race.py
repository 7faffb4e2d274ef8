"""Runs of a comparison, one at a time: which are missing, in which order, what becomes of them.

In: arms and seeds, and the files of rows. Out: rows. Promises: the order of the arms is drawn, from
the seed alone, and a row says its `place`; a run that others disturbed is run
again (`benchmarks.tries`); a run that fails in tuning is a row too, for a setting that cannot run
is a bad setting; whatever is interrupted goes on where it stopped.

`Track`, `in_drawn_order`, `tune` and `listing` are any comparison's; `Race` is that of T-PPO
against PPO. Of two of its points the better one is that of which more runs cross the setting's
tuning target, then which takes fewer seconds on average, then which ends higher; a run that failed
is worse than any other.
"""

import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import tries
from benchmarks.arm_run import run_arm
from benchmarks.crossings import crossing, curve
from benchmarks.race_settings import ENGINES, GRIDS, ONE, Point, Setting, arm_of, factors
from benchmarks.rows import RESULTS, Rows, read_rows
from benchmarks.study_plan import Arm, Row, key, rows_of
from benchmarks.study_table import line_of
from benchmarks.tuning import Tuning, words
from headrace.errors import RunFailedError

Plan = list[tuple[Arm, int, int]]
"""(arm, seed, place in the seed's order)."""
Measure = Callable[..., Row]
"""Makes one run, as `benchmarks.arm_run.run_arm` does."""
GENERATOR_REPEATS = 3
FACTOR_SEEDS = 3


def in_drawn_order(arms: Sequence[Arm], seeds: Sequence[int]) -> Plan:
    """All arms of a seed before the next seed. An order is drawn for every two seeds, from them
    alone; the odd one takes it backwards, so that no arm is always early by chance."""
    plan: Plan = []
    for seed in seeds:
        names = sorted({arm.name for arm in arms})
        random.Random(seed // 2).shuffle(names)
        turn = sorted(arms, key=lambda arm: names.index(arm.name), reverse=bool(seed % 2))
        plan += [(arm, seed, place) for place, arm in enumerate(turn)]
    return plan


@dataclass
class Track:
    """Where runs go. `keep`: their folders, else they are removed. `study`: whose rows they are."""

    rows: Rows
    keep: Path | None = None
    study: str = "tppo-vs-ppo"
    measure: Measure = field(default_factory=lambda: run_arm)

    def run(self, arm: Arm, seed: int, *, place: int = 0, keep_failures: bool = False) -> None:
        """Run until there is a row that counts. RunFailedError when a run ends badly, unless its
        failure is to be kept."""
        name = key(arm, seed)
        while tries.is_missing(name, self.rows.rows):
            row: Row = {"study": self.study, "place": place}
            try:
                with tempfile.TemporaryDirectory(prefix="headrace-race-") as scratch:
                    root = self.keep or Path(scratch)
                    row |= self.measure(arm, seed, root, remove=self.keep is None)
            except RunFailedError as error:
                if not keep_failures:
                    raise
                self.rows.add(
                    name, {**row, "arm": arm.name, "seed": seed, "failed": str(error)[-500:]}
                )
                print(f"{arm.name} seed {seed}: failed", flush=True)
                return
            row = self.rows.add(tries.new_key(name, self.rows.rows, row), row)
            print(line_of(row), flush=True)

    def run_all(self, plan: Plan) -> list[str]:
        """Run what is missing of the plan; the failures in words."""
        failed = []
        for arm, seed, place in plan:
            try:
                self.run(arm, seed, place=place)
            except RunFailedError as error:
                failed.append(f"{arm.name} seed {seed}: {error}")
                print(f"failed: {failed[-1]}", file=sys.stderr, flush=True)
        return failed


def tune(tuning: Tuning, track: Track, modes: Sequence[str]) -> None:
    """Run what tuning lacks: one run of each arm in turn, so that an interrupted tuning has as much
    of each."""
    left = list(modes)
    while left:
        for mode in list(left):
            missing = tuning.walk(mode).missing
            if missing is None:
                left.remove(mode)
                continue
            print(f"tuning {mode}: {words(missing.point)}", flush=True)
            track.run(tuning.arm(mode, missing.point), missing.seed, keep_failures=True)


def listing(tuning: Tuning, modes: Sequence[str], plan: Plan, rows: Mapping[str, Row]) -> list[str]:
    """What is there and what is missing."""
    lines = []
    for mode in modes:
        found = tuning.walk(mode)
        state = "over" if found.missing is None else f"next {words(found.missing.point)}"
        lines.append(f"tuning   {mode}: {state}; best so far {words(found.best)}")
    for arm, seed, place in plan:
        state = "missing" if tries.is_missing(key(arm, seed), rows) else "there"
        lines.append(f"{state:<8} seed {seed}, turn {place}  {arm.name}")
    return lines


# -- T-PPO against PPO -----------------------------------------------------------------------------


def score(rows: Sequence[Row], *, target: float) -> tuple[float, float, float]:
    """How good a point is: runs that never crossed, mean seconds, final accuracy with its sign
    turned."""
    missed, seconds, final = 0, 0.0, 0.0
    for row in rows:
        crossed = crossing(curve(row), target)
        missed += crossed is None
        seconds += crossed.at if crossed else row.get("train_time_s", float("inf"))
        final += row.get("final", 0.0)
    return missed, seconds / len(rows), -final / len(rows)


def tuning_of(setting: Setting, rows: Mapping[str, Row], engine: str = ONE) -> Tuning:
    """Tuning of a setting's arms by the rows there are. `engine`: that of the arms in turns."""
    return Tuning(
        GRIDS,
        arm=partial(arm_of, setting, engine=engine, tuning=True),
        score=partial(score, target=setting.tuning_target),
        seeds=setting.tuning_seeds,
        rows=rows,
    )


@dataclass
class Race:
    """A setting with the rows that its parts are computed from."""

    setting: Setting
    folder: Path = RESULTS

    def rows(self, part: str) -> Rows:
        """The checked-in rows of `tuning`, `generators`, `factors`, `old_data` or `ceiling`."""
        return Rows(self._path(part))

    def known(self, part: str) -> dict[str, Row]:
        """The same, to look at."""
        return read_rows(self._path(part))

    def _path(self, part: str) -> Path:
        return self.folder / f"{part}_{self.setting.name}.jsonl"

    @property
    def engine(self) -> str:
        """How the arms in turns generate: the fastest that was measured, else one process."""
        rates = self.engine_rates()
        return max(rates, key=lambda name: statistics.median(rates[name])) if rates else ONE

    def engine_rates(self) -> dict[str, list[float]]:
        """Tokens that synchronous PPO trained a second, by engine, run by run."""
        found, rates = self.known("generators"), {}
        for name in ENGINES:
            rows = rows_of(self.engine_arm(name), found).values()
            rates[name] = [row["tokens"]["trained_policy"] / row["train_time_s"] for row in rows]
        return {name: values for name, values in rates.items() if values}

    def engine_arm(self, engine: str) -> Arm:
        """Synchronous PPO where its tuning begins, a quarter as long, not evaluated on the way."""
        arm = arm_of(self.setting, "synchronous", GRIDS["synchronous"].start, engine=engine)
        short = (
            f"stop.tokens={self.setting.tokens // 4}",
            "evaluation.every_updates=null",
            "evaluation.spacing=0",
        )
        name = f"{arm.name}, {engine}"
        return replace(arm, name=name, overrides=(*arm.overrides, *short))

    def engine_plan(self) -> Plan:
        """The comparison of engines, on seeds that no table shows."""
        first = self.setting.tuning_seeds[0]
        arms = [self.engine_arm(name) for name in ENGINES]
        return in_drawn_order(arms, range(first, first + GENERATOR_REPEATS))

    @property
    def tuning(self) -> Tuning:
        """Tuning by the rows there are."""
        return tuning_of(self.setting, self.known("tuning"), self.engine)

    def tuning_table(self, modes: Sequence[str]) -> list[dict[str, Any]]:
        """One line a point that was run: arm, point, how good it is, whether it is the best."""
        lines = []
        for one in self.tuning.tried(modes):
            missed, seconds, final = score(one.rows, target=self.setting.tuning_target)
            lines.append(
                {
                    "arm": one.mode,
                    "point": dict(one.point),
                    "seeds": len(one.rows),
                    "crossed": len(one.rows) - int(missed),
                    "seconds": seconds,
                    "final": -final,
                    "best": one.best,
                }
            )
        return lines

    def arm(self, mode: str) -> Arm:
        """The arm at its best setting."""
        return arm_of(self.setting, mode, self.tuning.best(mode), engine=self.engine)

    def plan(self, modes: Sequence[str], seeds: Sequence[int]) -> Plan:
        """The race."""
        return in_drawn_order([self.arm(mode) for mode in modes], seeds)

    def factor_arms(self) -> dict[str, list[Arm]]:
        """What drives it: arms by factor."""
        best: dict[str, Point] = {mode: self.tuning.best(mode) for mode in GRIDS}
        return factors(self.setting, best, engine=self.engine)

    def factor_plan(self) -> Plan:
        """The side arms on the first seeds of the race."""
        arms = {arm.name: arm for arms in self.factor_arms().values() for arm in arms}
        return in_drawn_order(list(arms.values()), self.setting.seeds[:FACTOR_SEEDS])

    def tune(self, modes: Sequence[str], *, keep: Path | None = None) -> None:
        """Run what tuning lacks."""
        track = Track(self.rows("tuning"), keep)
        tune(tuning_of(self.setting, track.rows.rows, self.engine), track, modes)
