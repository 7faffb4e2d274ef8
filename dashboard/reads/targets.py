"""Held-out accuracy of a run in figures: first, best, last, and what a target cost.

In: the frame of `storage.queries.evaluations`. Out: figures; None where there is nothing to say.
Pure.
"""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

STEP = 0.05
"""Targets are multiples of this."""
_ROUNDING = 1e-9


def accuracies(evaluations: pd.DataFrame, target: float) -> dict[str, float | None]:
    """Held-out accuracies of one run, and what a target cost; None where nothing is known.

    first, best, at update (the first with the best accuracy), last; tokens (policy tokens trained)
    and seconds (of training) of the first evaluation at or above the target."""
    known = _known(evaluations)
    best = max(known, key=lambda row: float(row["accuracy"]), default={})
    reached = next((row for row in known if row["accuracy"] >= target - _ROUNDING), {})
    ends = known or [{}]
    return {
        "first": ends[0].get("accuracy"),
        "best": best.get("accuracy"),
        "at update": best.get("update"),
        "last": ends[-1].get("accuracy"),
        "tokens": reached.get("trained_tokens"),
        "seconds": reached.get("train_time_s"),
    }


def default_target(runs: Sequence[pd.DataFrame]) -> float:
    """Return a target that separates runs, a multiple of `STEP`.

    It is the largest that all evaluated runs reached, if none had it from the beginning; else the
    largest that any run reached."""
    known = [rows for rows in map(_known, runs) if rows]
    if not known:
        return 0.5
    bests = [max(float(row["accuracy"]) for row in rows) for rows in known]
    firsts = [float(rows[0]["accuracy"]) for rows in known]
    shared = _stepped(min(bests))
    return shared if shared > max(firsts) else _stepped(max(bests))


def noise_margin(runs: Sequence[pd.DataFrame]) -> float:
    """Two standard errors of the difference between two accuracies, as large as it gets among these
    evaluations: what lies within it may be chance."""
    variances = [
        float(row["accuracy"]) * (1 - float(row["accuracy"])) / max(1, int(row["num_prompts"]))
        for rows in map(_known, runs)
        for row in rows
    ]
    return 2 * math.sqrt(2 * max(variances, default=0.0))


def _known(evaluations: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows with an accuracy, in their order."""
    known: Any = evaluations.dropna(subset=["accuracy"]).to_dict("records")
    return list(known)


def _stepped(accuracy: float) -> float:
    """The largest multiple of `STEP` that is not above."""
    return round(math.floor(accuracy / STEP + _ROUNDING) * STEP, 10)
