"""The report of a reward model: `report.json`, a page in Markdown, a plot.

In: what a training found. Out: three files in its run folder. The page says what each number means
and what is wrong when it is not what one would want. The same lines give the same plot.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from headrace.run_files.reward_model_run import (
    PLOT,
    REPORT,
    REPORT_PAGE,
    EvaluationLine,
    StepLine,
    steps_and_evaluations,
)
from headrace.run_files.run_folder import write_atomically
from rewards.models.training.metrics import flat

_BLUE, _ORANGE, _GREY = "#0b6e99", "#d9730d", "#999999"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "headrace",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
}


def draw(
    path: Path,
    steps: Sequence[StepLine],
    evaluations: Sequence[EvaluationLine],
    bins: Sequence[dict[str, Any]],
) -> None:
    """Write the picture as SVG."""
    with rc_context(STYLE):
        figure = Figure(figsize=(9.6, 2.9), layout="constrained")
        loss, accuracy, calibration = figure.subplots(1, 3)
        _loss(loss, steps, evaluations)
        _accuracy(accuracy, evaluations)
        _calibration(calibration, bins)
        FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None})


def _loss(axes: Axes, steps: Sequence[StepLine], evaluations: Sequence[EvaluationLine]) -> None:
    known = [(line.step, line.loss) for line in steps if line.loss is not None]
    if known:
        axes.plot(*zip(*known, strict=True), color=_BLUE, linewidth=0.9, label="training")
    held = [(e.step, e.figures["loss"]) for e in evaluations if e.figures.get("loss") is not None]
    if held:
        axes.plot(*zip(*held, strict=True), "o-", color=_ORANGE, markersize=3, label="held out")
    axes.set(title="loss", xlabel="step")
    axes.legend(frameon=False)


def _accuracy(axes: Axes, evaluations: Sequence[EvaluationLine]) -> None:
    names = {"map": "MAP", "perplexity": "perplexity", "accuracy": "accuracy"}
    told = {name for line in evaluations for name in line.figures}
    name = next((name for name in names if name in told), "accuracy")
    known = [(e.step, e.figures[name]) for e in evaluations if e.figures.get(name) is not None]
    if known:
        axes.plot(*zip(*known, strict=True), "o-", color=_ORANGE, markersize=3)
    if name != "perplexity":
        axes.set_ylim(0, 1.02)
    axes.set(title=f"held-out {names[name]}", xlabel="step")


def _calibration(axes: Axes, bins: Sequence[dict[str, Any]]) -> None:
    axes.plot([0, 1], [0, 1], color=_GREY, linewidth=0.8, linestyle="--")
    most = max((part["count"] for part in bins), default=1)
    for part in bins:
        size = 12 + 60 * part["count"] / most
        axes.scatter([part["forecast"]], [part["share"]], s=size, color=_BLUE, alpha=0.8)
    axes.set(xlim=(0, 1), ylim=(-0.02, 1.02), title="calibration")
    axes.set(xlabel="forecast", ylabel="share that came true")


_WORDS = {
    "sft": "answers like those that it was shown (supervised fine-tuning)",
    "bradley_terry": "a score of a whole answer (Bradley-Terry)",
    "pairwise": "yes or no to whether the first of two answers is better (pairwise)",
    "lines": "a score at the end of each line (lines)",
    "ranker": "a score of a candidate in a search session (ranker)",
}
_FIGURES = (
    ("loss", "loss", "mean of the objective's loss"),
    ("perplexity", "perplexity", "exp of the loss: as unsure as among this many tokens alike"),
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
    steps, evaluations = steps_and_evaluations(run_dir)
    draw(run_dir / PLOT, steps, evaluations, report["after"].get("calibration", {}).get("bins", ()))
    write_atomically(run_dir / REPORT_PAGE, "\n".join(page(report)) + "\n")


def page(report: dict[str, Any]) -> Iterator[str]:
    """The report in Markdown."""
    examples = report["examples"]
    kind = "Fine-tuned policy" if report["objective"] == "sft" else "Reward model"
    yield f"# {kind} {report['run_id']}\n"
    yield f"It gives {_WORDS[report['objective']]}. Folder: `{report['model']}`.\n"
    counts = [f"{number} {name.replace('_', ' ')}" for name, number in examples.items()]
    yield (
        f"Started from `{report['start']}`; {report['steps']} steps, {report['tokens']:,} tokens, "
        f"{report['train_time_s']:.0f} s, seed {report['seed']}. Examples: {', '.join(counts)}.\n"
    )
    yield "## Held-out examples\n"
    yield "| figure | before | after | meaning |"
    yield "|---|---|---|---|"
    before, after = report["before"], flat(report["after"])
    for name, title, meaning in _FIGURES:
        if name in after:
            yield f"| {title} | {_number(before.get(name))} | {_number(after[name])} | {meaning} |"
    yield f"\n![Loss, held-out accuracy and calibration]({PLOT})"
    if "calibration" not in report["after"]:
        return
    yield "\n## Calibration\n"
    yield "What the model forecasts against what came true; equal columns are a calibrated model.\n"
    yield "| forecast from | to | examples | mean forecast | share that came true |"
    yield "|---|---|---|---|---|"
    for part in report["after"]["calibration"]["bins"]:
        yield (
            f"| {part['from']:.1f} | {part['to']:.1f} | {part['count']} | "
            f"{part['forecast']:.3f} | {part['share']:.3f} |"
        )


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"
