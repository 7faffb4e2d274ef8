"""Charts as Vega-Lite sees them, without Streamlit."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dashboard.charts import figures
from dashboard.charts.legends import legend
from dashboard.charts.timeline import lane_order, lanes_chart, stacked
from dashboard.palette import ACTIVITIES, GREY, SERIES
from headrace.metrics.health_ranges import BandLimits


def series(points: int, *names: str) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"x": float(x), "name": name, "value": 10.0 * i + x}
            for x in range(points)
            for i, name in enumerate(names)
        ]
    )


def layers_of(chart: figures.Chart) -> list[dict[str, Any]]:
    """The layers of the specification; making it checks it against Vega-Lite's schema."""
    spec: dict[str, Any] = chart.to_dict()
    layers: list[dict[str, Any]] = spec.get("layer", [spec])
    return layers


def mark_of(layer: dict[str, Any]) -> dict[str, Any]:
    mark = layer["mark"]
    return mark if isinstance(mark, dict) else {"type": mark}


def test_few_points_are_one_line_and_the_pointer() -> None:
    layers = layers_of(figures.series_chart(series(20, "reward/mean")))
    assert [mark_of(layer)["type"] for layer in layers] == ["line", "rule", "rect"]
    assert layers[0]["encoding"]["color"]["legend"] is None
    assert "href" not in layers[2]["encoding"]


def test_every_place_of_a_line_leads_to_its_update() -> None:
    frame = series(4, "reward/mean").assign(update=[3, 5, 8, 9])
    chart = figures.series_chart(frame, x="wall", link="trajectories?run=a%27b")
    around = layers_of(chart)[-1]
    (made,) = around["transform"]
    assert made["calculate"] == (
        "\"trajectories?run=a%27b\" + '&at_update=' + encodeURIComponent(datum.update)"
    )
    rows = chart.to_dict()["datasets"][around["data"]["name"]]
    assert [row["update"] for row in rows] == [3, 5, 8, 9]
    assert [row["end"] for row in rows[:-1]] == [row["begin"] for row in rows[1:]]


def test_smoothing_is_a_choice_and_leaves_the_line_as_it_is() -> None:
    plain, *_ = layers_of(figures.series_chart(series(100, "reward/mean")))
    assert plain["encoding"]["y"]["field"] == "value"
    assert mark_of(plain)["opacity"] == 1
    layers = layers_of(figures.series_chart(series(100, "reward/mean"), smoothing=0.05))
    assert [layer["encoding"]["y"]["field"] for layer in layers[:2]] == ["value", "smooth"]
    assert mark_of(layers[0])["opacity"] < 1


def test_a_bound_is_drawn_as_it_is_however_smooth_the_rest() -> None:
    names = ("schedule/in_play", "schedule/bound")
    chart = figures.series_chart(series(100, *names), names=names, bounds=names[1:], smoothing=0.05)
    raw, smooth, bound = layers_of(chart)[:3]
    assert raw["transform"] == smooth["transform"] != bound["transform"]
    assert bound["encoding"]["y"]["field"] == "value"
    assert mark_of(bound)["interpolate"] == "step-after"


@pytest.mark.parametrize(
    ("values", "begin", "end", "title"),
    [
        ([0.93, 0.99], 0.92, 1.0, "axis begins at 0.92"),
        ([0.0, 500.0], 0.0, 600.0, None),
        ([-2.0, 3.0], -2.0, 4.0, None),
        ([7.0, 7.0], 6.0, 8.0, "axis begins at 6"),
        ([0.0, 0.0], 0.0, 1.0, None),
    ],
)
def test_an_axis_that_does_not_begin_at_zero_says_where(
    values: list[float], begin: float, end: float, title: str | None
) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "name": "reward/mean", "value": values})
    up = layers_of(figures.series_chart(frame))[0]["encoding"]["y"]
    assert up["scale"]["domain"] == pytest.approx([begin, end])
    assert up["title"] == title
    if title:
        assert up["axis"]["values"][0] == pytest.approx(begin)
        assert up["axis"]["values"][-1] == pytest.approx(end)


