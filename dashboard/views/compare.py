"""Compare: runs side by side. Which is better, since when, at what cost, and what differs.

It needs no run to be chosen at the left: the address lists the runs (`multi_run_picker`). Every
chart has the same lines in the same colours over the same axis.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from dashboard.charts.chart_spec import kept
from dashboard.charts.comparison import (
    LASTS,
    ComparedLine,
    ComparedRun,
    divergences,
    lines_of,
    metric_lines,
    metric_margin,
    place,
)
from dashboard.charts.curves import Divergence
from dashboard.charts.figures import scaled_axis
from dashboard.charts.run_comparison import comparison_chart
from dashboard.components import panels
from dashboard.components.multi_run_picker import choose_runs
from dashboard.components.panels import BOUND
from dashboard.components.run_picker import RunChoice
from dashboard.formatting import count, duration, metric_caption, series_words, share
from dashboard.palette import ORANGE, tint
from dashboard.reads.configurations import differences
from dashboard.reads.data import RunData
from dashboard.reads.targets import accuracies, default_target, noise_margin
from headrace.errors import UserError
from headrace.metrics.registry import METRICS, info_of
from storage.queries import RunLine
from storage.queries.metrics import Axis

ACCURACY, LENGTH = "evaluation/accuracy", "evaluation/response_length"
"""Figures of evaluations, by names beside those of metrics."""
EVALUATED = {ACCURACY: "accuracy", LENGTH: "response_length"}
PLACES = {
    "update": "update",
    "train_time": "train_time_s",
    "wall": "wall_s",
    "tokens": "trained_tokens",
    "cpu": "cpu_s",
}
"""Columns of evaluations that are the x of an axis."""
TITLES = {
    ACCURACY: "Held-out accuracy",
    "reward/mean": "Reward",
    LENGTH: "Held-out response length",
    "response_length/mean": "Response length",
    "actor/entropy": "Entropy",
    "perf/trained_tokens_per_s": "Throughput",
    "perf/generated_tokens_per_s": "Generated tokens",
    "critic/vf_explained_var": "Explained variance",
    "actor/ppo_kl": "KL",
    "actor/pg_clipfrac": "Clip share",
    "actor/grad_norm": "Gradient norm of the policy",
    "staleness/mean": "Age of trained tokens",
    "rollout/ess": "Effective sample size",
    "idle/learner": "Learner idle",
    "idle/generator": "Generators idle",
}
SHOWN = tuple(TITLES)[:6]
_CHARTED = [name for name, info in METRICS.items() if not info.bins and "NAME" not in name]
METRIC_NAMES = tuple(dict.fromkeys((*TITLES, *_CHARTED)))
_UNITS = {ACCURACY: "share", LENGTH: "tokens"}
_CAPTIONS = {
    ACCURACY: "Share of held-out prompts answered correctly. Healthy: rising.",
    LENGTH: "Mean length of the answers to held-out prompts (tokens).",
}


@dataclass(frozen=True)
class ChartChoice:
    """Choices above the charts. `margin` is an accuracy."""

    axis: Axis
    smoothing: float
    metrics: tuple[str, ...]
    lines: tuple[ComparedLine, ...]
    against: str
    margin: float
    target: float


def render(root: Path, choice: RunChoice) -> None:
    """The page."""
    st.html('<div class="hr-line"><h1>Compare</h1></div>')
    found = choose_runs(root, choice.name)
    if not found:
        panels.empty("Choose runs above, or rows of the page Runs.")
        return
    try:
        wanted = _wanted({line.run_dir.name: RunData(line) for line in found})
    except UserError as error:  # the server of one is away
        panels.empty(str(error))
        return
    panels.live_runs(found, partial(_section, wanted=wanted))
    _differences(wanted)


def _wanted(runs: dict[str, RunData]) -> ChartChoice:
    """The bar above the charts; all of it is in the address."""
    members = [_member(name, run) for name, run in runs.items()]
    evaluations = [run.evaluations() for run in runs.values()]
    with panels.filters():
        with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
            axis, smoothing = panels.axis_and_smoothing("5 %", " Evaluations are never smoothed.")
            bands = st.toggle(
                "Seeds as a band", value=True, key="seeds",
                help="Runs of one recipe that differ in nothing but the seed are one line, the "
                "median, within the least and the largest.", **BOUND,
            )  # fmt: skip
        lines = lines_of(members, bands=bool(bands))
        labels = {line.key: line.label for line in lines}
        bar = st.columns([4, 2.6, 1.2, 1.2])
        metrics = bar[0].multiselect(
            "Metrics", METRIC_NAMES, default=SHOWN, format_func=lambda m: TITLES.get(m, m),
            key="metrics", **BOUND,
        )  # fmt: skip
        against = bar[1].selectbox(
            "Compare with", list(labels), format_func=labels.__getitem__, key="against", **BOUND
        )
        noise, goal = noise_margin(evaluations), default_target(evaluations)
        target = bar[2].number_input(
            "Target, %", 0.0, 100.0, value=None, step=5.0, key="target",
            placeholder=f"{100 * goal:.0f}",
            help="The held-out accuracy whose cost is shown. Without a number: the "
            "largest multiple of 5 that all runs reached.", **BOUND,
        )  # fmt: skip
        margin = bar[3].number_input(
            "Margin, points", 0.0, 100.0, value=None, step=1.0, key="margin",
            placeholder=f"{100 * noise:.1f}",
            help="Two accuracies are apart when they differ by more than this. Without a number: "
            "two standard errors of a difference at this number of held-out prompts.", **BOUND,
        )  # fmt: skip
    return ChartChoice(
        axis=axis,
        smoothing=smoothing,
        metrics=tuple(metrics),
        lines=tuple(lines),
        against=labels.get(against or "", lines[0].label),
        margin=noise if margin is None else margin / 100,
        target=goal if target is None else target / 100,
    )


def _member(name: str, run: RunData) -> ComparedRun:
    try:
        config = run.config()
    except UserError:
        config = {}
    return ComparedRun(name, run.line.name, run.line.seed, config)


def _section(lines: Sequence[RunLine], wanted: ChartChoice) -> None:
    panels.begin_jumps()
    runs = {line.run_dir.name: RunData(line) for line in lines}
    metrics = dict.fromkeys([ACCURACY, *wanted.metrics])
    frames = {name: _frame(runs, name, wanted) for name in metrics}
    if all(frame.empty for frame in frames.values()):
        phases = ", ".join(sorted({line.status for line in lines}))
        panels.empty(f"No update and no evaluation yet: {phases}.")
    else:
        _verdict(frames[ACCURACY], wanted)
        drawn = {name: frames[name] for name in wanted.metrics}
        known = [frame["x"] for frame in drawn.values() if len(frame)]
        span = (float(min(map(min, known))), float(max(map(max, known)))) if known else (0.0, 1.0)
        panels.grid([partial(_card, name, frame, span, wanted) for name, frame in drawn.items()])
    _accuracies(runs, wanted)


def _frame(runs: dict[str, RunData], metric: str, wanted: ChartChoice) -> pd.DataFrame:
    """All lines of one metric. Those of updates are put together again when one of the runs has
    something more to see; evaluations are few."""
    if metric in EVALUATED:
        return metric_lines(wanted.lines, lambda name: _evaluated(runs[name], metric, wanted.axis))
    members = tuple(
        (line.label, *(member.name for member in line.members)) for line in wanted.lines
    )
    pictures = tuple(run.picture() for run in runs.values())
    return _lines(pictures, members, metric, wanted.axis, wanted.smoothing, runs, wanted.lines)


def _evaluated(run: RunData, metric: str, axis: Axis) -> pd.DataFrame:
    """A figure of a run's evaluations over an axis."""
    rows = run.evaluations()
    curve = pd.DataFrame({"x": rows[PLACES[axis]], "value": rows[EVALUATED[metric]]})
    return curve.dropna(subset=["x"])


