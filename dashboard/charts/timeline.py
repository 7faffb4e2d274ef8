"""Chart of the processes' activities over time, one lane per process.

In: the frame of `storage.queries.activity`; not empty. Out: an Altair chart, as wide as the span
whatever its length. Pure, like `figures`.
"""

import json

import altair as alt
import pandas as pd

from dashboard.charts.figures import Chart, in_unit
from dashboard.charts.legends import legend
from dashboard.palette import ACTIVITIES, BLUE, GREY, ORANGE, PURPLE, TEAL

STAGES = {"waiting": 1.0, "environment": 8.0, "scoring": 4.0, "generating": 8.0, "training": 8.0}
"""How thick the bar of a stage is, in pixels."""
_GAP = 0.09
"""Of a lane's height, above and below."""


def lane_order(frame: pd.DataFrame) -> list[str]:
    """Generators, then the learner."""
    return sorted(frame["lane"].unique(), key=lambda lane: (lane == "learner", lane))


def lanes_chart(frame: pd.DataFrame, *, start: float) -> Chart:
    """Each stretch of each lane is divided by what it was spent on. Time counts from `start` (epoch
    seconds)."""
    ends = {kind: "starting, ending" for kind in ("starting", "ending")}
    frame = frame.assign(kind=frame["kind"].replace(ends))
    lanes, kinds = lane_order(frame), [kind for kind in ACTIVITIES if kind in set(frame["kind"])]
    data = stacked(frame, lanes).assign(begin=frame["start"] - start, stop=frame["end"] - start)
    data, title = in_unit(data, "begin", "stop")
    names = f"{json.dumps(lanes[::-1])}[floor(datum.value)]"
    count = len(lanes)
    shown = legend(kinds, symbol="square")
    scale = alt.Scale(domain=kinds, range=[ACTIVITIES[kind] for kind in kinds])
    chart: alt.Chart = (
        alt.Chart(data)
        .mark_rect(strokeWidth=0.5)  # no seams between stretches
        .encode(
            x=alt.X(
                "begin:Q",
                title=title,
                axis=alt.Axis(grid=False),
                scale=alt.Scale(nice=False, zero=False),
            ),
            x2="stop:Q",
            y=alt.Y(
                "low:Q",
                title=None,
                scale=alt.Scale(domain=[0, count], nice=False),
                axis=alt.Axis(
                    values=[i + 0.5 for i in range(count)],
                    labelExpr=names,
                    labelLimit=160,
                    ticks=False,
                    grid=False,
                ),
            ),
            y2="high:Q",
            color=alt.Color("kind:N", scale=scale, legend=shown),
            stroke=alt.Stroke("kind:N", scale=scale, legend=shown),
            tooltip=[
                alt.Tooltip("lane:N", title="who"),
                alt.Tooltip("kind:N", title="what"),
                alt.Tooltip("share:Q", title="share of this stretch", format=".0%"),
                alt.Tooltip("begin:Q", title="from", format=",.5~g"),
                alt.Tooltip("stop:Q", title="to", format=",.5~g"),
            ],
        )
        .properties(height=130 + 62 * count)
    )
    return chart


def lives_chart(frame: pd.DataFrame, *, start: float) -> Chart:
    """A lane for each answer of `storage.queries.lives`, a bar for each stage, as high as STAGES
    says; what has to do with weights is coloured by their version, an environment's steps are pink.
    Time counts from `start` (epoch seconds)."""
    data = frame.assign(begin=frame["start"] - start, stop=frame["end"] - start)
    data, title = in_unit(data, "begin", "stop")
    has_weights = data["stage"].isin(("generating", "training"))
    base = alt.Chart(data.assign(thick=data["stage"].map(STAGES), weights=has_weights)).encode(
        x=alt.X("begin:Q", title=title, axis=alt.Axis(grid=False), scale=alt.Scale(zero=False)),
        x2="stop:Q",
        y=alt.Y(
            "trajectory_id:O",
            title="answer",
            sort="ascending",
            axis=alt.Axis(ticks=False, labelOverlap=True),
        ),
        size=alt.Size("thick:Q", legend=None, scale=alt.Scale(domain=[0, 10], range=[0, 10])),
        tooltip=[
            alt.Tooltip("trajectory_id:O", title="answer"),
            alt.Tooltip("stage:N"),
            alt.Tooltip("version:Q", title="weights"),
            alt.Tooltip("begin:Q", title="from", format=",.5~g"),
            alt.Tooltip("stop:Q", title="to", format=",.5~g"),
        ],
    )
    versions = alt.Color(
        "version:Q",
        scale=alt.Scale(range=[BLUE, TEAL, ORANGE]),
        legend=alt.Legend(title="weights", format="d", tickMinStep=1),
    )
    coloured = base.transform_filter("datum.weights").mark_rule().encode(color=versions)
    pink = alt.condition("datum.stage == 'environment'", alt.value(PURPLE), alt.value(GREY))
    others = base.transform_filter("!datum.weights").mark_rule().encode(color=pink)
    return alt.LayerChart(layer=[others, coloured]).properties(
        height=90 + 11 * data["trajectory_id"].nunique()
    )


def stacked(frame: pd.DataFrame, lanes: list[str]) -> pd.DataFrame:
    """The frame with `low` and `high` of each rectangle: the first lane on top, and in each stretch
    the kinds of activity upon one another."""
    base = {lane: len(lanes) - 1 - place for place, lane in enumerate(lanes)}
    top = frame.groupby(["lane", "start"])["share"].cumsum().clip(upper=1.0)
    floor = frame["lane"].map(base) + _GAP
    height = 1 - 2 * _GAP
    return frame.assign(low=floor + height * (top - frame["share"]), high=floor + height * top)
