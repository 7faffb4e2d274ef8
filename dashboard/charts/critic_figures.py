"""Charts of the value model: frames of `dashboard.reads.critic` in, Altair charts out.

Pure, like `figures`. Frames must not be empty.
"""

from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd

from dashboard.charts.figures import HEIGHT, Chart, layered
from dashboard.charts.legends import coloured, legend
from dashboard.palette import BLUE, GREY, ORANGE, TEAL
from dashboard.reads.critic import ALL, LESS, MORE, distance_order

_OUTCOMES = {MORE: BLUE, LESS: ORANGE, ALL: TEAL}
_CAME, _ASSUMED = "what came", "what was assumed"
TALL = 300
_LEFT = "tokens left in the window"


def along_chart(frame: pd.DataFrame) -> Chart:
    """Values along the answer, by outcome: a line with the middle half of the values as a band, and
    what came as a dashed line."""
    names = [name for name in _OUTCOMES if name in set(frame["which"])]
    colour = coloured("which", names, [_OUTCOMES[name] for name in names])
    percent = frame.assign(place=(frame["tenth"] - 0.5) * 10)
    base = alt.Chart(percent).encode(
        x=alt.X(
            "place:Q",
            title="how far along the answer (%)",
            axis=alt.Axis(values=list(range(0, 101, 10)), grid=False),
            scale=alt.Scale(domain=[0, 100]),
        ),
        color=colour,
        tooltip=[
            alt.Tooltip("which:N", title="of"),
            alt.Tooltip("tenth:Q", title="tenth of the answer"),
            alt.Tooltip("value:Q", title="mean value", format=".4~g"),
            alt.Tooltip("came:Q", title="mean return", format=".4~g"),
            alt.Tooltip("tokens:Q", format=",d"),
        ],
    )
    band = base.mark_area(opacity=0.16).encode(y=_up("low"), y2="high:Q")
    line = base.mark_line(strokeWidth=2.6, point=alt.OverlayMarkDef(size=46, filled=True))
    came = base.mark_line(strokeWidth=1.6, strokeDash=[5, 4]).encode(y=_up("came"))
    return layered(band, came, line.encode(y=_up("value"))).properties(height=TALL)


def calibration_chart(frame: pd.DataFrame) -> Chart:
    """Predicted against actual values: a dot per bin with one standard error, its size the tokens,
    and the line of equality."""
    ends = [
        float(min(frame["said"].min(), frame["came"].min())),
        float(max(frame["said"].max(), frame["came"].max())),
    ]
    ideal = (
        alt.Chart(pd.DataFrame({"said": ends, "came": ends}))
        .mark_line(color=GREY, strokeDash=[4, 4], strokeWidth=1.4)
        .encode(x="said:Q", y="came:Q")
    )
    data = frame.assign(low=frame["came"] - frame["error"], high=frame["came"] + frame["error"])
    across = alt.X("said:Q", title="value", axis=_numbers(), scale=alt.Scale(zero=False))
    whiskers = (
        alt.Chart(data.dropna(subset=["error"]))
        .mark_rule(color=BLUE, opacity=0.55, strokeWidth=1.6)
        .encode(x=across, y=alt.Y("low:Q", title="return that came"), y2="high:Q")
    )
    base = alt.Chart(data).encode(
        x=across,
        tooltip=[
            alt.Tooltip("said:Q", title="mean value", format=".4~g"),
            alt.Tooltip("came:Q", title="mean return", format=".4~g"),
            alt.Tooltip("tokens:Q", format=",d"),
            alt.Tooltip("answers:Q", format=",d"),
        ],
    )
    up = alt.Y("came:Q", title="return that came", axis=_numbers(), scale=alt.Scale(zero=False))
    dots = base.mark_point(color=BLUE, filled=True, opacity=1).encode(
        y=up, size=alt.Size("tokens:Q", legend=None, scale=alt.Scale(range=[30, 420]))
    )
    return layered(ideal, whiskers, dots).properties(height=TALL)


def tenths_chart(frame: pd.DataFrame, names: Mapping[str, str]) -> Chart:
    """Columns of the frame over the tenths of the answer; `names` are the columns' labels."""
    data = _long(frame, "tenth", names)
    return _lines(data, "tenth", "tenth of the answer", list(names.values()))


