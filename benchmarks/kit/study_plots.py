"""Plots of studies, drawn from rows as SVG files.

In: a plot's panels and the rows of arms. Out: files; the same rows give the same file. Every plot
shows the single seeds: thin lines or small dots, the median over them thick or large. Arms that
have no rows yet are left out.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.typing import RcKeyType

from benchmarks.kit.arms import Row
from benchmarks.kit.study_file import Panel, Plot
from benchmarks.kit.study_table import figure_of
from rewards.models.training import report

Arms = Mapping[str, Sequence[Row]]
Points = list[tuple[float, float]]

matplotlib.use("Agg")
COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#7a6a53", "#cb912f", "#555555")
STYLE: dict[RcKeyType, Any] = {
    **report.STYLE,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


def save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
    plt.close(figure)


def draw(plot: Plot, arms: Arms, path: Path) -> None:
    """Draw all panels of a plot, side by side."""
    size = plot.size or (8.4, 0.9 + 0.27 * len(arms))
    shared = all(panel.dots for panel in plot.panels)
    figure, ((*grid,),) = plt.subplots(
        1, len(plot.panels), figsize=size, squeeze=False, sharey=shared
    )
    for axes, panel in zip(grid, plot.panels, strict=True):
        _draw_panel(axes, panel, arms)
    save(figure, path)


def _draw_panel(axes: Axes, panel: Panel, arms: Arms) -> None:
    chosen = {name: rows for name, rows in arms.items() if not panel.arms or name in panel.arms}
    if panel.dots is not None:
        dots(axes, {n: [float(figure_of(row, panel.dots)) for row in r] for n, r in chosen.items()})
    elif panel.y is not None and panel.x is not None:
        x, y = panel.x, panel.y
        curves(
            axes, chosen, lambda row: list(zip(figure_of(row, x), figure_of(row, y), strict=True))
        )
    elif panel.y is not None:
        for index, (label, names) in enumerate(panel.sweep.items()):
            there = {float(x): arms[name] for x, name in names.items() if name in arms}
            if there:
                values = [[float(figure_of(row, panel.y)) for row in r] for r in there.values()]
                against(axes, list(there), values, label=label, index=index)
    if panel.level is not None:
        axes.axhline(panel.level, color="black", linewidth=0.8, linestyle=":")
    axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)


def curves(axes: Axes, arms: Mapping[str, Sequence[Any]], points: Callable[[Any], Points]) -> None:
    """Draw an arm per colour: its seeds thin, the median of all seeds thick."""
    for colour, (name, rows) in zip(COLOURS * 4, arms.items(), strict=False):
        lines = [points(row) for row in rows]
        for line in lines:
            axes.plot(*zip(*line, strict=True), color=colour, alpha=0.25, linewidth=0.8)
        middle = median_line(lines)
        axes.plot(*zip(*middle, strict=True), color=colour, linewidth=2, label=name)
    if arms:
        axes.legend()


def median_line(lines: Sequence[Points]) -> Points:
    """Return the median of lines at every x that one of them has, linear between points.

    From where all have begun to where the first one ends."""
    begin, end = max(line[0][0] for line in lines), min(line[-1][0] for line in lines)
    xs = sorted({x for line in lines for x, _ in line if begin <= x <= end})
    each = [np.interp(xs, [x for x, _ in line], [y for _, y in line]) for line in lines]
    return [(x, float(y)) for x, y in zip(xs, np.median(each, axis=0), strict=True)]


def dots(axes: Axes, arms: Mapping[str, Sequence[float]]) -> None:
    """Draw one line per arm, from the top: a dot per seed, a bar at the median."""
    for place, values in enumerate(arms.values()):
        axes.plot(values, [place] * len(values), "o", color=COLOURS[0], alpha=0.45, markersize=4)
        axes.plot([statistics.median(values)], [place], "|", color="black", markersize=13)
    axes.set_yticks(range(len(arms)), list(arms))
    axes.set_ylim(len(arms) - 0.5, -0.5)


def against(
    axes: Axes, xs: Sequence[float], values: Sequence[Sequence[float]], *, label: str, index: int
) -> None:
    """Draw a sweep: the seeds at each x as dots, their medians joined."""
    colour = COLOURS[index]
    for x, seeds in zip(xs, values, strict=True):
        axes.plot([x] * len(seeds), seeds, "o", color=colour, alpha=0.35, markersize=4)
    axes.plot(xs, [statistics.median(seeds) for seeds in values], color=colour, label=label)
    axes.legend()
