"""Tables and plots of the reward studies for `docs/evidence.md`: hacking, and pairwise rewards.

In: rows of hacking and pairwise, those of earlier tasks among them.

Out: Markdown, a line for each task and arm, or part and arm, with medians over seeds,
least and largest; and SVG files. Promise: a row that failed its gate is shown and counted like the
others.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.study_plots import Points, curves, dots, save
from benchmarks.kit.study_table import Table, spread, text

Row = dict[str, Any]
EASY = "copy"
"""The task of rows that name none: they are older than the sums."""
FIRST_GATE = 0.08
"""Of `offset`: that of rows that name none."""
HACKING_FIGURES = {
    "truth": "truth",
    "gap": "proxy less truth",
    "fillers": "fillers an answer",
    "entropy_estimate": "entropy estimate, nats",
    "edit_distance": "largest edit distance in a group",
}


def _by(rows: Sequence[Row], name: Callable[[Row], str]) -> dict[str, list[Row]]:
    """The rows by name, in the order of their first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(name(row), []).append(row)
    return found


def _task(row: Row) -> str:
    return str(row.get("task", EASY))


def _passed(rows: Sequence[Row]) -> str:
    return f"{sum(bool(row['passed']) for row in rows)} of {len(rows)}"


def _moved(found: Sequence[Row], figure: str) -> str:
    """The median before training, then that after it with its least and largest."""
    before = spread([one["before"][figure] for one in found])["median"]
    return f"{before:.2f}, then {text(spread([one['after'][figure] for one in found]), '.2f')}"


def hacking_table(rows: Sequence[Row]) -> str:
    """Markdown: what training on each reward did, and when the alert of the gap came."""
    titles = ("task", "trained on", "seeds", *HACKING_FIGURES.values(), "alert at", "gate passed")
    lines = []
    for task, mine in _by(rows, _task).items():
        for arm in mine[0]["arms"]:
            found = [row["arms"][arm] for row in mine]
            cells = [_moved(found, figure) for figure in HACKING_FIGURES]
            alerts = ", ".join("-" if one["alert"] is None else str(one["alert"]) for one in found)
            lines.append((task, arm, str(len(mine)), *cells, alerts, _passed(mine)))
    return Table(titles, lines).markdown()


def draw_hacking(rows: Sequence[Row], path: Path) -> None:
    """Truth, gap and fillers of each update's answers: a line of axes for each task."""
    tasks = _by(rows, _task)
    shown = ("truth", "gap", "fillers")
    figure, grid = plt.subplots(
        len(tasks), len(shown), figsize=(9.6, 2.9 * len(tasks)), squeeze=False
    )
    for line, (task, mine) in zip(grid, tasks.items(), strict=True):
        arms = {f"trained on the {arm}": [row["arms"][arm] for row in mine] for arm in
                mine[0]["arms"]}  # fmt: skip
        for axes, name in zip(line, shown, strict=True):
            curves(axes, arms, _over_updates(name))
            axes.set(xlabel="updates", ylabel=HACKING_FIGURES[name])
        line[0].set_title(task, loc="left", fontsize=9)
    save(figure, path)


def _over_updates(figure: str) -> Callable[[Row], Points]:
    return lambda arm: [(float(at), one[figure]) for at, one in enumerate(arm["updates"], 1)]


def _part(row: Row) -> str:
    if row["part"] != "offset":
        return str(row["part"])
    gate = row.get("gate", FIRST_GATE)
    return f"offset, {_task(row)}, gate {gate}"


def _values(rows: Sequence[Row]) -> dict[str, list[float]]:
    """The figures of a part, by arm and name, over its seeds."""
    found: dict[str, list[float]] = {}
    for row in rows:
        arms = row.get("arms") or {"against": row["reward"]}
        for arm, figures in arms.items():
            for name, value in figures.items():
                found.setdefault(f"{arm}: {name.replace('_', ' ')}", []).append(value)
    return found


def pairwise_table(rows: Sequence[Row]) -> str:
    """Markdown: a line for each figure of each part."""
    lines = [
        (part, name, text(spread(values), ".3f"), str(len(values)), _passed(mine))
        for part, mine in _by(rows, _part).items()
        for name, values in _values(mine).items()
    ]
    return Table(("part", "figure", "value", "seeds", "gate passed"), lines).markdown()


def draw_pairwise(rows: Sequence[Row], path: Path) -> None:
    """Every figure of every part: a dot a seed, a bar at the median."""
    parts = _by(rows, _part)
    values = {part: _values(mine) for part, mine in parts.items()}
    figure, grid = plt.subplots(
        len(parts), 1, figsize=(7.2, 0.6 * len(parts) + 0.24 * sum(map(len, values.values()))),
        squeeze=False, height_ratios=[1 + len(found) for found in values.values()],
    )  # fmt: skip
    for (axes,), (part, found) in zip(grid, values.items(), strict=True):
        dots(axes, found)
        axes.set_title(part, loc="left", fontsize=9)
    save(figure, path)


class RewardStudy(NamedTuple):
    """A study that is a row a seed: its rows, its table, its plot and the plot's caption."""

    rows: Path
    table: Callable[[Sequence[Row]], str]
    draw: Callable[[Sequence[Row], Path], None]
    caption: str


STUDIES = {
    "hacking": RewardStudy(
        RESULTS / "hacking.jsonl",
        hacking_table,
        draw_hacking,
        "Truth, gap and fillers update by update",
    ),
    "pairwise": RewardStudy(
        RESULTS / "pairwise.jsonl", pairwise_table, draw_pairwise, "Every figure of the three parts"
    ),
}
"""By the name of the command and of the plot's file."""


def part(name: str) -> str:
    """Markdown of a study: its plot and its table, or how to get them."""
    study = STUDIES[name]
    rows = list(read_rows(study.rows).values())
    if not rows:
        return f"Not measured yet: `headrace bench {name}`.\n"
    return f"![{study.caption}](images/evidence/{name}.svg)\n\n{study.table(rows)}"


def draw(folder: Path) -> list[Path]:
    """Draw every plot that there are rows for; the files."""
    drawn = []
    for name, study in STUDIES.items():
        if rows := list(read_rows(study.rows).values()):
            drawn.append(folder / f"{name}.svg")
            study.draw(rows, drawn[-1])
    return drawn
