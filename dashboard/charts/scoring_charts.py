"""Charts of scorings over time: frames of `dashboard.reads.scorings` in, Altair charts out."""

from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd

from dashboard.charts.figures import HEIGHT, Chart, in_unit, linked
from dashboard.charts.legends import coloured
from dashboard.palette import BLUE, FAINT, GREY, SERIES

MARGIN_S = 1e-3


def share_chart(
    frame: pd.DataFrame, colours: Mapping[str, str], link: str = "", of: str = ""
) -> Chart:
    """Shares upon one another, as `shares` gives them. A click opens the address `link`, if there
    is one, with the stretch and, as the filter `of`, the kind."""
    return _stretches(frame, link, **{of: "datum.kind"}).encode(
        y=alt.Y("low:Q", title=None, axis=alt.Axis(format=".2~%", tickCount=4)),
        color=coloured("kind", list(colours), list(colours.values()), symbol="square"),
        tooltip=[alt.Tooltip("kind:N", title="who"), alt.Tooltip("share:Q", format=".1%")],
    )


def score_chart(frame: pd.DataFrame, link: str = "") -> Chart:
    """The distribution of scores over time, as `score_bins` gives it: the more of a stretch's
    answers have a score, the stronger. A click opens the address `link`, if there is one, with the
    stretch and the range of scores."""
    return _stretches(frame, link, reward_from="datum.least", reward_to="datum.most").encode(
        y=alt.Y("low:Q", title=None, axis=alt.Axis(tickCount=4), scale=alt.Scale(zero=False)),
        color=alt.Color(
            "share:Q",
            scale=alt.Scale(domain=[0, 1], range=[FAINT, BLUE]),
            legend=alt.Legend(title=None, format=".0~%"),
        ),
        tooltip=[
            alt.Tooltip("low:Q", title="score from", format=",.3~g"),
            alt.Tooltip("high:Q", title="to", format=",.3~g"),
            alt.Tooltip("share:Q", title="share of answers", format=".1%"),
        ],
    )


def _stretches(frame: pd.DataFrame, link: str, **filters: str) -> alt.Chart:
    """Rectangles from `low` to `high` in each stretch of time, and what a click opens."""
    data, title = in_unit(frame, "start", "end")
    # A little more than the rectangle: the browser has its ends in single precision.
    more = 0.01 * (frame["high"] - frame["low"])
    data = data.assign(since=frame["start"] - MARGIN_S, until=frame["end"] + MARGIN_S)
    data = data.assign(least=frame["low"] - more, most=frame["high"] + more)
    stretch = {"scored_from": "datum.since", "scored_to": "datum.until"}
    across = alt.Axis(grid=False, tickCount=6, format=",.6~g")
    chart: alt.Chart = (
        alt.Chart(data)
        .mark_rect()
        .encode(
            x=alt.X("start:Q", title=title, axis=across, scale=alt.Scale(nice=False, zero=False)),
            x2="end:Q",
            y2="high:Q",
        )
        .properties(height=HEIGHT)
    )
    return linked(chart, link, **stretch, **filters)


def source_colours(sources: Sequence[str]) -> dict[str, str]:
    """A colour for each source; grey for those that are too many."""
    return {name: SERIES[i] if i < len(SERIES) else GREY for i, name in enumerate(sources)}
