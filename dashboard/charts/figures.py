"""Frames in, Altair charts out.

Pure: no Streamlit, no storage, no clock. Series are long frames with columns x, name, value as
`storage.queries.metric_series` gives them. Fonts, grids and backgrounds are the theme's; colours
are `palette`'s, which are legible on light and on dark. Frames must not be empty.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from dashboard.charts.legends import coloured, legend
from dashboard.formatting import metric_label, number, share
from dashboard.palette import BLUE, FAINT, GREY, ORANGE, SERIES, TEAL
from headrace.metrics.health_ranges import SIDES, BandLimits

Chart = alt.Chart | alt.LayerChart
HEIGHT = 240
_GOLDEN = 0.6180339887498949
_NUDGE = 0.03
"""How far points are moved at most, of the range of rewards."""
AXES = {
    "update": "update",
    "train_time": "training time",
    "wall": "wall-clock time",
    "tokens": "trained tokens",
    "cpu": "CPU time",
}
TIMES = ("train_time", "wall", "cpu")
"""Axes that are seconds."""
SPIKE = 20.0
POINTED = 80
"""Places of a chart that the pointer can choose. Each is two shapes of the page, so that many of
them take the browser longer than the lines do."""


def series_chart(
    frame: pd.DataFrame,
    *,
    x: str = "update",
    names: Sequence[str] = (),
    unit: str = "",
    bounds: Sequence[str] = (),
    smoothing: float = 0.0,
    band: BandLimits | None = None,
    spikes: bool = False,
    link: str = "",
) -> Chart:
    """Lines over `x`, one colour a name in the order of `names`; `bounds` are drawn as grey steps,
    as they are. With `smoothing`, the share of the points that a running mean is over, the line as
    it is stays underneath, thin. The pointer shows all values at the nearest x. Where an end of a
    healthy `band` lies on the chart, the band is shaded and its end a line; an end that values have
    crossed always does. `spikes`: where one value is SPIKE times the median, the axis upwards is
    logarithmic. A click opens the address `link`, if there is one, with the update that is
    nearest."""
    order = [name for name in names or sorted(frame["name"].unique())]
    order = [name for name in order if name in set(frame["name"])]
    data, title = scaled_axis(frame.dropna(subset=["value"]), x)
    data = data.assign(label=data["name"].map(metric_label), bound=data["name"].isin(bounds))
    labels = [metric_label(name) for name in order]
    free = iter(SERIES)
    colours = [GREY if name in bounds else next(free, GREY) for name in order]
    colour = coloured("label", labels, colours, symbol="stroke", named=len(order) > 1)
    across = alt.X("x:Q", title=title, axis=_x_axis(x), scale=alt.Scale(nice=False))
    percent = unit == "share"
    ends = ends_crossed(data["value"], band) if band else []
    values = data["value"]
    if spikes and (values > 0).all() and values.max() > SPIKE * values.median():
        up = alt.Y("value:Q", title="logarithmic", scale=alt.Scale(type="log"))
        up = up.axis(format="~g", tickCount=4, titleFontSize=10, titleFontWeight="normal")
    else:
        up = _y_axis(data, percent, ends)
    is_bound = alt.datum.bound == True  # noqa: E712 - an expression for Vega
    dots = len(data) <= 12 * len(order)
    smooth = smoothing > 0 and not dots
    if smooth:
        data = data.assign(smooth=running_mean(data, smoothing))
    base = alt.Chart(data).encode(x=across, color=colour)
    raw = base.transform_filter(~is_bound) if bounds else base
    point = alt.OverlayMarkDef(size=34, filled=True) if dots else False
    width, opacity = (1.0, 0.32) if smooth else (1.8, 1.0)
    layers = [raw.mark_line(point=point, strokeWidth=width, opacity=opacity).encode(y=up)]
    if smooth:
        layers.append(raw.mark_line(strokeWidth=2.4).encode(y=alt.Y("smooth:Q", title=None)))
    if bounds:
        steps = base.transform_filter(is_bound)
        layers.append(
            steps.mark_line(strokeWidth=1.6, strokeDash=[5, 4], interpolate="step-after").encode(
                y=up
            )
        )
    if band:
        low, high, _ = value_range(data["value"], ends)
        layers = [*band_layers(band, low, high, up, percent), *layers]
    if "update" not in data:
        data = data.assign(update=data["x"])
    return _with_pointer(layers, data, labels, title, percent, link).properties(height=HEIGHT)


def accuracy_chart(evaluations: pd.DataFrame, *, x: str = "train_time", link: str = "") -> Chart:
    """Held-out accuracy at each evaluation, labelled, with a band of at least one standard error. A
    click on a point opens the address `link`, if there is one, with the evaluation's number."""
    right, prompts = evaluations["accuracy"], evaluations["num_prompts"].clip(lower=1)
    error = (right * (1 - right) / prompts) ** 0.5  # Of one answer each; of more it is smaller.
    axis, column = (x, x) if x == "update" else ("train_time", "train_time_s")
    data = pd.DataFrame(
        {
            "x": evaluations[column].astype(float),
            "accuracy": right,
            "low": (right - error).clip(lower=0),
            "high": (right + error).clip(upper=1),
            "label": evaluations["label"],
            "text": right.map(share),
            "prompts": evaluations["num_prompts"],
            "length": evaluations["response_length"],
            "number": evaluations.index + 1,
        }
    )
    data, title = scaled_axis(data, axis)
    base = alt.Chart(data)
    across = alt.X("x:Q", title=title, axis=_x_axis(axis), scale=alt.Scale(padding=34, nice=False))
    up = alt.Y("accuracy:Q", title=None, axis=alt.Axis(format=".0%", tickCount=5))
    up = up.scale(domain=[0, 1])
    band = base.mark_area(color=BLUE, opacity=0.16).encode(y=up, y2="high:Q")
    band = band.encode(y=alt.Y("low:Q", title=None, scale=alt.Scale(domain=[0, 1])))
    line = base.mark_line(color=BLUE, strokeWidth=2.6).encode(y=up)
    dots = base.mark_point(color=BLUE, filled=True, size=90, opacity=1).encode(
        y=up,
        tooltip=[
            alt.Tooltip("number:Q", title="evaluation"),
            alt.Tooltip("label:N", title="training"),
            alt.Tooltip("accuracy:Q", format=".2%"),
            alt.Tooltip("prompts:Q", title="prompts"),
            alt.Tooltip("length:Q", title="mean response length", format=".1f"),
        ],
    )
    dots = linked(dots, link, answers="'evaluation ' + datum.number")
    ends = base.transform_filter(
        alt.FieldOneOfPredicate(field="label", oneOf=["before", "after"])
    ).mark_text(dy=-16, fontSize=15, fontWeight=600, color=BLUE)
    chart = layered(band, line, dots, ends.encode(y=up, text="text:N")).encode(x=across)
    return chart.properties(height=HEIGHT)


