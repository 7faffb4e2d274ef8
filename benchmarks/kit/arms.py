"""Arms of studies, the keys of their runs' rows, and the row of a run that counts.

In: rows by key. A run counts as long as its settings have not changed: its key has a digest of
them. A run that other processes disturbed is run again: its undisturbed row has its key, and each
disturbed one `KEY/disturbed-N`. After `MAX_TRIES` it is given up. The undisturbed row counts, else
the least disturbed one, which says so (`disturbed`): a page counts those.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.config.loading.recipe import merge_overrides, read_toml
from headrace.host.install import ROOT

MAX_TRIES = 3
NEUTRAL = {
    "fit": "gradient", "features": 512, "memory_answers": 4096, "layers": "null",
    "warmup_prompts": "null",
}  # fmt: skip
"""Keys of `algorithm.value` that recorded rows lack, with their neutral values."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train: `recipe` (relative to the source tree) with `overrides`."""

    name: str
    recipe: str
    overrides: tuple[str, ...] = ()

    def digest(self) -> str:
        """Return a digest of all values of the recipe and the overrides.

        A function `package.folder.module:name` is the same in every folder of its package.
        UserError where there is no such recipe."""
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
    return f"{arm.name}/{seed}/{arm.digest()}"


def rows_of(
    arm: Arm, rows: Mapping[str, Row], seeds: Collection[int] | None = None
) -> dict[int, Row]:
    """Return the arm's rows that count, by seed; of `seeds` alone if given."""
    digest = arm.digest()
    there = sorted({row["seed"] for row in rows.values() if row.get("arm") == arm.name})
    wanted = [seed for seed in there if seeds is None or seed in seeds]
    found = {seed: row_of(f"{arm.name}/{seed}/{digest}", rows) for seed in wanted}
    return {seed: row for seed, row in found.items() if row is not None}


def tries_of(key: str, rows: Mapping[str, Row]) -> list[Row]:
    """Return the disturbed rows of a run."""
    return [rows[name] for n in range(MAX_TRIES) if (name := f"{key}/disturbed-{n}") in rows]


def row_of(key: str, rows: Mapping[str, Row]) -> Row | None:
    """Return the row that counts; None without any."""
    if key in rows:
        return rows[key]
    return min(tries_of(key, rows), key=lambda row: row["others_cpu_share"], default=None)


def is_missing(key: str, rows: Mapping[str, Row]) -> bool:
    """Return whether the run has to be run (again)."""
    return key not in rows and len(tries_of(key, rows)) < MAX_TRIES


def new_key(key: str, rows: Mapping[str, Row], row: Row) -> str:
    """Return the key of a new row of the run."""
    return f"{key}/disturbed-{len(tries_of(key, rows))}" if row.get("disturbed") else key
