"""Plots of studies: rows in, SVG files out. The same rows give the same file.

Every plot shows the single seeds: thin lines or small dots, the median over them thick or large.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.typing import RcKeyType

from benchmarks.arm_run import generated_at, metric_of
from benchmarks.study_plan import Row

Points = list[tuple[float, float]]

matplotlib.use("Agg")
COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#7a6a53", "#cb912f", "#555555")
STYLE: dict[RcKeyType, Any] = {
    "svg.hashsalt": "headrace",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


def save(figure: Any, path: Path) -> None:
    """Write and close a figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
    plt.close(figure)


def accuracy_over_updates(row: Row) -> Points:
    """(updates of the policy, held-out accuracy)."""
    return [(version, accuracy) for version, _, accuracy, _ in row["evaluations"]]


def accuracy_over_seconds(row: Row) -> Points:
    """(seconds of training, held-out accuracy)."""
    return [(seconds, accuracy) for _, seconds, accuracy, _ in row["evaluations"]]


def accuracy_over_tokens(row: Row) -> Points:
    """(tokens generated, those of the value model's warm-up included, held-out accuracy)."""
    return [
        (generated_at(row, version), accuracy) for version, _, accuracy, _ in row["evaluations"]
    ]


def length_over_updates(row: Row) -> Points:
    """(updates of the policy, mean response length on held-out prompts)."""
    return [(version, length) for version, _, _, length in row["evaluations"]]


def metric_over_updates(name: str) -> Callable[[Row], Points]:
    """(updates of the policy, the metric) for a metric that rows keep."""
    return lambda row: [(float(update), value) for update, value in metric_of(row, name)]


def over_positions(figure: str, answers: str = "all") -> Callable[[Row], Points]:
    """(share of the answer, the figure there) from what a row keeps of the policy's first updates
    (`benchmarks.positions`): the middle of each tenth."""

    def points(row: Row) -> Points:
        tenths = row["early_positions"][answers][figure]
        return [((i + 0.5) / len(tenths), value) for i, value in enumerate(tenths)]

    return points


def curves(axes: Axes, arms: Mapping[str, Sequence[Row]], points: Callable[[Row], Points]) -> None:
    """A colour an arm: its seeds thin, the median at each position that all seeds have thick."""
    for colour, (name, rows) in zip(COLOURS * 4, arms.items(), strict=False):
        lines = [points(row) for row in rows]
        for line in lines:
            axes.plot(*zip(*line, strict=True), color=colour, alpha=0.25, linewidth=0.8)
        count = min(len(line) for line in lines)
        median = [
            tuple(statistics.median(line[i][axis] for line in lines) for axis in (0, 1))
            for i in range(count)
        ]
        axes.plot(*zip(*median, strict=True), color=colour, linewidth=2, label=name)
    if arms:
        axes.legend()


def dots(axes: Axes, arms: Mapping[str, Sequence[Row]], figure: str) -> None:
    """One line an arm: a dot a seed, a bar at the median."""
    names = list(arms)
    for place, name in enumerate(names):
        values = [row[figure] for row in arms[name]]
        axes.plot(values, [place] * len(values), "o", color=COLOURS[0], alpha=0.45, markersize=4)
        axes.plot([statistics.median(values)], [place], "|", color="black", markersize=13)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def against(
    axes: Axes, xs: Sequence[float], values: Sequence[Sequence[float]], *, label: str, index: int
) -> None:
    """A sweep: the seeds at each x as dots, their medians joined."""
    colour = COLOURS[index]
    for x, seeds in zip(xs, values, strict=True):
        axes.plot([x] * len(seeds), seeds, "o", color=colour, alpha=0.35, markersize=4)
    axes.plot(xs, [statistics.median(seeds) for seeds in values], color=colour, label=label)
    axes.legend()