def array_chart(frame: pd.DataFrame, *, bins: Sequence[str], unit: str = "") -> Chart:
    """A metric that is an array (columns update, bin, value) as tiles: one row for each bin, the
    first at the bottom. Values above 0 are blue and those below orange, the further from 0 the
    stronger."""
    data = frame.dropna(subset=["value"])
    reach = float(data["value"].abs().max()) or 1.0
    low = -reach if float(data["value"].min()) < 0 else 0.0
    shades = [ORANGE, FAINT, BLUE] if low else [FAINT, BLUE]
    percent = unit == "share"
    chart: alt.Chart = (
        alt.Chart(data)
        .mark_rect()
        .encode(
            x=alt.X(
                "update:O",
                title="update",
                axis=alt.Axis(labelOverlap=True, labelAngle=0, ticks=False),
            ),
            y=alt.Y("bin:N", sort=list(reversed(bins)), title=None, axis=alt.Axis(ticks=False)),
            color=alt.Color(
                "value:Q",
                scale=alt.Scale(domain=[low, 0, reach] if low else [0, reach], range=shades),
                legend=alt.Legend(title=None, format=".0~%" if percent else ",.3~g"),
            ),
            tooltip=[
                alt.Tooltip("update:O"),
                alt.Tooltip("bin:N", title="where"),
                alt.Tooltip("value:Q", format=".2%" if percent else ",.4~g"),
            ],
        )
        .properties(height=HEIGHT)
    )
    return chart