@st.cache_data(max_entries=128, show_spinner=False)
def _lines(
    pictures: tuple[tuple[str, str], ...],
    members: tuple[tuple[str, ...], ...],
    metric: str,
    axis: Axis,
    smoothing: float,
    _runs: dict[str, RunData],
    _of: tuple[ComparedLine, ...],
) -> pd.DataFrame:
    return metric_lines(_of, lambda name: _runs[name].series((metric,), axis), smoothing=smoothing)


def _apart(metric: str, frame: pd.DataFrame, wanted: ChartChoice) -> dict[str, Divergence | None]:
    """From where on each other line is apart from the one that is compared with."""
    margin = wanted.margin if metric == ACCURACY else metric_margin(frame)
    lasts = 0.0 if metric in EVALUATED else LASTS
    return divergences(frame, wanted.against, margin, lasts=lasts)


def _verdict(frame: pd.DataFrame, wanted: ChartChoice) -> None:
    """Line that is better in held-out accuracy, and since when: of lines with two evaluations of
    one run at least."""
    apart = _apart(ACCURACY, frame, wanted)
    known = frame.groupby("label")["points"].first()
    with panels.framed("Which is better, since when?", f"Against {wanted.against}"):
        if len(wanted.lines) < 2:
            panels.empty("One line says nothing by itself: choose more runs, or show seeds apart.")
        elif not apart:
            panels.empty("Held-out accuracy is not known of both sides yet.")
        else:
            rows = [
                _sentence(label, found, wanted, min(known[label], known[wanted.against]))
                for label, found in apart.items()
            ]
            st.html("".join(f'<div style="margin:.25rem 0">{row}</div>' for row in rows))
        st.caption(
            "In held-out accuracy. Two lines are apart for good from the first point on after "
            "which one stays above the other by more than the margin, to the end of what both "
            f"have: {100 * wanted.margin:.1f} points for accuracies; for all else a tenth of the "
            "range of all lines, for a tenth of that stretch at least. Between two evaluations a "
            "line counts as anywhere between the two; a rule marks the point on each chart."
        )


