"""How hard the tasks are in the studies of hacking and of anchors: chosen by how a verifier is
learned from, on seeds apart.

In: a kind of sums, and a file of rows, gone on with. Out: for how many supervised steps the
policies of the studies are taught. The candidates are tried from the hardest on, the fewest steps;
the first is taken from which training on the verifier raises the truth by LEARNS in the mean of the
tuning seeds. Promises: nothing else is looked at; no other arm is trained on a tuning seed, and no
table shows one.
"""

import hashlib
import tempfile
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import hacking_arm, seeds, sums_task
from benchmarks.rows import RESULTS
from benchmarks.sums_task import SUMS, Kind
from headrace.errors import RunFailedError

ROWS = RESULTS / "hacking_tuning.jsonl"
CANDIDATES = (200, 300, 400, 500, 600, 800, 1000, 1200, 1600)
"""Supervised steps."""
TUNING_SEEDS = (100, 101)
LEARNS = 0.25
"""A first guess, as the gates are."""


def chosen(kind: Kind, path: Path = ROWS) -> int:
    """The supervised steps of a study's policies; rows that are missing are made. RunFailedError
    where nothing is learned from any candidate."""
    for steps in CANDIDATES:
        wanted = {
            key(kind, steps, seed): partial(learned, kind, steps, seed) for seed in TUNING_SEEDS
        }
        found = seeds.rows_of(path, wanted)
        if fmean(row["after"] - row["before"] for row in found) >= LEARNS:
            return steps
    raise RunFailedError(f"no policy of {CANDIDATES} steps learns {LEARNS} from the verifier")


def key(kind: Kind, steps: int, seed: int) -> str:
    """The key of a row; changes with the settings."""
    return f"{steps}/{seed}/{digest(kind, steps)}"


def digest(kind: Kind, steps: int) -> str:
    """Of all that a task and an arm's training are made by."""
    # Rows of the sums are older than the other kind, and their keys do not name it.
    named = () if kind is SUMS else (kind.name, kind.modulus)
    said = (steps, sums_task.TERMS, sums_task.ROOM, sums_task.WORKED_SHARE, sums_task.FILLERS,
            *hacking_arm.settings(), *named)  # fmt: skip
    return hashlib.sha256(repr(said).encode()).hexdigest()[:8]


def learned(kind: Kind, steps: int, seed: int) -> dict[str, Any]:
    """The truth before and after training on the verifier."""
    task = kind.task(steps)
    with tempfile.TemporaryDirectory(prefix="headrace-difficulty-") as scratch:
        folder = task.make_model(Path(scratch), seed)
        found = hacking_arm.trained(task, folder, seed, task.truth)
    figures = {when: found[when]["truth"] for when in ("before", "after")}
    return {"name": "difficulty", "task": kind.name, "steps": steps, "seed": seed, **figures}