def reliability_chart(bins: Sequence[Mapping[str, float]]) -> Chart:
    """Forecasts against outcomes: a dot per bin (forecast, share, count), and the line of a
    calibrated model."""
    axis = alt.Axis(format=".0%", tickCount=5)
    scale = alt.Scale(domain=[0, 1])
    ideal = (
        alt.Chart(pd.DataFrame({"forecast": [0.0, 1.0], "share": [0.0, 1.0]}))
        .mark_line(color=GREY, strokeDash=[4, 4], strokeWidth=1.2)
        .encode(x="forecast:Q", y="share:Q")
    )
    dots = (
        alt.Chart(pd.DataFrame(list(bins)))
        .mark_point(color=BLUE, filled=True, opacity=1)
        .encode(
            x=alt.X("forecast:Q", title="forecast", axis=axis, scale=scale),
            y=alt.Y("share:Q", title="share that came true", axis=axis, scale=scale),
            size=alt.Size("count:Q", legend=None),
            tooltip=[
                alt.Tooltip("forecast:Q", format=".1%"),
                alt.Tooltip("share:Q", format=".1%"),
                alt.Tooltip("count:Q", title="examples"),
            ],
        )
    )
    return layered(ideal, dots).properties(height=HEIGHT)


def scatter_chart(frame: pd.DataFrame, *, link: str = "") -> Chart:
    """Rewards of answers over their lengths, a colour and a shape for each source; a click on one
    opens the address `link`, if there is one, with the answer. Points are moved
    a little up or down, the same way every time, so that many equal rewards are seen as many."""
    sources = sorted(frame["source"].unique())
    reach = float(frame["reward"].max() - frame["reward"].min()) or 1.0
    moves = 2 * (np.arange(len(frame)) * _GOLDEN % 1) - 1
    data = frame.assign(shown=frame["reward"] + moves * _NUDGE * reach)
    colours = [SERIES[i % len(SERIES)] for i in range(len(sources))]
    shown = legend(sources) if len(sources) > 1 else None
    chart: alt.Chart = (
        alt.Chart(data)
        .mark_point(size=26, filled=True, opacity=0.55)
        .encode(
            x=alt.X(
                "length:Q", title="tokens", axis=alt.Axis(format="~s", tickCount=6, grid=False)
            ),
            y=alt.Y("shown:Q", title=None, axis=alt.Axis(format=",.4~g", tickCount=4)),
            color=coloured("source", sources, colours, named=shown is not None),
            shape=alt.Shape("source:N", scale=alt.Scale(domain=sources), legend=shown),
            tooltip=[
                alt.Tooltip("source:N"),
                alt.Tooltip("length:Q", title="tokens"),
                alt.Tooltip("reward:Q", format=",.4~g"),
            ],
        )
        .properties(height=HEIGHT)
    )
    return linked(chart, link, trajectory="datum.trajectory_id")


def token_chart(tokens: pd.DataFrame, column: str, cuts: Sequence[int], height: int = 150) -> Chart:
    """A quantity along the response (columns position and `column`), window cuts as grey rules."""
    line: alt.Chart = (
        alt.Chart(tokens.dropna(subset=[column]))
        .mark_line(color=BLUE, strokeWidth=1.6)
        .encode(
            x=alt.X(
                "position:Q",
                title="position in the response",
                axis=alt.Axis(format="d", tickMinStep=1, grid=False),
                scale=alt.Scale(nice=False),
            ),
            y=alt.Y(f"{column}:Q", title=None, axis=alt.Axis(tickCount=4)),
            tooltip=[alt.Tooltip("position:Q"), alt.Tooltip(f"{column}:Q", format=".4f")],
        )
    )
    if not cuts:
        return layered(line).properties(height=height)
    rules = (
        alt.Chart(pd.DataFrame({"position": list(cuts)}))
        .mark_rule(color=GREY, strokeDash=[4, 4])
        .encode(x="position:Q")
    )
    return layered(line, rules).properties(height=height)


