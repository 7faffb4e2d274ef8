"""A run of an arm as a row: settings, results, and the machine's state.

In: an arm and a seed. Out: a row, and figures of one. The run is `headrace train` in processes of
its own. `final` is the mean accuracy of the last two evaluations of a trained policy; `mean` the
area under accuracy against the policy's updates, which separates fast learners from slow ones.
Fields that a run's summary lacks are read from its folder, and from the watch over it.
"""

import json
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.kit.arms import Arm, Row
from benchmarks.kit.machine_state import MachineWatch
from benchmarks.kit.runs import Summary, series, train
from headrace.host.install import ROOT
from storage.queries import export

SERIES = (
    "reward/mean",
    "rollout/finished_length",
    "actor/entropy",
    "actor/pg_clipfrac_upper",
    "actor/pg_clipped_probability",
    "actor/ppo_kl",
    "critic/vf_explained_var",
    "staleness/mean",
    "rollout/ess",
    "ledger/generated",
    "ledger/trained_policy",
    "ledger/trained_value",
    "perf/context_share",
)
"""Metrics that a row keeps, update by update."""


def run_arm(
    arm: Arm,
    seed: int,
    root: Path,
    *,
    remove: bool = True,
    facts: Callable[[Path], Row] | None = None,
) -> Row:
    """Run an arm; return its row, with `facts` of its folder, or raise RunFailedError."""
    # A run is found by its name, and a repeated one is another.
    root.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(dir=root))
    name = f"{''.join(c if c.isalnum() else '-' for c in arm.name)}-{seed}"
    recipe = str(ROOT / arm.recipe)
    summary = train(recipe, [f"seed={seed}", *arm.overrides], root=root, name=name)
    folder = Path(summary["folder"])
    row = run_row(arm, seed, summary, figures(summary))
    row |= {"series": series(folder, SERIES), **(facts(folder) if facts else {})}
    if remove:
        shutil.rmtree(folder)
    return row


def run_row(arm: Arm, seed: int, summary: Summary, found: Row) -> Row:
    """Build a run's row: settings, the figures `found`, and the machine's state."""
    versions = [version for version, *_ in found["evaluations"]]
    return {
        "arm": arm.name,
        "seed": seed,
        "recipe": arm.recipe,
        "overrides": list(arm.overrides),
        **found,
        "num_prompts": min(e["num_prompts"] for e in summary["evaluations"]),
        **summary["machine_state"],
        "evaluation_cpu_s": cpu_at_evaluations(summary["watch"], summary["evaluations"], versions),
    }


def figures(summary: Summary) -> Row:
    """Return a row's fields from a run's summary."""
    return {
        "updates": summary["updates"],
        "skipped_updates": summary["skipped_updates"],
        "train_time_s": round(summary["train_time_s"], 2),
        "tokens": {k: v for k, v in summary["tokens"].items() if k != "dropped"},
        "dropped": summary["tokens"]["dropped"],
        "staleness": summary["staleness"],
        "idle_share": summary["idle_share"],
        **evaluation_fields(summary["evaluations"]),
    }


def evaluation_fields(evaluations: Sequence[Summary]) -> Row:
    """Return a row's fields from a run's evaluations."""
    evaluations = sorted(evaluations, key=lambda e: (e["update"], e["label"] == "after"))
    # Value pretraining repeats version 0, the evaluation after the end the one at the last update.
    by_version = {e["version"]: e for e in evaluations}
    points = [by_version[version] for version in sorted(by_version)]
    trained = [e for e in points if e["version"]] or points
    return {
        "final": statistics.fmean(e["accuracy"] for e in trained[-2:]),
        "mean": area(points),
        "final_length": points[-1]["response_length"],
        "max_length": points[-1]["max_response_length"],
        "evaluations": [
            [
                e["version"],
                round(e["train_time_s"], 2),
                round(e["accuracy"], 4),
                round(e["response_length"], 1),
            ]
            for e in points
        ],
    }


def area(points: Sequence[Summary]) -> float:
    """Return mean accuracy over the policy's updates, linear between evaluations."""
    total = 0.0
    for left, right in pairwise(points):
        total += (right["version"] - left["version"]) * (left["accuracy"] + right["accuracy"]) / 2
    span = points[-1]["version"] - points[0]["version"]
    return total / span if span else float(points[-1]["accuracy"])


def warm_up_updates(row: Row) -> int:
    """Count the updates of the value model alone, before the policy's first."""
    return int(row["updates"] - row["evaluations"][-1][0])


def metric_of(row: Row, name: str) -> list[tuple[int, float]]:
    """Return (policy updates, value) of a metric in `SERIES`, where it has a value."""
    series, warm_up = row["series"], warm_up_updates(row)
    pairs = zip(series["update"], series.get(name, ()), strict=False)
    return [(u - warm_up, v) for u, v in pairs if v is not None and u > warm_up]


def tokens_at(row: Row, version: int, name: str = "ledger/generated") -> float:
    """Return the tokens of the ledger until `version`; its updates follow the warm-up's."""
    series, last = row["series"], version + warm_up_updates(row)
    pairs = zip(series["update"], series[name], strict=True)
    found = [tokens for update, tokens in pairs if update <= last and tokens is not None]
    return float(found[-1]) if found else 0.0


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
    terms = [int(json.loads(row["info"])["terms"]) for row in rows]
    parts = [json.loads(row["reward_parts"]) for row in rows]
    right = [float(row["correct"] or 0.0) for row in rows]
    pairs = list(zip(right, terms, strict=True))
    return {
        "short": _mean([value for value, count in pairs if count == 2]),
        "long": _mean([value for value, count in pairs if 6 <= count <= 8]),
        "lines": _mean([part["lines"] for part in parts if "lines" in part]),
        "neutral": _mean([part["neutral"] for part in parts if "neutral" in part]),
    }


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 4) if values else 0.0
