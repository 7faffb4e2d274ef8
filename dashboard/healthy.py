"""A healthy band as layers of a chart: a quiet area, and its ends. What it means stands below the
chart, because no colour of a text on it is legible on light and on dark.

Pure, like `figures`: limits and an axis in, Altair layers out.
"""

import altair as alt
import pandas as pd

from dashboard.palette import TEAL
from dashboard.words import number, share
from headrace.bands import SIDES, Limits


def ends_crossed(values: "pd.Series[float]", band: Limits) -> list[float]:
    """The ends of a band beyond which some values lie."""
    sides = {band.side(float(value)) for value in (values.min(), values.max()) if len(values)}
    return [band.bound(side) for side in SIDES if side in sides]


def band_layers(band: Limits, low: float, high: float, up: alt.Y, percent: bool) -> list[alt.Chart]:
    """The part of a healthy band that an axis from `low` to `high` shows, and its ends, of which
    the pointer says what they are; nothing where no end lies on the axis."""
    words = {"low": "healthy above", "high": "healthy up to"}
    ends = [
        {"value": end, "text": f"{words[name]} {share(end) if percent else number(end)}"}
        for name, end in band._asdict().items()
        if end is not None and low <= end <= high
    ]
    if not ends:
        return []
    floor = low if band.low is None else max(low, band.low)
    top = high if band.high is None else min(high, band.high)
    area = alt.Chart(pd.DataFrame([{"value": floor, "top": top}]))
    rule = alt.Chart(pd.DataFrame(ends)).mark_rule(color=TEAL, strokeDash=[2, 3], strokeWidth=1.4)
    return [
        area.mark_rect(color=TEAL, opacity=0.1).encode(y=up, y2="top:Q"),
        rule.encode(y=up, tooltip=alt.Tooltip("text:N", title="band")),
    ]
