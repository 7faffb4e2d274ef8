"""Pipeline: who works when, who waits for whom, and how old tokens are when they are trained."""

from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from dashboard.charts.timeline import lane_order, lanes_chart, lives_chart
from dashboard.components import panels
from dashboard.formatting import number, share, what_binds
from dashboard.reads.data import RunData, is_live
from storage.queries import idle_of

SPANS: dict[str, float | None] = {
    "last 20 s": 20.0,
    "last minute": 60.0,
    "last 5 minutes": 300.0,
    "last hour": 3600.0,
    "whole run": None,
}
LIVES = 40
NOW_S = 60.0
"""What counts as now."""
CHARTS: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (
    (
        "Windows in play against the bound",
        ("schedule/in_play", "schedule/bound"),
        {"bounds": ("schedule/bound",)},
    ),
    ("Staleness", ("staleness/mean", "staleness/max"), {}),
    ("Tokens per second", ("perf/generated_tokens_per_s", "perf/trained_tokens_per_s"), {}),
    (
        "Queues",
        ("schedule/live", "schedule/ready_windows", "schedule/scoring", "schedule/value_waiting"),
        {"x": "wall", "samples": True},
    ),
    (
        "Where an update's time goes",
        (
            "timing_s/wait_for_batch",
            "timing_s/forward",
            "timing_s/policy",
            "timing_s/value",
            "timing_s/publish",
        ),
        {},
    ),
)
"""Titles, metrics, and how a chart differs from others."""
USES = (
    (
        "Processors by process", "cpu/",
        "Cores that each process keeps busy, with all that it started, on the coordinator's host.",
    ),
    (
        "GPUs by process", "gpu/",
        "GPUs that each process keeps busy, as NVML says, on the coordinator's host. Healthy: near "
        "the number that it has.",
    ),
)  # fmt: skip
"""Titles, how metrics begin, captions."""
ARRAYS = (
    ("Dropped for age, by response length", "staleness/drop_share"),
    ("Masked otherwise, by response length", "staleness/mask_share"),
)


@panels.repainted
def render(run: RunData) -> None:
    """The page."""
    panels.title(run, "Pipeline")
    _sentence(run)
    chosen = panels.one_of("Timeline", SPANS, "whole run", key="span")
    frame = run.activity(SPANS[chosen])
    _waits(run, frame, chosen)
    panels.frame_card(
        "Who works when", lanes_chart, frame, start=run.line.started_at or 0.0,
        caption="Each stretch of time is divided by what it was spent on. Working: the learner has "
        "a batch, a generator samples. Loading: a generator stands still for new weights. Held: "
        "what it has may not go on, because the staleness bound is reached. Waiting: nothing to "
        "do. Healthy in streaming mode: hardly any orange or grey. In synchronous and windowed "
        "mode the two take turns.",
        note=f"{len(lane_order(frame))} processes" if len(frame) else "",
        wait=panels.awaited(run, "the first token"),
    )  # fmt: skip
    panels.frame_card(
        "Answers on their way", lives_chart, run.lives(LIVES, SPANS[chosen]),
        start=run.line.started_at or 0.0,
        caption=f"The newest {LIVES} training answers. Thick: generated, then trained, in the "
        "colour of the weights that sampled last or were trained; pink: its environment's turn. "
        "Thinner: scored. A line: it waits for a generator or an update. Healthy: short lines.",
        wait=panels.awaited(run, "the first token"),
    )  # fmt: skip
    waits = ("schedule/paused",) if run.config().get("environment") else ()
    charts = [
        partial(panels.metric_card, run, title, names + waits * (title == "Queues"), **options)
        for title, names, options in CHARTS
    ]
    charts += [
        partial(panels.metric_card, run, title, names, "wall", samples=True, caption=caption)
        for title, prefix, caption in USES
        if (names := sorted(run.latest(prefix)))
    ]
    arrays = [partial(panels.array_card, run, title, name) for title, name in ARRAYS]
    panels.grid([*charts, *arrays])


def _sentence(run: RunData) -> None:
    """Bottleneck now; of a run that has ended, in its last minute of training."""
    phase = run.line.status
    if phase == "evaluating":
        st.info("An evaluation is under way: training stands still, and its clock.")
        return
    frame, over = run.activity(NOW_S), "in the last minute"
    learner, generators = idle_shares(frame)
    if learner is None and not is_live(run.line):
        frame, over = run.activity(None), "in the whole run"
        learner, generators = idle_shares(frame)
    if learner is None:
        return
    gauges = run.latest("schedule/") if is_live(run.line) else {}
    said = what_binds(
        learner,
        generators,
        over=over,
        mode=run.line.mode,
        scoring=gauges.get("schedule/scoring") or 0.0,
        live=gauges.get("schedule/live") or 0.0,
    )
    st.info(said, icon=":material/hourglass_top:")


def idle_shares(frame: pd.DataFrame) -> tuple[float | None, float | None]:
    """Idle shares of the learner and of generators together, in an activity frame's span.

    Each generator counts by its training time. None without any."""
    lanes = frame["lane"].where(frame["lane"] == "learner", "generators")
    idle = idle_of(frame.assign(lane=lanes))
    return idle.get("learner"), idle.get("generators")


def _waits(run: RunData, frame: pd.DataFrame, span: str) -> None:
    """Idle shares of the span shown, and staleness, as numbers."""
    summary, columns = run.summary(), st.columns(4)
    learner, generators = idle_shares(frame)
    staleness, whole = summary["staleness"], span == "whole run"
    over = "the run's training time" if whole else f"the training time of the {span}"
    framed: dict[str, Any] = {"border": True, "height": "stretch"}
    columns[0].metric(
        "Learner idle",
        share(learner),
        help=f"share of {over} in which the learner waited for a batch: what is grey below",
        **framed,
    )
    columns[1].metric(
        "Generators idle",
        share(generators),
        help=f"share of {over} in which generators were held or had no trajectory: what is orange "
        "or grey below",
        **framed,
    )
    columns[2].metric(
        "Staleness",
        number(staleness["mean"]),
        f"{number(staleness['max'])} at most, bound {run.config()['schedule']['max_staleness']}",
        delta_color="off",
        delta_arrow="off",
        help="updates between the sampling of a token and its training, in the whole run",
        **framed,
    )
    columns[3].metric("Weight version", number(summary["weight_version"]), **framed)
