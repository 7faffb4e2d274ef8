"""A run of an arm as a row: settings, results, and the machine's state.

In: an arm and a seed. Out: a row, and figures of one. The run is `headrace train` in processes of
its own. `final` is the mean accuracy of a run's last two evaluations; `mean` the area under
accuracy against the policy's updates, which separates fast learners from slow ones.
"""

import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.kit.arms import Arm, Row
from benchmarks.kit.run_facts import cpu_at_evaluations
from benchmarks.kit.runs import Summary, series, train
from headrace.host.install import ROOT

SERIES = (
    "reward/mean",
    "rollout/finished_length",
    "actor/entropy",
    "actor/pg_clipfrac_upper",
    "actor/ppo_kl",
    "critic/vf_explained_var",
    "staleness/mean",
    "rollout/ess",
    "ledger/generated",
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
    return {
        "final": statistics.fmean(e["accuracy"] for e in points[-2:]),
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


def generated_at(row: Row, version: int) -> float:
    """Return the tokens generated until `version`; its updates follow the warm-up's."""
    series, last = row["series"], version + warm_up_updates(row)
    found = [
        tokens
        for update, tokens in zip(series["update"], series["ledger/generated"], strict=True)
        if update <= last and tokens is not None
    ]
    return float(found[-1]) if found else 0.0
