"""Arms and the rows of their runs: which row of a run counts, and whether one is missing.

In: rows by key. A run counts as long as what it would do has not changed: its key has a digest of
that. A run that others disturbed is run again: its undisturbed row stands under its key, and each
disturbed one under `KEY/disturbed-N`. After `MOST` tries a run is not tried again. What counts is
the undisturbed row, else the least disturbed one, which says so (`disturbed`): a page counts those.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.config.loading.recipe import merge_overrides, read_toml
from headrace.host.install import ROOT

MOST = 3
NEUTRAL = {
    "fit": "gradient", "features": 512, "memory_answers": 4096, "layers": "null",
    "warmup_prompts": "null",
}  # fmt: skip
"""Keys of `algorithm.value` younger than rows on disk, with the values that change nothing."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train: `recipe` (relative to the source tree) with `overrides`."""

    name: str
    recipe: str
    overrides: tuple[str, ...] = ()

    def digest(self) -> str:
        """Changes when a value of the recipe or an override does. UserError where there is no such
        recipe. A function `package.folder.module:name` is the same in every folder of its
        package."""
        table = read_toml(ROOT / self.recipe)
        merge_overrides(table, self.overrides)
        match table:
            case {"algorithm": {"value": {} as value}}:
                for name, neutral in NEUTRAL.items():
                    if value.get(name) == neutral:
                        del value[name]
        text = json.dumps([table], sort_keys=True, default=str)
        text = re.sub(r'"(\w+)\.(?:\w+\.)+(\w+:\w+)"', r'"\1.\2"', text)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


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
    found = {seed: row_of(f"{arm.name}/{seed}/{digest}", rows) for seed in wanted}
    return {seed: row for seed, row in found.items() if row is not None}


def tries_of(key: str, rows: Mapping[str, Row]) -> list[Row]:
    """The disturbed rows of a run."""
    return [rows[name] for n in range(MOST) if (name := f"{key}/disturbed-{n}") in rows]


def row_of(key: str, rows: Mapping[str, Row]) -> Row | None:
    """The row that counts; None without any."""
    if key in rows:
        return rows[key]
    return min(tries_of(key, rows), key=lambda row: row["others_cpu_share"], default=None)


def is_missing(key: str, rows: Mapping[str, Row]) -> bool:
    """Whether the run is to be made (again)."""
    return key not in rows and len(tries_of(key, rows)) < MOST


def new_key(key: str, rows: Mapping[str, Row], row: Row) -> str:
    """Where a new row of the run belongs."""
    return f"{key}/disturbed-{len(tries_of(key, rows))}" if row.get("disturbed") else key