def test_colours_follow_the_order_of_the_names_and_bounds_are_grey() -> None:
    names = ("schedule/in_play", "schedule/bound")
    chart = figures.series_chart(series(5, *names), names=names, bounds=names[1:])
    scale = layers_of(chart)[0]["encoding"]["color"]["scale"]
    assert scale == {"domain": ["in play", "bound"], "range": [SERIES[0], GREY]}
    assert any("strokeDash" in mark_of(layer) for layer in layers_of(chart))


def test_the_pointer_names_every_series() -> None:
    names = ("actor/grad_norm", "critic/grad_norm")
    pointer = layers_of(figures.series_chart(series(5, *names), names=names))[-1]
    assert [tip["title"] for tip in pointer["encoding"]["tooltip"]] == [
        "update",
        "policy",
        "value model",
    ]


@pytest.mark.parametrize("name", ["environment/x", "environment/update", "rewards/x/mean"])
def test_a_metric_may_have_the_name_of_a_column(name: str) -> None:
    chart = figures.series_chart(series(4, name).assign(value=7.0))
    rows = chart.to_dict()["datasets"][layers_of(chart)[-1]["data"]["name"]]
    assert [(row["x"], row["update"], row["v0"]) for row in rows] == [(x, x, 7) for x in range(4)]


def test_shares_are_percent() -> None:
    chart = figures.series_chart(series(5, "actor/pg_clipfrac"), unit="share")
    assert layers_of(chart)[0]["encoding"]["y"]["axis"]["format"] == ".2~%"


def test_missing_values_and_names_are_left_out() -> None:
    frame = series(6, "reward/mean")
    frame.loc[2, "value"] = np.nan
    chart = figures.series_chart(frame, names=("reward/mean", "reward/std"))
    (data,) = [rows for rows in chart.to_dict()["datasets"].values() if "bound" in rows[0]]
    assert [row["x"] for row in data] == [0, 1, 3, 4, 5]


@pytest.mark.parametrize(
    ("longest", "title", "last"),
    [
        (250.0, "training time (s)", 250.0),
        (600.0, "training time (min)", 10.0),
        (36000.0, "training time (h)", 10.0),
    ],
)
def test_time_axes_take_a_fitting_unit(longest: float, title: str, last: float) -> None:
    frame = pd.DataFrame({"x": [0.0, longest], "name": "a", "value": 1.0})
    scaled, found = figures.scaled_axis(frame, "train_time")
    assert found == title
    assert scaled["x"].iloc[-1] == pytest.approx(last)


def test_a_running_mean_stays_within_the_values_and_keeps_names_apart() -> None:
    frame = series(50, "a", "b")
    smooth = figures.running_mean(frame, 0.05)
    for name in ("a", "b"):
        mine = frame["name"] == name
        assert smooth[mine].between(frame[mine]["value"].min(), frame[mine]["value"].max()).all()
        assert smooth[mine].iloc[0] == frame[mine]["value"].iloc[0]


def test_a_running_mean_of_a_thinned_line_is_that_of_its_stretches() -> None:
    """A spike stands in the line, and counts in the mean for the one point that it was."""
    frame = pd.DataFrame(
        {"x": [0, 1, 2, 3], "name": "a", "value": [0.0, 500.0, 0.0, 1.0], "mean": [2.0] * 4}
    )
    assert figures.running_mean(frame, 0.05).tolist() == pytest.approx([2.0] * 4)


def evaluations() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "label": ["before", "during", "after"],
            "update": [0, 10, 20],
            "train_time_s": [0.0, 40.0, 80.0],
            "accuracy": [0.25, 0.5, 1.0],
            "num_prompts": [1024, 1024, 1024],
            "response_length": [20.0, 30.0, 60.0],
        }
    )


def test_accuracy_has_a_band_of_one_standard_error_within_0_and_1() -> None:
    spec = figures.accuracy_chart(evaluations(), x="update").to_dict()
    (rows,) = spec["datasets"].values()
    assert rows[1]["high"] - rows[1]["accuracy"] == pytest.approx((0.25 / 1024) ** 0.5)
    assert rows[2]["high"] == 1.0
    assert [row["x"] for row in rows] == [0, 10, 20]
    assert [row["text"] for row in rows] == ["25.0 %", "50.0 %", "100.0 %"]


