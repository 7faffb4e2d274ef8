"""The table and the plot of `egae-bias` for `docs/evidence.md`, from its rows."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

from benchmarks import egae_bias
from benchmarks.egae_estimates import BOUNDARIES, ESTIMATORS, WINDOWS, Estimator
from benchmarks.plots import against, save
from benchmarks.study_plan import Row
from benchmarks.study_table import spread, text

NO_CUT = Estimator(WINDOWS[-1], "copy", 0.95)


def bias_table(rows: Sequence[Row]) -> str:
    """Markdown of `egae-bias`: policies and value models by estimators, medians over seeds with
    least and largest."""
    columns = {
        "cut": ("cut_share", "all"),
        "bias": ("bias", "all"),
        "rms bias": ("rms_bias", "all"),
        "gradient part": ("rms_gradient_bias", "all"),
        "near the cut": ("rms_gradient_bias", "near"),
        "spread": ("spread", "all"),
        "correlation": ("correlation", "all"),
    }
    lines = [
        "| policy | value model | W | rule | lambda | " + " | ".join(columns) + " |",
        "|---" * (5 + len(columns)) + "|",
    ]
    for pair in egae_bias.pairs():
        for one in ESTIMATORS:
            if one.window not in (WINDOWS[0], 60, WINDOWS[-1]):
                continue
            cells = [egae_bias.values_of(rows, pair, one, *column) for column in columns.values()]
            if any(cells):
                rule = one.boundary if one.window < WINDOWS[-1] else "no cut"
                figures = [text(spread(cell) if cell else None, ".2f") for cell in cells]
                lines.append(
                    f"| {' | '.join((*pair, str(one.window), rule, f'{one.lam:g}', *figures))} |"
                )
    return "\n".join(lines) + "\n"


def draw_egae_bias(rows: Sequence[Row], path: Path) -> None:
    """Bias and spread against the window at lambda 0.95: a column a policy and value model, the
    advantage's own size as a line."""
    figure, grid = plt.subplots(3, 4, figsize=(11, 7), sharex=True, sharey="row")
    names = {
        "rms_bias": "rms bias",
        "rms_gradient_bias": "rms bias, gradient part",
        "spread": "spread over continuations",
    }
    for column, pair in zip(grid.T, egae_bias.pairs(), strict=True):
        for axes, name in zip(column, names, strict=True):
            for index, rule in enumerate(BOUNDARIES):
                sweep = [Estimator(w, rule, 0.95) for w in WINDOWS[:-1]] + [NO_CUT]
                values = [egae_bias.values_of(rows, pair, one, name, "all") for one in sweep]
                if all(values):
                    against(axes, WINDOWS, values, label=rule, index=index)
            if size := egae_bias.values_of(rows, pair, NO_CUT, "rms_advantage", "all"):
                axes.axhline(statistics.median(size), color="black", linewidth=0.8)
        column[0].set_title(f"{pair[0]}\nvalue model {pair[1]}", fontsize=9)
        column[-1].set(xlabel="window, tokens", xscale="log")
        column[-1].set_xticks(WINDOWS, [str(window) for window in WINDOWS])
        column[-1].minorticks_off()
    for axes, label in zip(grid[:, 0], names.values(), strict=True):
        axes.set_ylabel(label)
    save(figure, path)
