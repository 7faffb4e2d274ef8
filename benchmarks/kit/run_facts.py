"""Fields of a row that a run's summary lacks, read from the run's folder.

In: a finished run's folder, and the watch over it. Out: fields of a row: processor seconds up to
each evaluation, tokens that were not trained by length of the answer, accuracy on long prompts,
and on programs by their lines.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.kit.machine_state import MachineWatch
from storage.queries import evaluation_answers, export, losses_by_length

LONG_SHARE = 0.1
"""Share of the held-out prompts that count as long, the longest ones."""
NOT_LOST = ("value_warmup", "discarded_at_end")
"""Reasons for untrained tokens that every run has, at its beginning and end."""


def cpu_at_evaluations(
    watch: MachineWatch, evaluations: Sequence[Mapping[str, Any]], versions: Sequence[int]
) -> list[float]:
    """Return processor seconds of training up to the last evaluation of each version.

    Usage between evaluations is training's; start-up and evaluations are left out."""
    used, clock = 0.0, 0.0
    began: float | None = None
    found: dict[int, float] = {}
    for one in sorted(evaluations, key=lambda e: e["at"]):
        start = one["at"] - one["seconds"]
        # Before the first evaluation training has been going on for as long as its clock says.
        since = began if began is not None else start - one["train_time_s"]
        if one["train_time_s"] > clock:
            used += watch.own_between(since, start)
        began, clock = one["at"], one["train_time_s"]
        found[one["version"]] = round(used, 2)
    return [found[version] for version in versions]


def lost_by_tenth(folder: Path) -> list[dict[str, float]]:
    """Return figures by tenth of the training answers, the shortest first.

    Longest answer, tokens, shares left out for their age (`stale`) and otherwise (`other`)."""
    frame = losses_by_length(folder)
    reasons = [name for name in frame.columns if name not in ("longest", "tokens", *NOT_LOST)]
    tenths = []
    for line in frame.to_dict("records"):
        stale = line.get("stale", 0)
        other = sum(line[reason] for reason in reasons if reason != "stale")
        tokens = line["tokens"]
        tenths.append(
            {
                "longest": int(line["longest"]),
                "tokens": int(tokens),
                "stale": round(float(stale / tokens), 5),
                "other": round(float(other / tokens), 5),
            }
        )
    return tenths


def long_prompts(folder: Path, versions: Sequence[int]) -> dict[str, Any]:
    """Return each version's accuracy on the longest tenth of the held-out prompts.

    `by` (the measure of length: the `terms` that the task names, else `tokens`), `least` (of a long
    one), `share` (of prompts that are that long), `accuracy`, version by version."""
    frame = evaluation_answers(folder)
    terms = frame["info"].map(lambda text: json.loads(text).get("terms"))
    by = "tokens" if terms.isna().any() else "terms"
    size = terms.astype(int) if by == "terms" else frame["prompt_tokens"]
    least = size.quantile(1 - LONG_SHARE, interpolation="higher")
    chosen = frame[size >= least]
    accuracy = chosen.astype({"correct": float}).groupby("version")["correct"].mean()
    return {
        "by": by,
        "least": int(least),
        "share": round(len(chosen) / len(frame), 4),
        "accuracy": [round(float(accuracy.get(version, 0.0)), 4) for version in versions],
    }


def answers_by_lines(folder: Path) -> dict[str, Any]:
    """Return `written`: figures of a run on programs, `before` and `after` training.

    Accuracy on those of two lines (`short`) and of six to eight (`long`), `lines` of an answer,
    share of comments (`neutral`)."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "answers.jsonl"
        export(folder, "trajectories", None, path, where="purpose = 'eval'")
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    versions = [row["min_version"] for row in rows if row["min_version"] is not None]
    found = {
        when: program_figures([row for row in rows if row["min_version"] == version])
        for when, version in (("before", min(versions)), ("after", max(versions)))
    }
    return {"written": found}


def program_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return figures of some answers to held-out prompts."""
    terms = [int(_object(row["info"])["terms"]) for row in rows]
    parts = [_object(row["reward_parts"]) for row in rows]
    right = [float(row["correct"] or 0.0) for row in rows]
    pairs = list(zip(right, terms, strict=True))
    return {
        "short": _mean([value for value, count in pairs if count == 2]),
        "long": _mean([value for value, count in pairs if 6 <= count <= 8]),
        "lines": _mean([part["lines"] for part in parts if "lines" in part]),
        "neutral": _mean([part["neutral"] for part in parts if "neutral" in part]),
    }


def _object(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(value) if isinstance(value, str) else value
    return found


def _mean(values: Sequence[float]) -> float:
    return round(fmean(values), 4) if values else 0.0