def test_evaluations_keep_their_numbers_where_one_is_left_out() -> None:
    spec = figures.accuracy_chart(evaluations().drop(index=1)).to_dict()
    (rows,) = spec["datasets"].values()
    assert [(row["number"], row["accuracy"]) for row in rows] == [(1, 0.25), (3, 1.0)]


@pytest.mark.parametrize("x", ["tokens", "wall", "cpu"])
def test_accuracies_over_another_axis_are_over_training_time(x: str) -> None:
    over_time = figures.accuracy_chart(evaluations()).to_dict()
    assert figures.accuracy_chart(evaluations(), x=x).to_dict() == over_time


def stretches() -> pd.DataFrame:
    rows = [
        ("learner", "working", 102.0, 103.0, 0.75),
        ("learner", "waiting", 102.0, 103.0, 0.25),
        ("generator-1", "working", 100.0, 110.0, 1.0),
        ("generator-0", "held", 100.0, 110.0, 1.0),
        ("generator-0", "loading", 110.0, 112.0, 1.0),
    ]
    return pd.DataFrame(rows, columns=["lane", "kind", "start", "end", "share"])


def test_lanes_go_from_generators_to_the_learner() -> None:
    assert lane_order(stretches()) == ["generator-0", "generator-1", "learner"]


def test_a_stretch_is_divided_by_what_it_was_spent_on() -> None:
    rows = stacked(stretches(), lane_order(stretches()))
    work, wait = rows.iloc[0], rows.iloc[1]
    assert work["high"] == pytest.approx(wait["low"])
    assert wait["high"] - work["low"] == pytest.approx(0.82)
    assert 3 * (wait["high"] - wait["low"]) == pytest.approx(work["high"] - work["low"])
    top = rows[rows["lane"] == "generator-0"]
    assert (top["low"] > rows[rows["lane"] == "generator-1"]["high"].max()).all()


def test_lanes_count_from_the_start_in_a_fitting_unit_and_are_coloured_by_kind() -> None:
    spec = lanes_chart(stretches(), start=100.0).to_dict()
    (rows,) = spec["datasets"].values()
    assert (rows[0]["begin"], rows[0]["stop"]) == (2.0, 3.0)
    scale = spec["encoding"]["color"]["scale"]
    assert dict(zip(scale["domain"], scale["range"], strict=True)) == {
        kind: ACTIVITIES[kind] for kind in ("working", "loading", "held", "waiting")
    }
    long = stretches().assign(start=100.0, end=100.0 + 5 * 3600)
    spec = lanes_chart(long, start=100.0).to_dict()
    assert spec["encoding"]["x"]["title"] == "wall-clock time (h)"
    (rows,) = spec["datasets"].values()
    assert rows[0]["stop"] == pytest.approx(5.0)


def test_an_array_has_a_row_of_tiles_a_bin() -> None:
    bins = ("short", "long")
    rows = [(u, b, v) for u in (1, 2) for b, v in zip(bins, (0.5, -0.25), strict=True)]
    frame = pd.DataFrame(rows, columns=["update", "bin", "value"])
    encoding = figures.array_chart(frame, bins=bins).to_dict()["encoding"]
    assert encoding["y"]["sort"] == ["long", "short"]
    assert encoding["color"]["scale"]["domain"] == [-0.5, 0, 0.5]
    positive = figures.array_chart(frame[frame["value"] > 0], bins=bins, unit="share").to_dict()
    assert positive["encoding"]["color"]["scale"]["domain"] == [0, 0.5]


def test_token_chart_marks_the_cuts() -> None:
    tokens = pd.DataFrame({"position": range(10), "value": [0.1] * 10})
    marks = [
        mark_of(layer)["type"] for layer in layers_of(figures.token_chart(tokens, "value", [4]))
    ]
    assert marks == ["line", "rule"]
    assert len(layers_of(figures.token_chart(tokens, "value", []))) == 1


def banded(values: list[float], band: BandLimits) -> list[dict[str, Any]]:
    frame = pd.DataFrame({"x": range(len(values)), "name": "actor/entropy", "value": values})
    return layers_of(figures.series_chart(frame, band=band))