def _sentence(label: str, found: Divergence | None, wanted: ChartChoice, evaluations: int) -> str:
    name = f"<b>{escape(label)}</b>"
    if evaluations < 2:
        return f'{name}: <span class="hr-soft">cannot be told yet: 1 evaluation</span>'
    if found is None:
        return f'{name} <span class="hr-soft">is not apart from it for good</span>'
    kind, word = ("hr-ok", "better") if found.gap > 0 else ("hr-bad", "worse")
    return (
        f'{name} is <span class="{kind}">{word}</span> since {place(found.x, wanted.axis)}, '
        f"by {100 * abs(found.gap):.1f} points at the end of what both have"
    )


def _card(metric: str, frame: pd.DataFrame, span: tuple[float, float], wanted: ChartChoice) -> None:
    """One chart, and from where on its lines are apart."""
    title = TITLES.get(metric, metric)
    with panels.framed(title, height="stretch"):
        if frame.empty:
            panels.empty("None of these runs has it so far.")
        else:
            apart = {k: v for k, v in _apart(metric, frame, wanted).items() if v is not None}
            scaled, across = scaled_axis(pd.DataFrame({"x": [span[1]]}), wanted.axis)
            unit = span[1] / float(scaled["x"].iloc[0]) if span[1] else 1.0
            unit_of = _UNITS.get(metric) or info_of(metric).unit
            chart = kept(
                comparison_chart,
                frame.assign(x=frame["x"] / unit),
                labels=[line.label for line in wanted.lines],
                title=across,
                span=(span[0] / unit, span[1] / unit),
                unit=unit_of,
                whole=wanted.axis == "update",
                since={label: found.x / unit for label, found in apart.items()},
            )
            shown = frame[["x", "smooth", "label"]].set_axis(["x", "value", "name"], axis=1)
            panels.draw(chart, title, series_words(shown, wanted.axis, unit_of, label=str))
            said = [
                f"{escape(label)} is {'above' if found.gap > 0 else 'below'} since "
                f"{place(found.x, wanted.axis)}"
                for label, found in apart.items()
            ]
            if said:
                st.html(f'<div class="hr-soft">{"; ".join(said)}</div>')
        st.caption(_CAPTIONS.get(metric) or metric_caption((metric,), shaded=False))


def _accuracies(runs: dict[str, RunData], wanted: ChartChoice) -> None:
    with panels.framed(f"Held-out accuracy, and what {share(wanted.target)} cost"):
        st.dataframe(
            accuracy_rows(runs, wanted.lines, wanted.target),
            hide_index=True,
            width="stretch",
            placeholder="-",
            alt="Held-out accuracy of each run",
            column_config={"run": st.column_config.LinkColumn(display_text=r"run=(.+)")},
        )
        st.caption(
            "Tokens are policy tokens trained, time is training time (evaluations stop that "
            "clock), both at the first evaluation at or above the target; a run that never had "
            "it has a dash. With few evaluations these are upper bounds."
        )


def _differences(wanted: ChartChoice) -> None:
    members = [member for line in wanted.lines for member in line.members]
    with panels.framed("Differences in configuration"):
        found = differences({member.name: member.config for member in members})
        if len(members) < 2 or found.empty:
            panels.empty("There are none." if len(members) > 1 else "One run differs from nothing.")
            return
        st.dataframe(
            marked_differences(found), width="stretch", alt="Keys that differ between the runs"
        )
        st.caption(
            "Only keys that are not the same in all runs. Marked is what differs from the first "
            "one; a dash: it has no such key. Keys of how long a run went on, where it ran and "
            "what it kept come last and do not part seeds."
        )


def accuracy_rows(runs: Mapping[str, RunData], lines: Sequence[ComparedLine], target: float) -> Any:
    """A row for each run, line by line; `run` is a link to its overview."""
    rows = [
        {
            "run": f"overview?run={member.name}",
            "recipe": member.recipe,
            "seed": member.seed,
            **accuracies(runs[member.name].evaluations(), target),
        }
        for line in lines
        for member in line.members
    ]
    costs = {"tokens": f"tokens to {share(target)}", "seconds": f"training to {share(target)}"}
    frame = pd.DataFrame(rows).rename(columns=costs).convert_dtypes()
    words: dict[Any, Any] = {"seed": count, "at update": count}
    words |= dict.fromkeys(["first", "best", "last"], share)
    words |= {costs["tokens"]: count, costs["seconds"]: duration}
    return frame.style.format(words, na_rep="-")


def marked_differences(found: pd.DataFrame) -> Any:
    """Differences with what is not as in the first column marked, in bold and in colour."""
    other = found.ne(found.iloc[:, 0], axis=0)
    style = f"background-color: {tint(ORANGE, 0.2)}; font-weight: 700"
    styles = other.map(lambda differs: style if differs else "")
    return found.style.apply(lambda _: styles, axis=None)