# -- shared parts ----------------------------------------------------------------------------------


def layered(*charts: alt.Chart | alt.LayerChart) -> alt.LayerChart:
    """Charts upon one another, the first at the bottom."""
    return alt.LayerChart(layer=list(charts))


def linked(chart: alt.Chart, link: str, **filters: str) -> alt.Chart:
    """The chart whose marks open the address `link`, with filters more: expressions of a datum by
    name. Without a link the chart as it is."""
    if not link:
        return chart
    more = [f"'&{name}=' + encodeURIComponent({value})" for name, value in filters.items()]
    address = " + ".join([json.dumps(link), *more])
    opened: alt.Chart = chart.transform_calculate(link=address).encode(href="link:N")
    return opened


def scaled_axis(frame: pd.DataFrame, x: str) -> tuple[pd.DataFrame, str]:
    """The frame with `x` in a unit fit for its range, and the axis title."""
    if x not in TIMES or frame.empty:
        return frame, AXES.get(x, x)
    longest = float(frame["x"].max())
    unit, seconds = (
        ("s", 1.0) if longest < 300 else ("min", 60.0) if longest < 10800 else ("h", 3600.0)
    )
    return frame.assign(x=frame["x"] / seconds), f"{AXES[x]} ({unit})"


def in_unit(frame: pd.DataFrame, *columns: str) -> tuple[pd.DataFrame, str]:
    """The frame with these columns, seconds of the run, in the unit that fits the last of them, and
    the axis title."""
    scaled, title = scaled_axis(frame.assign(x=frame[columns[-1]]), "wall")
    last = float(frame[columns[-1]].max()) if len(frame) else 0.0
    factor = float(scaled["x"].max()) / last if last else 1.0
    return frame.assign(**{name: frame[name] * factor for name in columns}), title


def running_mean(frame: pd.DataFrame, share: float) -> "pd.Series[float]":
    """Exponentially weighted mean of each name's values, over about this share of its points. Where
    points stand for stretches of a longer line, it is the mean of their means."""
    column = "mean" if "mean" in frame else "value"
    values = frame[column].fillna(frame["value"])
    most = frame.groupby("name")["value"].size().max() if len(frame) else 0
    span = max(3.0, most * share)
    return values.groupby(frame["name"]).transform(lambda v: v.ewm(span=span).mean())


def _with_pointer(
    layers: Sequence[alt.Chart],
    data: pd.DataFrame,
    labels: Sequence[str],
    title: str,
    percent: bool,
    link: str,
) -> alt.LayerChart:
    """A rule at the nearest of about POINTED places. Stretches around them that cannot be seen have
    a tooltip with every series, and lead to the update's trajectories."""
    nearest = alt.selection_point(
        fields=["x"], on="pointerover", clear="pointerout", empty=False, toggle=False
    )
    # Vega reads dots and brackets in a field's name as a path, and a label may be x or update.
    fields: Mapping[str, str] = {label: f"v{i}" for i, label in enumerate(labels)}
    named = data.assign(field=data["label"].map(fields))
    wide = named.pivot_table(index="x", columns="field", values="value").reset_index()
    wide["update"] = wide["x"].map(data.groupby("x")["update"].first())
    wide = thinned(wide, [field for field in fields.values() if field in wide], POINTED)
    borders = [*wide["x"][:1], *wide["x"].rolling(2).mean()[1:], *wide["x"][-1:]]
    base = alt.Chart(wide.assign(begin=borders[:-1], end=borders[1:]))
    rule = base.mark_rule(color=GREY, strokeWidth=1.2).encode(
        x="x:Q", opacity=alt.condition(nearest, alt.value(0.7), alt.value(0))
    )
    across = {"x": alt.X("begin:Q"), "x2": alt.X2("end:Q")} if len(wide) > 1 else {}
    around = (
        base.mark_rect(fillOpacity=0)
        .encode(
            **across,
            tooltip=[
                alt.Tooltip("x:Q", title=title, format=",.6~g"),
                *(
                    alt.Tooltip(f"{field}:Q", title=label, format=".2%" if percent else ",.4~g")
                    for label, field in fields.items()
                ),
            ],
        )
        .add_params(nearest)
    )
    at = "datum.x" if (wide["x"] == wide["update"]).all() else "datum.update"
    return layered(*layers, rule, linked(around, link, at_update=at))