def test_a_band_is_drawn_where_its_end_lies_on_the_chart() -> None:
    area, end, line, *_ = banded([1.0, 0.5, 0.02], BandLimits(0.25, None))
    assert [mark_of(layer)["type"] for layer in (area, end, line)] == ["rect", "rule", "line"]
    assert area["encoding"]["y"]["scale"] == line["encoding"]["y"]["scale"]
    assert area["encoding"]["y2"]["field"] == "top"
    assert [mark_of(layer)["type"] for layer in banded([1.0, 0.5], BandLimits(-0.5, None))] == [
        "line",
        "rule",
        "rect",
    ]


def test_an_end_that_was_crossed_is_always_on_the_chart() -> None:
    layers = banded([0.001, 0.004], BandLimits(0.25, None))
    low, high = layers[0]["encoding"]["y"]["scale"]["domain"]
    assert low <= 0.001
    assert high >= 0.25


@pytest.mark.parametrize(
    ("band", "shown"),
    [
        (BandLimits(0.25, 0.75), (0.25, 0.75)),
        (BandLimits(0.25, None), (0.25, 1.0)),
        (BandLimits(None, 0.75), (0.0, 0.75)),
        (BandLimits(-9.0, 0.75), (0.0, 0.75)),
    ],
)
def test_a_band_ends_where_the_axis_does(band: BandLimits, shown: tuple[float, float]) -> None:
    frame = pd.DataFrame({"x": [0, 1], "name": "actor/entropy", "value": [0.0, 1.0]})
    spec = figures.series_chart(frame, band=band).to_dict()
    ((row,),) = (rows for rows in spec["datasets"].values() if "top" in rows[0])
    assert (row["value"], row["top"]) == shown


def test_the_pointer_has_few_places_and_the_extremes_of_every_line_are_among_them() -> None:
    names = ("actor/grad_norm", "critic/grad_norm")
    rows = series(1000, *names)
    rows.loc[rows.index[777], "value"] = 500.0
    rows.loc[rows.index[1234], "value"] = -500.0
    layers = layers_of(figures.series_chart(rows, names=names))
    spec = figures.series_chart(rows, names=names).to_dict()
    pointer = spec["datasets"][layers[-1]["data"]["name"]]
    assert figures.POINTED // 3 < len(pointer) <= figures.POINTED + 2
    assert {row["x"] for row in pointer} >= {0.0, 388.0, 617.0, 999.0}
    assert pointer[0]["v0"] == 0.0


def test_thinned_rows_keep_least_and_largest_of_every_stretch() -> None:
    values = np.random.default_rng(3).normal(size=1000)
    values[412] = np.nan
    rows = pd.DataFrame({"x": range(1000), "v": values}, index=range(5, 1005))
    found = figures.thinned(rows, ["v"], 100)
    assert len(found) <= 102
    for first in range(0, 1000, 20):
        part = rows["v"].iloc[first : first + 20]
        assert {part.min(), part.max()} <= set(found["v"])
    assert found["x"].is_monotonic_increasing
    assert figures.thinned(rows, ["v"], 1000) is rows
    assert len(figures.thinned(rows.assign(v=np.nan), ["v"], 100)) == 2


def test_a_legend_has_room_for_its_longest_label() -> None:
    found = legend(["a", "twelve chars"]).to_dict()
    assert found["columns"] == {"expr": "max(1, floor(width / 118))"}
    assert found["labelExpr"].startswith("width < 118 ?")
    assert found["labelLimit"] == 0


def test_a_spike_has_a_logarithmic_axis() -> None:
    def scale(values: list[float]) -> str | None:
        rows = pd.DataFrame({"x": range(len(values)), "name": "99 %", "value": values})
        line = layers_of(figures.series_chart(rows, x="wall", spikes=True))[0]
        found: str | None = line["encoding"]["y"]["scale"].get("type")
        return found

    assert scale([0.01] * 9 + [3.0]) == "log"
    assert scale([0.01] * 9 + [0.05]) is None
    assert scale([0.0] * 9 + [3.0]) is None, "a logarithm has no zero"
