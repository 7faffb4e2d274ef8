"""Runs side by side: which of them make one line, and the lines of a metric.

In: what is known of each run, and its curves. Out: `ComparedLine`s and frames for
`run_comparison`. A line is a run, or the seeds of one recipe and configuration: the median of those
that are known at an x, within the least and the largest. Pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dashboard.charts.curves import Divergence, first_divergence, seed_band
from dashboard.charts.figures import running_mean
from dashboard.formatting import count, duration
from dashboard.reads.configurations import distinctions, same_but_seed

RANGE_SHARE = 0.1
"""Of the range of all lines of a metric: closer together than this, two of them are not apart."""
LASTS = 0.1
"""Of the stretch that both lines have: two lines of a metric that are apart for less are not yet
apart for good. Evaluations are few and say so at once."""
_OF = {"train_time": "training", "wall": "the run", "cpu": "CPU time"}
Read = Callable[[str], pd.DataFrame]
"""The curve (x, value) of a run's folder name."""


@dataclass(frozen=True)
class ComparedRun:
    """A run that is compared. `name` is its folder's."""

    name: str
    recipe: str
    seed: int | None
    config: dict[str, Any]


@dataclass(frozen=True)
class ComparedLine:
    """A run, or several seeds, drawn as one line. `key` is the name of its first run."""

    key: str
    label: str
    members: tuple[ComparedRun, ...]


def lines_of(members: Sequence[ComparedRun], *, bands: bool) -> list[ComparedLine]:
    """The lines in the order of their first runs. With `bands`, runs of one recipe that differ in
    nothing but the seed, and in what does not change how they learn, are one."""
    groups: dict[tuple[str, str], list[ComparedRun]] = {}
    for member in members:
        same = same_but_seed(member.config) if bands else member.name
        groups.setdefault((member.recipe, same), []).append(member)
    found = list(groups.values())
    told = _told(found) if bands else {}
    labels = [_label(group) + told.get(group[0].name, "") for group in found]
    # Two lines never have one label: the run's whole name tells them apart.
    labels = [
        f"{label} {group[0].name}" if labels.count(label) > 1 else label
        for label, group in zip(labels, found, strict=True)
    ]
    return [
        ComparedLine(group[0].name, label, tuple(group))
        for group, label in zip(found, labels, strict=True)
    ]


def _told(groups: Sequence[Sequence[ComparedRun]]) -> dict[str, str]:
    """The difference of each group from the others of its recipe, by its first run."""
    recipes: dict[str, list[ComparedRun]] = {}
    for first, *_ in groups:
        recipes.setdefault(first.recipe, []).append(first)
    return {
        run.name: f", {words}"
        for rivals in recipes.values()
        for run, words in zip(rivals, distinctions([r.config for r in rivals]), strict=True)
        if words
    }


def _label(group: Sequence[ComparedRun]) -> str:
    """Recipe and seed, and of a single run the end of its name."""
    recipe, seeds = group[0].recipe, sorted({m.seed for m in group if m.seed is not None})
    said = ", ".join(map(str, seeds))
    if len(group) > 1:
        return f"{recipe} seeds {said} ({len(group)} runs)"
    end = group[0].name.rpartition("-")[2]
    return f"{recipe} seed {said} ({end})" if seeds else f"{recipe} ({end})"


def metric_lines(
    lines: Sequence[ComparedLine], read: Read, *, smoothing: float = 0.0
) -> pd.DataFrame:
    """Columns label, x, value, low, high, runs, smooth, points: every line of one metric, in order.
    `low` and `high` are the ends of a band (of a single run `value`). `smooth` is `value`, or with
    `smoothing` its running mean over that share of the points. `points`: the most of one run."""
    frames = []
    for line in lines:
        curves = [_known(read(member.name)) for member in line.members]
        frame = seed_band(curves) if len(curves) > 1 else curves[0]
        if len(frame):
            points = max(curve["x"].nunique() for curve in curves)
            named = frame.assign(name="", label=line.label, points=points)
            smooth = running_mean(named, smoothing) if smoothing else named["value"]
            frames.append(named.assign(smooth=smooth))
    columns = ["label", "x", "value", "low", "high", "runs", "smooth", "points"]
    if not frames:
        return pd.DataFrame(columns=columns)
    return pd.concat(frames, ignore_index=True)[columns]


def _known(curve: pd.DataFrame) -> pd.DataFrame:
    known = curve.dropna(subset=["value"]).astype({"x": float, "value": float})
    return known.assign(low=known["value"], high=known["value"], runs=1)


def divergences(
    frame: pd.DataFrame, against: str, margin: float, *, lasts: float = 0.0
) -> dict[str, Divergence | None]:
    """For each line of `metric_lines`, the point from which on it is apart from `against`.

    By label; its `gap` is how much that line is above the line `against` at the end."""
    curves = {
        str(label): pd.DataFrame({"x": rows["x"], "value": rows["smooth"]})
        for label, rows in frame.groupby("label", sort=False)
    }
    if against not in curves:
        return {}
    return {
        label: first_divergence(curve, curves[against], margin, lasts=lasts)
        for label, curve in curves.items()
        if label != against
    }


def metric_margin(frame: pd.DataFrame) -> float:
    """Minimum distance of two lines of a metric, from the range of them all."""
    known = frame["smooth"].dropna()
    return RANGE_SHARE * float(known.max() - known.min()) if len(known) else 0.0


def place(x: float, axis: str) -> str:
    """A point of an axis in words."""
    if axis == "update":
        return f"update {count(x)}"
    if axis == "tokens":
        return f"{count(x)} trained tokens"
    return f"{duration(x)} of {_OF[axis]}"
