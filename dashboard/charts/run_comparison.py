"""Lines of several runs as charts.

In: the frame of `comparison.metric_lines`; not empty. Out: Altair charts. Pure, like `figures`. A
line has a colour and a dash of its own, the same on all charts: five colours, and from the sixth
line on other dashes.
"""

from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd

from dashboard.charts.figures import HEIGHT, POINTED, Chart, thinned, upwards, value_range
from dashboard.charts.legends import legend
from dashboard.palette import SERIES

DASHES = ((1, 0), (7, 4), (2, 3))
_LEGEND_COLUMNS, _LEGEND_ROW = 2, 24
"""As many as a legend has on most screens; the height of a row in pixels."""
_FEW = 12
"""Points of a line that are drawn as dots, too."""


def comparison_chart(
    frame: pd.DataFrame,
    *,
    labels: Sequence[str],
    title: str,
    span: tuple[float, float],
    unit: str = "",
    whole: bool = False,
    since: Mapping[str, float] | None = None,
) -> Chart:
    """The lines over x. `labels`: all lines of the page, in their order; `title` and `span`: of the
    x axis, so that charts of one page have the same one; `whole`: its numbers are whole. A band is
    drawn behind its line, and a line that was smoothed over its own raw one. `since`: a label and
    the x from which on that line is apart for good, drawn as a rule in its colour."""
    here = [label for label in labels if label in set(frame["label"])]
    places = [list(labels).index(label) for label in here]
    scale = alt.Scale(domain=here, range=[SERIES[place % len(SERIES)] for place in places])
    strokes = [list(DASHES[place // len(SERIES) % len(DASHES)]) for place in places]
    dashes = alt.Scale(domain=here, range=strokes)
    shown = legend(here, symbol="stroke") if len(labels) > 1 else None
    percent = unit == "share"
    across = alt.X(
        "x:Q",
        title=title,
        axis=alt.Axis(format="d" if whole else ",.6~g", tickCount=6, grid=False),
        scale=alt.Scale(domain=list(span), nice=False),
    )
    values = pd.concat([frame["low"], frame["high"], frame["smooth"]]).dropna()
    low, high, _ = value_range(values)
    up = upwards(values, low, high, percent, tickCount=5)
    colour = alt.Color("label:N", scale=scale, legend=shown)
    base = alt.Chart(frame).encode(x=across, color=colour)
    dash = alt.StrokeDash("label:N", scale=dashes, legend=shown)
    layers: list[alt.Chart] = []
    if (frame["low"] < frame["high"]).any():
        layers.append(base.mark_area(opacity=0.16).encode(y=alt.Y("low:Q", **up), y2="high:Q"))
    if not frame["smooth"].equals(frame["value"]):
        layers.append(base.mark_line(strokeWidth=1.0, opacity=0.3).encode(y=alt.Y("value:Q", **up)))
    layers.append(
        base.mark_line(strokeWidth=2.2).encode(y=alt.Y("smooth:Q", **up), strokeDash=dash)
    )
    form = ".2%" if percent else ",.4~g"
    near = alt.selection_point(fields=["x", "label"], nearest=True, on="pointermove", empty=False)
    few = len(frame) <= _FEW * len(here)
    most = max(1, POINTED // len(here))
    pointed = [thinned(rows, ["smooth"], most) for _, rows in frame.groupby("label", sort=False)]
    dots = (
        alt.Chart(pd.concat(pointed)[["label", "x", "smooth", "low", "high", "runs"]])
        .mark_point(filled=True, size=46)
        .encode(
            x=across,
            color=colour,
            y=alt.Y("smooth:Q", **up),
            opacity=alt.value(1) if few else alt.condition(near, alt.value(1), alt.value(0)),
            tooltip=[
                alt.Tooltip("label:N", title="line"),
                alt.Tooltip("x:Q", title=title, format=",.6~g"),
                alt.Tooltip("smooth:Q", title="value", format=form),
                *_band_tips(frame, form),
            ],
        )
    )
    layers.append(dots.add_params(near))
    if marks := [(label, since[label]) for label in here if since and label in since]:
        layers += _marks(marks, across, colour, middle=sum(span) / 2)
    rows = -(-len(here) // _LEGEND_COLUMNS) if shown else 0
    return alt.LayerChart(layer=layers).properties(height=HEIGHT + _LEGEND_ROW * rows)


def _band_tips(frame: pd.DataFrame, form: str) -> list[alt.Tooltip]:
    if (frame["runs"] <= 1).all():
        return []
    return [
        alt.Tooltip("low:Q", title="least", format=form),
        alt.Tooltip("high:Q", title="largest", format=form),
        alt.Tooltip("runs:Q", title="runs"),
    ]


def _marks(
    marks: Sequence[tuple[str, float]], across: alt.X, colour: alt.Color, *, middle: float
) -> list[alt.Chart]:
    """A rule where a line parts for good, with a word at its head; one beside another's is below
    it, and none is cut off at the right."""
    frame = pd.DataFrame(marks, columns=["label", "x"])
    tip = [alt.Tooltip("label:N", title="apart for good"), alt.Tooltip("x:Q", format=",.6~g")]
    rule = alt.Chart(frame).mark_rule(strokeWidth=1.4, strokeDash=[3, 3])
    layers: list[alt.Chart] = [rule.encode(x=across, color=colour, tooltip=tip)]
    for row, (_, x) in enumerate(marks):
        left = x > middle
        word = alt.Chart(frame[row : row + 1]).mark_text(
            align="right" if left else "left", dx=-4 if left else 4, fontSize=10, fontWeight=600
        )
        place, text = alt.value(8 + 12 * row), alt.value("apart")
        layers.append(word.encode(x=across, y=place, text=text, color=colour))
    return layers
