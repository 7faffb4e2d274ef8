"""Fields of a row that a run's summary lacks, read from the run's folder.

In: a finished run's folder, and the watch over it. Out: fields of a row: processor seconds up to
each evaluation, and accuracy on programs by their lines.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.kit.machine_state import MachineWatch
from storage.queries import export


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


def exported_trajectories(folder: Path, where: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a run's export `trajectories` that meet the condition."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trajectories.jsonl"
        export(folder, "trajectories", None, path, where=where)
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)


def answers_by_lines(folder: Path) -> dict[str, Any]:
    """Return `written`: figures of a run on programs, `before` and `after` training.

    Accuracy on those of two lines (`short`) and of six to eight (`long`), `lines` of an answer,
    share of comments (`neutral`)."""
    rows = list(exported_trajectories(folder, "purpose = 'eval'"))
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
