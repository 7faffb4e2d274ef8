"""Streaming against synchronous: wall clock to an accuracy, same recipe, same cores.

The modes run in turn, seed by seed, so that a machine that drifts drifts for both. The clock is
that of training: evaluations and start-up are apart. `synchronous` gives its learner every core
while its generator is idle. `ratio` is a ratio of speeds: synchronous seconds over streaming
seconds. Where a run never got there it is the least that it may be; `missed` counts such runs.
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.kit.command_line import command_line
from benchmarks.kit.pairs import shown, spread
from benchmarks.kit.rows import Rows, result_line
from benchmarks.kit.runs import seconds_to, train

MODES = ("streaming", "synchronous")


def run(arguments: argparse.Namespace, mode: str, seed: int, root: Path) -> dict[str, object]:
    """One run until the accuracy is reached in two evaluations, or the time is over."""
    summary = train(
        arguments.recipe,
        [
            f"schedule.mode={mode}",
            f"seed={seed}",
            f"evaluation.every_updates={arguments.every}",
            "evaluation.after=false",
            f"stop.accuracy={arguments.accuracy}",
            f"stop.train_time_s={arguments.limit_s}",
        ],
        root=root,
        name=f"{mode}-{seed}",
    )
    return {
        "mode": mode,
        "seed": seed,
        "accuracy": arguments.accuracy,
        "seconds": seconds_to(summary, arguments.accuracy),
        "updates": summary["updates"],
        "trained_tokens": summary["tokens"]["trained_policy"],
        "idle_share": summary["idle_share"],
        **summary["machine_state"],
        "evaluations": [
            [e["update"], round(e["train_time_s"], 2), e["accuracy"]]
            for e in summary["evaluations"]
        ],
    }


def least_ratio(ours: Mapping[str, Any], reference: Mapping[str, Any]) -> float:
    """The least that the reference's seconds over ours may be. A run that never got there took
    longer than until its last evaluation: leaving it out would flatter whoever it belongs to."""
    if ours["seconds"] is None:
        return 0.0
    seconds = reference["seconds"]
    return float(reference["evaluations"][-1][1] if seconds is None else seconds) / ours["seconds"]


def summarise(rows: Rows, seeds: int, accuracy: float) -> dict[str, Any]:
    """Speed ratio seed by seed, all seeds counted."""
    found = {
        mode: [rows.rows[f"{mode}/{seed}/{accuracy}"] for seed in range(seeds)] for mode in MODES
    }
    seconds = {mode: [row["seconds"] for row in found[mode]] for mode in MODES}
    return {
        "benchmark": "schedule",
        **spread([least_ratio(*pair) for pair in zip(*found.values(), strict=True)]),
        "repeats": seeds,
        "missed": sum(values.count(None) for values in seconds.values()),
        "accuracy": accuracy,
        "seconds": seconds,
    }


def main(argv: list[str]) -> int:
    """Run what is missing, print a table and the result."""
    parser = command_line("schedule", __doc__)
    parser.add_argument("--recipe", default="recipes/quickstart.toml", help="what is trained")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0")
    parser.add_argument(
        "--accuracy", type=float, default=0.75, help="the target that seconds are counted to"
    )
    parser.add_argument("--every", type=int, default=4, help="updates between evaluations")
    parser.add_argument("--limit-s", type=float, default=240.0, help="most training seconds")
    parser.add_argument("--rows", type=Path, help="JSONL file of finished runs, gone on with")
    arguments = parser.parse_args(argv)
    accuracy = arguments.accuracy
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        rows = Rows(arguments.rows or Path(folder) / "rows.jsonl")
        for seed in range(arguments.seeds):
            for mode in MODES:
                key = f"{mode}/{seed}/{accuracy}"
                row = rows.rows.get(key) or rows.add(key, run(arguments, mode, seed, Path(folder)))
                print(
                    f"{mode:<12} seed {seed}: {row['seconds']} s to {accuracy}, {row['updates']} "
                    f"updates, {row['trained_tokens']} tokens trained",
                    flush=True,
                )
    result = summarise(rows, arguments.seeds, accuracy)
    print(f"ratio {shown(result)}")
    if arguments.json:
        print(result_line(result))
    return 0
