"""Pipeline: who works when, who waits for whom, and how old tokens are when they are trained."""

from functools import partial
from pathlib import Path

import streamlit as st

from dashboard import panels
from dashboard.data import RunData
from dashboard.figures import timeline_chart
from dashboard.words import number, share, waiting_side

SPANS: dict[str, float | None] = {
    "last 20 s": 20.0,
    "last minute": 60.0,
    "last 5 minutes": 300.0,
    "whole run": None,
}
MOST_BARS = 4000
ARRAYS = (
    ("Dropped for age, by response length", "staleness/drop_share"),
    ("Masked otherwise, by response length", "staleness/mask_share"),
)


def render(run: RunData, root: Path) -> None:
    """The page."""
    panels.live(run, _body)


def _body(run: RunData) -> None:
    panels.title(run, "Pipeline")
    chosen = st.segmented_control(
        "Timeline",
        list(SPANS),
        default="last minute",
        required=True,
        key="span",
        bind="query-params",
    )
    span = chosen or "last minute"
    summary = run.summary()
    if summary["updates"]:
        idle = summary["idle_share"]
        st.info(waiting_side(idle["learner"], idle["generator"]), icon=":material/hourglass_top:")
    _waits(run)
    _timeline(run, span)
    panels.grid(
        [
            partial(
                panels.metric_card,
                run,
                "Idle shares",
                ("idle/learner", "idle/generator"),
                "wall",
                samples=True,
            ),
            partial(
                panels.metric_card,
                run,
                "Windows in play against the bound",
                ("schedule/in_play", "schedule/bound"),
                bounds=("schedule/bound",),
            ),
            partial(panels.metric_card, run, "Staleness", ("staleness/mean", "staleness/max")),
            partial(
                panels.metric_card,
                run,
                "Tokens per second",
                ("perf/generated_tokens_per_s", "perf/trained_tokens_per_s"),
            ),
            partial(
                panels.metric_card,
                run,
                "Queues",
                (
                    "schedule/live",
                    "schedule/ready_windows",
                    "schedule/scoring",
                    "schedule/value_waiting",
                ),
                "wall",
                samples=True,
            ),
            partial(
                panels.metric_card,
                run,
                "Where an update's time goes",
                (
                    "timing_s/wait_for_batch",
                    "timing_s/forward",
                    "timing_s/policy",
                    "timing_s/value",
                    "timing_s/publish",
                ),
            ),
            *(partial(panels.array_card, run, title, name) for title, name in ARRAYS),
        ]
    )


def _waits(run: RunData) -> None:
    """Idle shares and staleness as numbers."""
    summary, columns = run.summary(), st.columns(4)
    idle, staleness = summary["idle_share"], summary["staleness"]
    columns[0].metric(
        "Learner idle",
        share(idle["learner"]),
        help="share of training time in which the learner waited for a batch",
        border=True,
        height="stretch",
    )
    columns[1].metric(
        "Generators idle",
        share(idle["generator"]),
        help="share of training time in which generators had nothing to generate",
        border=True,
        height="stretch",
    )
    columns[2].metric(
        "Staleness",
        number(staleness["mean"]),
        f"{number(staleness['max'])} at most, bound {run.config()['schedule']['max_staleness']}",
        delta_color="off",
        delta_arrow="off",
        help="updates between the sampling of a token and its training",
        border=True,
        height="stretch",
    )
    columns[3].metric(
        "Weight version", number(summary["weight_version"]), border=True, height="stretch"
    )


def _timeline(run: RunData, span: str) -> None:
    bars = run.timeline(SPANS[span])
    note = ""
    if len(bars) > MOST_BARS:
        note = f"the newest {MOST_BARS} of {len(bars)} bars"
        bars = bars.tail(MOST_BARS)
    panels.card(
        "Who works when",
        None if bars.empty else timeline_chart(bars, start=run.line.started_at or 0.0),
        "A generator's bar: it has an unfinished trajectory, held ones included. The learner's: "
        "it has a batch. Orange ticks: new weights are loaded while generation goes on. Healthy in "
        "streaming mode: no gaps in the generators' lanes and short ones in the learner's. In "
        "synchronous and windowed mode the two take turns.",
        note=note,
        wait=panels.awaited(run, "the first token"),
    )
