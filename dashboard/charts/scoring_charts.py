"""Charts of scorings over time: frames of `dashboard.reads.scorings` in, Altair charts out."""

from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd

from dashboard.charts.figures import HEIGHT, Chart, in_unit
from dashboard.charts.legends import legend
from dashboard.palette import BLUE, FAINT, GREY, SERIES


def share_chart(frame: pd.DataFrame, colours: Mapping[str, str]) -> Chart:
    """Shares upon one another, as `shares` gives them."""
    return _stretches(frame).encode(
        y=alt.Y("low:Q", title=None, axis=alt.Axis(format=".2~%", tickCount=4)),
        color=alt.Color(
            "kind:N",
            scale=alt.Scale(domain=list(colours), range=list(colours.values())),
            legend=legend(list(colours), symbol="square"),
        ),
        tooltip=[alt.Tooltip("kind:N", title="who"), alt.Tooltip("share:Q", format=".1%")],
    )


def score_chart(frame: pd.DataFrame) -> Chart:
    """The distribution of scores over time, as `score_bins` gives it: the more of a stretch's
    answers have a score, the stronger."""
    return _stretches(frame).encode(
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


def _stretches(frame: pd.DataFrame) -> alt.Chart:
    """Rectangles from `low` to `high` in each stretch of time."""
    data, title = in_unit(frame, "start", "end")
    across = alt.Axis(grid=False, tickCount=6, format=",.6~g")
    chart: alt.Chart = (
        alt.Chart(data)
        .mark_rect()
        .encode(
            x=alt.X("start:Q", title=title, axis=across, scale=alt.Scale(nice=False)),
            x2="end:Q",
            y2="high:Q",
        )
        .properties(height=HEIGHT)
    )
    return chart


def source_colours(sources: Sequence[str]) -> dict[str, str]:
    """A colour for each source; grey for those that are too many."""
    return {name: SERIES[i] if i < len(SERIES) else GREY for i, name in enumerate(sources)}
