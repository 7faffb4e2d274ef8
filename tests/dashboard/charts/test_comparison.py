"""Accuracies, targets, configurations and lines of several runs, without Streamlit."""

import math
from typing import Any

import pandas as pd
import pytest

from dashboard.charts import comparison
from dashboard.charts.comparison import (
    ComparedRun,
    divergences,
    lines_of,
    metric_lines,
    metric_margin,
)
from dashboard.charts.curves import Divergence
from dashboard.charts.figures import POINTED
from dashboard.charts.run_comparison import DASHES, comparison_chart
from dashboard.palette import SERIES
from dashboard.reads.configurations import differences, distinctions, same_but_seed
from dashboard.reads.targets import accuracies, default_target, noise_margin
from headrace.config.loading.keys import flattened

# -- accuracies ------------------------------------------------------------------------------------


def evaluated(*accuracies: float | None, prompts: int = 100) -> pd.DataFrame:
    """An evaluation every ten updates: 1,000 tokens and 5 s an update."""
    return pd.DataFrame(
        {
            "accuracy": pd.array(accuracies, dtype="Float64"),
            "update": [10 * i for i in range(len(accuracies))],
            "trained_tokens": [10_000 * i for i in range(len(accuracies))],
            "train_time_s": [50.0 * i for i in range(len(accuracies))],
            "num_prompts": prompts,
        }
    )


def test_first_best_last_and_what_the_target_cost() -> None:
    rows = evaluated(0.2, 0.5, None, 0.8, 0.8, 0.7)
    known = {"first": 0.2, "best": 0.8, "at update": 30, "last": 0.7}
    assert accuracies(rows, 0.5) == known | {"tokens": 10_000, "seconds": 50.0}
    assert accuracies(rows, 0.6)["tokens"] == 30_000
    assert accuracies(rows, 0.9) == known | {"tokens": None, "seconds": None}
    assert set(accuracies(evaluated(), 0.5).values()) == {None}


def test_the_first_evaluation_at_or_above_the_target_counts_even_if_later_ones_fall() -> None:
    rows = evaluated(0.1, 0.3, 0.1)
    assert accuracies(rows, 0.1 + 0.2)["tokens"] == 10_000  # 0.30000000000000004
    assert accuracies(rows, 0.31)["tokens"] is None


@pytest.mark.parametrize(
    ("runs", "target"),
    [
        ([(0.2, 0.91), (0.2, 0.77)], 0.75),  # what both reached
        ([(0.2, 0.91), (0.2, 0.2)], 0.9),  # one learned nothing: what the other reached
        ([(0.2, 0.6)], 0.6),
        ([(), ()], 0.5),
    ],
)
def test_a_target_that_says_something(runs: list[tuple[float, ...]], target: float) -> None:
    assert default_target([evaluated(*run) for run in runs]) == target


def test_chance_is_two_standard_errors_of_a_difference() -> None:
    """0.5 of 100: one standard error is 0.05, of a difference the root of two times that."""
    runs = [evaluated(0.1, 0.5), evaluated(0.9)]
    assert noise_margin(runs) == pytest.approx(2 * math.sqrt(2) * 0.05)
    assert noise_margin([evaluated()]) == 0


# -- configurations --------------------------------------------------------------------------------


def config(seed: int = 0, mode: str = "streaming", **more: Any) -> dict[str, Any]:
    return {"name": "r", "seed": seed, "schedule": {"mode": mode, "window": 60}, **more}


def test_configurations_are_flattened() -> None:
    found = flattened({"a": {"b": {"c": 1}, "d": {}}, "e": [1, {"f": 2}]})
    assert found == {"a.b.c": 1, "a.d": {}, "e": [1, {"f": 2}]}


