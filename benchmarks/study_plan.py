"""What a study runs: arms (a recipe with settings) by seeds, and the key of each run's row.

In: arms, as they are written down by a study's module. Out: `Study`, its plan, and the rows that
are there of an arm as it is now: a run counts as long as what it would do has not changed.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import tries
from benchmarks.rows import RESULTS
from headrace.config.load import merge_overrides, read_toml
from headrace.install import ROOT

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train: `recipe` (relative to the source tree) with `overrides`."""

    name: str
    recipe: str
    overrides: tuple[str, ...] = ()
    seeds: int | None = None
    """How many seeds this arm gets where it is fewer than the study's."""
    environment: tuple[str, ...] = ()
    """Variables of its processes, `NAME=VALUE`."""

    def digest(self) -> str:
        """Changes when a value of the recipe, an override or a variable does. UserError where there
        is no such recipe."""
        table = read_toml(ROOT / self.recipe)
        merge_overrides(table, self.overrides)
        text = json.dumps([table, *self.environment], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


class Column(NamedTuple):
    """A column that a study's table has besides: its title, a run's figure, and how it is
    written."""

    title: str
    figure: Callable[[Row], float]
    form: str


@dataclass(frozen=True, slots=True)
class Study:
    """What `headrace bench NAME` runs."""

    name: str
    arms: tuple[Arm, ...]
    seeds: int
    reduced_arms: tuple[str, ...]
    reduced_seeds: int
    reference: str
    """The arm that the others are compared with, seed by seed."""
    prepare: Callable[[], None] | None = None
    """Makes what runs need that is not checked in; called before the first of them."""
    facts: Callable[[Path], Row] | None = None
    """What else a row keeps of a run, read from its folder."""
    columns: tuple[Column, ...] = ()
    jobs: int | None = None
    """Runs at a time unless the command line says otherwise. None: one a core."""

    def plan(self, *, reduced: bool, seeds: int | None = None) -> list[tuple[Arm, int]]:
        """(arm, seed) in the order they are run; `seeds` instead of the study's."""
        arms = [arm for arm in self.arms if not reduced or arm.name in self.reduced_arms]
        if seeds is None:
            seeds = self.reduced_seeds if reduced else self.seeds
        return [(arm, s) for s in range(seeds) for arm in arms if s < (arm.seeds or seeds)]

    @property
    def rows_path(self) -> Path:
        """Where the rows are checked in."""
        return RESULTS / f"{self.name.replace('-', '_')}.jsonl"


def key(arm: Arm, seed: int) -> str:
    """The key of a run's row."""
    return f"{arm.name}/{seed}/{arm.digest()}"


def rows_of(
    arm: Arm, rows: Mapping[str, Row], seeds: Collection[int] | None = None
) -> dict[int, Row]:
    """The rows of the arm as it is now, by seed (of `seeds` alone, where they are given); of a run
    that was made again, the one that counts."""
    digest = arm.digest()
    there = sorted({row["seed"] for row in rows.values() if row.get("arm") == arm.name})
    wanted = [seed for seed in there if seeds is None or seed in seeds]
    found = {seed: tries.row_of(f"{arm.name}/{seed}/{digest}", rows) for seed in wanted}
    return {seed: row for seed, row in found.items() if row is not None}