def thinned(rows: pd.DataFrame, columns: Sequence[str], most: int) -> pd.DataFrame:
    """Of more rows than `most`: the first, the last, and of each stretch of rows those with the
    least and the largest value of each of these columns."""
    if len(rows) <= most:
        return rows
    stretch = np.arange(len(rows)) // -(-len(rows) * 2 * len(columns) // most)
    places = {0, len(rows) - 1}
    for column in columns:
        values = rows[column].reset_index(drop=True).dropna()
        groups = values.groupby(stretch[values.index])
        places |= {*groups.idxmin(), *groups.idxmax()}
    return rows.iloc[sorted(places)]


def _x_axis(x: str) -> alt.Axis:
    kind, step = {"update": ("d", 1), "tokens": ("~s", 0)}.get(x, (",.6~g", 0))
    said = "datum.value < 0 ? '' : datum.label"  # what is left free before the first point
    return alt.Axis(format=kind, tickCount=6, grid=False, tickMinStep=step, labelExpr=said)


def _y_axis(data: pd.DataFrame, percent: bool, ends: Sequence[float] = ()) -> alt.Y:
    """The values upwards, and `ends` among them. Where the axis does not begin at zero it says
    where."""
    low, high, step = value_range(data["value"], ends)
    steps = round((high - low) / step) + 1 if low > 0 else 0
    ticks = [round(low + step * k, 12) for k in range(steps)] or alt.Undefined
    return alt.Y("value:Q", **upwards(data["value"], low, high, percent, tickCount=4, values=ticks))


def upwards(
    drawn: "pd.Series[float]", low: float, high: float, percent: bool, **ticks: Any
) -> dict[str, Any]:
    """The axis upwards of what is drawn; one that does not begin at zero says where it begins."""
    big = len(drawn) and float(drawn.abs().max()) >= 10_000
    form = ".2~%" if percent else "~s" if big else ",.4~g"
    return {
        "title": f"axis begins at {share(low) if percent else number(low)}" if low > 0 else None,
        "axis": alt.Axis(format=form, titleFontSize=10, titleFontWeight="normal", **ticks),
        "scale": alt.Scale(domain=[low, high], nice=False),
    }


def value_range(
    values: "pd.Series[float]", ends: Sequence[float] = ()
) -> tuple[float, float, float]:
    """(low, high, step) of an axis for these values and ends of a band, with ticks at both of its
    ends. It begins at zero where that does not flatten the line."""
    if not len(values):
        return 0.0, 1.0, 0.25
    low, high = (pick([float(pick(values)), *ends]) for pick in (min, max))
    if 0 <= low < 0.7 * high:
        low = 0.0
    if low == high == 0:
        return 0.0, 1.0, 0.25
    if low == high:
        low, high = low - abs(low) * 0.1, high + abs(high) * 0.1
    step = _nice((high - low) / 4)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step


def _nice(step: float) -> float:
    """The next larger of 1, 2, 2.5, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(part * power for part in (1, 2, 2.5, 5, 10) if part * power >= step * (1 - 1e-9))


def ends_crossed(values: "pd.Series[float]", band: BandLimits) -> list[float]:
    """The ends of a band beyond which some values lie."""
    sides = {band.side(float(value)) for value in (values.min(), values.max()) if len(values)}
    return [band.bound(side) for side in SIDES if side in sides]


def band_layers(
    band: BandLimits, low: float, high: float, up: alt.Y, percent: bool
) -> list[alt.Chart]:
    """The part of a healthy band that an axis from `low` to `high` shows, and its ends, of which
    the pointer says what they are; nothing where no end lies on the axis. What the band means
    stands below the chart: no colour of a text on it is legible on light and on dark."""
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