def test_only_keys_that_differ_are_shown_learning_first() -> None:
    one = config(dashboard={"port": 1}, storage={"database": "postgresql://me:secret@host/db"})
    other = config(1, "windowed", dashboard={"port": 2}, kl=None)
    other["transport"] = {"curve_keys": "/runs/other/keys"}
    found: Any = differences({"a": one, "b": other})
    assert list(found.index) == [
        "schedule.mode", "kl", "seed", "dashboard.port", "storage.database",
    ]  # fmt: skip
    assert found.loc["schedule.mode"].tolist() == ["streaming", "windowed"]
    assert found.loc["kl"].tolist() == ["-", "null"]
    assert found.loc["storage.database"].tolist() == ["postgresql://me:***@host/db", "-"]
    assert differences({"a": one, "b": one}).empty


def test_seeds_of_one_configuration() -> None:
    first = config(0, stop={"updates": 10}, generator={"cpus": [0], "count": 1})
    second = config(1, stop={"updates": 20}, generator={"cpus": [1], "count": 1})
    assert same_but_seed(first) == same_but_seed(second)
    second["generator"]["count"] = 2
    assert same_but_seed(first) != same_but_seed(second)
    assert distinctions([first, second]) == ["count 1", "count 2"]
    assert distinctions([first, first]) == ["", ""]


# -- lines -----------------------------------------------------------------------------------------


def member(name: str, seed: int, mode: str = "streaming", recipe: str = "quick") -> ComparedRun:
    return ComparedRun(name, recipe, seed, config(seed, mode))


MEMBERS = [
    member("quick-1-aaaa", 0),
    member("quick-2-bbbb", 1),
    member("quick-3-cccc", 0, "windowed"),
    member("slow-1-dddd", 0, recipe="slow"),
]


def test_seeds_are_one_line_or_each_its_own() -> None:
    found = lines_of(MEMBERS, bands=True)
    assert [(line.key, line.label) for line in found] == [
        ("quick-1-aaaa", "quick seeds 0, 1 (2 runs), mode streaming"),
        ("quick-3-cccc", "quick seed 0 (cccc), mode windowed"),
        ("slow-1-dddd", "slow seed 0 (dddd)"),
    ]
    assert [line.label for line in lines_of(MEMBERS[:2], bands=False)] == [
        "quick seed 0 (aaaa)",
        "quick seed 1 (bbbb)",
    ]


def test_configurations_of_a_recipe_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred runs a hundred are read at a click, and not ten thousand."""
    asked: list[int] = []

    def counted(configs: Any) -> list[str]:
        asked.append(len(configs))
        return distinctions(configs)

    monkeypatch.setattr(comparison, "distinctions", counted)
    assert len(lines_of(MEMBERS, bands=True)) == 3
    assert asked == [2, 1]


def test_two_lines_never_have_one_label() -> None:
    twins = [member("one-aaaa", 0), member("two-aaaa", 0)]
    labels = [line.label for line in lines_of(twins, bands=False)]
    assert labels == ["quick seed 0 (aaaa) one-aaaa", "quick seed 0 (aaaa) two-aaaa"]


CURVES = {
    "quick-1-aaaa": [0.0, 2.0, 4.0],
    "quick-2-bbbb": [0.0, 4.0, 8.0],
    "quick-3-cccc": [0.0, 0.0, 2.0],
    "slow-1-dddd": [],
}


def read(name: str) -> pd.DataFrame:
    return pd.DataFrame({"x": range(len(CURVES[name])), "value": CURVES[name]})


def test_lines_of_a_metric_and_where_they_part() -> None:
    lines = lines_of(MEMBERS, bands=True)
    frame = metric_lines(lines, read)
    assert set(frame["label"]) == {line.label for line in lines[:2]}  # the third has none
    seeds = frame[frame["label"] == lines[0].label]
    assert seeds["value"].tolist() == seeds["smooth"].tolist() == [0, 3, 6]
    assert seeds["high"].tolist() == [0, 4, 8]
    assert metric_margin(frame) == pytest.approx(0.6)
    found = divergences(frame, lines[1].label, 0.6)
    assert found == {lines[0].label: Divergence(1.0, 4.0)}
    assert divergences(frame, lines[0].label, 5.0) == {lines[1].label: None}
    assert divergences(frame, "nobody", 0.6) == {}
    assert metric_lines(lines[2:], read).empty


def test_smoothing_leaves_the_values() -> None:
    frame = metric_lines(lines_of(MEMBERS[:1], bands=False), read, smoothing=0.5)
    assert frame["value"].tolist() == CURVES["quick-1-aaaa"]
    assert frame["smooth"].iloc[-1] < 4


def test_places_are_words() -> None:
    assert comparison.place(1234.0, "update") == "update 1,234"
    assert comparison.place(2e6, "tokens") == "2,000,000 trained tokens"
    assert comparison.place(125.0, "train_time") == "2:05 min of training"
    assert comparison.place(125.0, "cpu") == "2:05 min of CPU time"
    assert comparison.place(125.0, "wall") == "2:05 min of the run"


# -- charts ----------------------------------------------------------------------------------------


def charted(frame: pd.DataFrame, labels: list[str], **more: Any) -> list[dict[str, Any]]:
    """The layers; making them checks them against Vega-Lite's schema."""
    chart = comparison_chart(frame, labels=labels, title="update", span=(0, 2), **more)
    layers: list[dict[str, Any]] = chart.to_dict()["layer"]
    return layers


