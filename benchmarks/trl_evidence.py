"""TRL against ours on `docs/evidence.md`: table and plot from the rows of `headrace bench trl`.

In: the file of rows. Out: Markdown, and an SVG file. Where TRL or the stream has no row it says how
to get them, and there is no plot.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.crossings import interval_text
from benchmarks.plots import accuracy_over_seconds, accuracy_over_updates, curves, save
from benchmarks.rows import read_rows
from benchmarks.study_table import text
from benchmarks.trl import ROWS, SEEDS, ratio_line, shown_rows, summarise, tuning_of
from benchmarks.trl_settings import ACCURACY, MODES, RACE, UPDATES
from benchmarks.tuning import words

PLOT = "trl.svg"


def part(path: Path = ROWS) -> str:
    """Markdown: the plot, a line for each arm, the ratio in words."""
    result = summarise(tuning_of(read_rows(path), UPDATES), range(SEEDS), UPDATES)
    if result["ratio"] is None:
        return "Not measured yet: `headrace bench trl`.\n"
    plot = f"![Accuracy over updates and over seconds of training](images/evidence/{PLOT})"
    lines = [
        *([plot, ""] if all(arm["race_seeds"] for arm in result["arms"].values()) else []),
        "| arm | seeds of speed, of the race | tokens a second | CPU ms a token "
        f"| seconds to {ACCURACY} | CPU seconds to {ACCURACY} | TRL's seconds over its own "
        "| TRL's CPU seconds over its own | best setting |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for mode, arm in result["arms"].items():
        crossed = arm["race_seeds"] - arm.get("censored", 0)
        some = f" ({crossed} crossed)" if crossed < arm["race_seeds"] else ""
        each = arm["cpu_s_per_token"]
        cells = [
            mode,
            f"{arm['speed_seeds']}, {arm['race_seeds']}{some}",
            text(arm.get("tokens_per_s"), ",.0f"),
            "-" if each is None else f"{1000 * each:.2f}",
            *("-" if arm[name] is None else f"{arm[name]:.1f}" for name in ("seconds", "cpu_s")),
            *(_ratio(arm["against_trl"][name]) for name in ("seconds", "cpu_s")),
            words(arm["point"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", ratio_line(result)]) + "\n"


def _ratio(found: Mapping[str, Any]) -> str:
    """A ratio with its interval; `-` where there is none."""
    return f"{found['ratio']:.2f} ({interval_text(found['interval'])})" if found else "-"


def draw(folder: Path, path: Path = ROWS) -> list[Path]:
    """The plot, if there are rows of the race; the file."""
    found = shown_rows(tuning_of(read_rows(path), UPDATES), range(SEEDS), UPDATES)
    arms = {mode: list(rows.values()) for mode in MODES if (rows := found[RACE, mode])}
    if len(arms) < len(MODES):
        return []
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.2), sharey=True)
    curves(left, arms, accuracy_over_updates)
    curves(right, arms, accuracy_over_seconds)
    for axes in (left, right):
        axes.axhline(ACCURACY, color="black", linewidth=0.8, linestyle=":")
    left.set(xlabel="updates", ylabel="held-out accuracy")
    right.set(xlabel="seconds of training")
    save(figure, folder / PLOT)
    return [folder / PLOT]