def numbers_chart(frame: pd.DataFrame) -> Chart:
    """Assumed value at the first, second, ... cut of an answer, against what came, with one
    standard error of the difference."""
    order = list(frame["cut"])
    across = alt.X("cut:O", sort=order, title="cut of the answer", axis=_categories())
    data = _long(frame, "cut", {"assumed": _ASSUMED, "came": _CAME})
    tooltip = [
        alt.Tooltip("cut:O", title="cut"),
        alt.Tooltip("assumed:Q", format=".4~g"),
        alt.Tooltip("came:Q", format=".4~g"),
        alt.Tooltip("cuts:Q", format=",d"),
    ]
    pair = alt.Chart(frame).encode(x=across, tooltip=tooltip)
    gap = pair.mark_rule(color=GREY, strokeWidth=3, opacity=0.5).encode(
        y=alt.Y("assumed:Q", title=None), y2="came:Q"
    )
    spread = frame.assign(low=frame["came"] - frame["error"], high=frame["came"] + frame["error"])
    whiskers = (
        alt.Chart(spread.dropna(subset=["error"]))
        .mark_rule(color=BLUE, strokeWidth=1.4, opacity=0.6)
        .encode(x=across, y=alt.Y("low:Q", title=None), y2="high:Q")
    )
    which = alt.Scale(domain=[_ASSUMED, _CAME], range=["diamond", "circle"])
    dots = (
        alt.Chart(data)
        .mark_point(filled=True, size=110, opacity=1)
        .encode(
            x=across,
            y=_up("value"),
            color=coloured("name", [_ASSUMED, _CAME], [ORANGE, BLUE]),
            shape=alt.Shape("name:N", scale=which, legend=legend([_ASSUMED, _CAME])),
            tooltip=[*tooltip[:1], alt.Tooltip("name:N"), alt.Tooltip("value:Q", format=".4~g")],
        )
    )
    return layered(gap, whiskers, dots).properties(height=HEIGHT)


def before_ends_chart(frame: pd.DataFrame, names: Mapping[str, str]) -> Chart:
    """Columns over the tokens left in the window, the window's end at the right."""
    data, order = _long(frame, "left", names), distance_order(list(frame["left"]))
    return _lines(data, "left", _LEFT, list(names.values()), order)


def ends_chart(frame: pd.DataFrame) -> Chart:
    """`before_ends_chart` of the frame of `critic.ends`, a line a kind of window."""
    data = frame.rename(columns={"which": "name", "strength": "value"})
    order = distance_order(list(frame["left"]))
    return _lines(data, "left", _LEFT, sorted(set(data["name"])), order)


# -- shared parts ----------------------------------------------------------------------------------


def _lines(
    data: pd.DataFrame, key: str, title: str, names: Sequence[str], sort: Sequence[str] = ()
) -> alt.LayerChart:
    """A line with dots a name over the categories of `key` (columns name, value, tokens), and a
    rule at zero where it is crossed."""
    base = alt.Chart(data).encode(
        x=alt.X(f"{key}:O", sort=list(sort) or None, title=title, axis=_categories()),
        y=_up("value", zero=True),
        color=coloured("name", names, [BLUE, ORANGE, GREY][: len(names)], named=len(names) > 1),
        tooltip=[
            alt.Tooltip(f"{key}:O", title=title),
            alt.Tooltip("name:N", title="what"),
            alt.Tooltip("value:Q", format=".4~g"),
            alt.Tooltip("tokens:Q", format=",d"),
        ],
    )
    lines = base.mark_line(strokeWidth=2.2, point=alt.OverlayMarkDef(size=46, filled=True))
    if float(data["value"].min()) >= 0:
        return layered(lines).properties(height=HEIGHT)
    zero = alt.Chart(pd.DataFrame({"value": [0.0]})).mark_rule(color=GREY, opacity=0.6)
    return layered(zero.encode(y="value:Q"), lines).properties(height=HEIGHT)


def _long(frame: pd.DataFrame, key: str, names: Mapping[str, str]) -> pd.DataFrame:
    """Columns as rows: key, tokens, name, value."""
    kept = [key, *(c for c in ("tokens", "cuts") if c in frame)]
    data = frame.melt(id_vars=kept, value_vars=list(names), var_name="name")
    return data.assign(name=data["name"].map(dict(names))).dropna(subset=["value"])


def _up(column: str, *, zero: bool = False) -> alt.Y:
    return alt.Y(f"{column}:Q", title=None, axis=_numbers(), scale=alt.Scale(zero=zero))


def _numbers() -> alt.Axis:
    return alt.Axis(format=",.3~g", tickCount=5)


def _categories() -> alt.Axis:
    return alt.Axis(labelAngle=0, ticks=False, labelOverlap=True)