def kinds(layers: list[dict[str, Any]]) -> list[str]:
    return [layer["mark"]["type"] for layer in layers]


def test_a_chart_has_bands_raw_lines_and_marks_only_where_there_are_some() -> None:
    lines = lines_of(MEMBERS, bands=True)
    labels = [line.label for line in lines]
    frame = metric_lines(lines, read)
    assert kinds(charted(frame, labels)) == ["area", "line", "point"]
    apart = metric_lines(lines_of(MEMBERS, bands=False), read, smoothing=0.5)
    names = [line.label for line in lines_of(MEMBERS, bands=False)]
    assert kinds(charted(apart, names)) == ["line", "line", "point"]
    marked = charted(frame, labels, since={labels[0]: 1.0})
    assert kinds(marked) == ["area", "line", "point", "rule", "text"]
    assert marked[-2]["encoding"]["color"]["scale"]["domain"] == labels[:2]


def test_all_charts_have_one_axis_and_a_line_one_colour() -> None:
    lines = lines_of(MEMBERS, bands=True)
    labels = [line.label for line in lines]
    frame = metric_lines(lines, read)
    both, one = charted(frame, labels), charted(frame[frame["label"] == labels[1]], labels)
    assert both[0]["encoding"]["x"] == one[0]["encoding"]["x"]
    assert both[1]["encoding"]["color"]["scale"]["range"] == list(SERIES[:2])
    assert one[0]["encoding"]["color"]["scale"]["range"] == [SERIES[1]]


def test_more_lines_than_colours_have_dashes_of_their_own() -> None:
    labels = [f"line {i}" for i in range(len(SERIES) * len(DASHES))]
    frame = pd.concat([metric_lines(lines_of(MEMBERS[:1], bands=False), read).assign(label=name)
                       for name in labels])  # fmt: skip
    (line,) = [each for each in charted(frame, labels) if each["mark"]["type"] == "line"]
    encoding = line["encoding"]
    looks = zip(
        encoding["color"]["scale"]["range"],
        map(tuple, encoding["strokeDash"]["scale"]["range"]),
        strict=True,
    )
    assert len(set(looks)) == len(labels)


def test_there_may_be_more_lines_than_places_for_the_pointer() -> None:
    labels = [f"line {i}" for i in range(POINTED + 1)]
    one = metric_lines(lines_of(MEMBERS[:1], bands=False), read)
    layers = charted(pd.concat([one.assign(label=name) for name in labels]), labels)
    assert kinds(layers) == ["line", "point"]
