"""The report of a reward model: `report.json`, a page in Markdown, a plot.

In: what a training found. Out: three files in its run folder. The page says what each number means
and what is wrong when it is not what one would want.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.run_files.reward_model_run import (
    PLOT,
    REPORT,
    REPORT_PAGE,
    EvaluationLine,
    StepLine,
    read_lines,
)
from headrace.run_files.run_folder import write_atomically
from rewards.models.training.plot import draw

_WORDS = {
    "bradley_terry": "a score of a whole answer (Bradley-Terry)",
    "pairwise": "yes or no to whether the first of two answers is better (pairwise)",
    "lines": "a score at the end of each line (lines)",
    "ranker": "a score of a candidate in a search session (ranker)",
}
_FIGURES = (
    ("loss", "loss", "mean of the objective's loss"),
    ("accuracy", "accuracy", "share of pairs, or of lines labelled 1 or -1, that come out right"),
    ("auc", "area under the curve", "share of (good, bad) lines in which the good one scores more"),
    ("mse", "mean squared error", "of line scores against their labels"),
    ("mse_of_mean", "the same, by the mean label", "what a model that knows nothing reaches"),
    ("mean_difference", "mean difference", "score of the chosen answer minus that of the other"),
    ("ece", "calibration error", "mean distance of forecast and share, by bin; 0 is perfect"),
    ("brier", "Brier score", "mean squared error of the forecast; a coin has 0.25"),
    ("accuracy_better_first", "accuracy, better first", "asked in this order alone"),
    ("accuracy_better_second", "accuracy, better second", "asked in this order alone"),
    ("gap", "position gap", "distance of the two; 0 is none"),
    ("map", "MAP", "mean average precision of held-out lists"),
    ("mrr", "MRR", "mean of 1 / the place of the first relevant candidate"),
    *(
        (f"ndcg_{k}", f"NDCG@{k}", "gain of the first places, by that of the best order")
        for k in (1, 3, 5, 10)
    ),
    ("recognised", "variants recognised", "in the last 20 steps of the first stage"),
    ("bias", "position bias", "|E[p(a,b) + p(b,a)] - 1|; 0 is none"),
)


def write_report(run_dir: Path, report: dict[str, Any]) -> None:
    """Write all three files."""
    write_atomically(run_dir / REPORT, json.dumps(report, indent=1) + "\n")
    lines = list(read_lines(run_dir))
    steps = [line for line in lines if isinstance(line, StepLine)]
    evaluations = [line for line in lines if isinstance(line, EvaluationLine)]
    draw(run_dir / PLOT, steps, evaluations, report["after"].get("calibration", {}).get("bins", ()))
    write_atomically(run_dir / REPORT_PAGE, "\n".join(page(report)) + "\n")


def page(report: dict[str, Any]) -> Iterator[str]:
    """The report in Markdown."""
    examples = report["examples"]
    yield f"# Reward model {report['run_id']}"
    yield ""
    yield f"It gives {_WORDS[report['objective']]}. Folder: `{report['model']}`."
    yield ""
    counts = [f"{number} {name.replace('_', ' ')}" for name, number in examples.items()]
    yield (
        f"Started from `{report['start']}`; {report['steps']} steps, {report['tokens']:,} tokens, "
        f"{report['train_time_s']:.0f} s, seed {report['seed']}. Examples: {', '.join(counts)}."
    )
    yield ""
    yield "## Held-out examples"
    yield ""
    yield "| figure | before | after | meaning |"
    yield "|---|---|---|---|"
    before, after = report["before"], _flat(report["after"])
    for name, title, meaning in _FIGURES:
        if name in after:
            yield f"| {title} | {_number(before.get(name))} | {_number(after[name])} | {meaning} |"
    yield ""
    yield f"![Loss, held-out accuracy and calibration]({PLOT})"
    if "calibration" not in report["after"]:
        return
    yield ""
    yield "## Calibration"
    yield ""
    yield "What the model forecasts against what came true; equal columns are a calibrated model."
    yield ""
    yield "| forecast from | to | examples | mean forecast | share that came true |"
    yield "|---|---|---|---|---|"
    for part in report["after"]["calibration"]["bins"]:
        yield (
            f"| {part['from']:.1f} | {part['to']:.1f} | {part['count']} | "
            f"{part['forecast']:.3f} | {part['share']:.3f} |"
        )


def _flat(found: dict[str, Any]) -> dict[str, Any]:
    inner = {k: v for part in found.values() if isinstance(part, dict) for k, v in part.items()}
    return found | inner


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"
