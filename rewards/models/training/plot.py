"""One picture of a training: loss, held-out accuracy, calibration. The same lines give the same
file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from headrace.run_files.reward_model_run import EvaluationLine, StepLine

_BLUE, _ORANGE, _GREY = "#0b6e99", "#d9730d", "#999999"
_STYLE: dict[Any, Any] = {
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
    with rc_context(_STYLE):
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
    axes.set_title("loss")
    axes.set_xlabel("step")
    axes.legend(frameon=False)


def _accuracy(axes: Axes, evaluations: Sequence[EvaluationLine]) -> None:
    ranks = any("map" in e.figures for e in evaluations)
    name = "map" if ranks else "accuracy"
    known = [(e.step, e.figures[name]) for e in evaluations if e.figures.get(name) is not None]
    if known:
        axes.plot(*zip(*known, strict=True), "o-", color=_ORANGE, markersize=3)
    axes.set_ylim(0, 1.02)
    axes.set_title("held-out MAP" if ranks else "held-out accuracy")
    axes.set_xlabel("step")


def _calibration(axes: Axes, bins: Sequence[dict[str, Any]]) -> None:
    axes.plot([0, 1], [0, 1], color=_GREY, linewidth=0.8, linestyle="--")
    most = max((part["count"] for part in bins), default=1)
    for part in bins:
        size = 12 + 60 * part["count"] / most
        axes.scatter([part["forecast"]], [part["share"]], s=size, color=_BLUE, alpha=0.8)
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.02, 1.02)
    axes.set_title("calibration")
    axes.set_xlabel("forecast")
    axes.set_ylabel("share that came true")
