"""Scorings over time: shares add up, stretches hold every row, charts are Vega-Lite's."""

import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.charts import scoring_charts
from dashboard.charts.chart_spec import spec_of
from dashboard.reads import scorings


def sample(rows: int = 200) -> pd.DataFrame:
    """Two sources in turn; every tenth scoring of the judge fails."""
    return pd.DataFrame(
        [
            {
                "x": 10.0 + i,
                "source": "judge" if i % 4 == 0 else "sums",
                "status": "timeout" if i % 40 == 0 else "ok",
                "reward": None if i % 40 == 0 else float(i % 2),
                "correct": None if i % 40 == 0 else bool(i % 2),
                "seconds": 9.0 if i % 40 == 0 else 0.5,
                "parts": None if i % 40 == 0 else {"right": float(i % 2), "short": 0.25},
            }
            for i in range(rows)
        ]
    )


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_every_row_lies_in_its_stretch(times: list[float]) -> None:
    cut = scorings.cut_time(pd.DataFrame({"x": sorted(times)}))
    slack = 1e-6 * (1 + max(times))
    assert (cut["start"] <= cut["x"] + slack).all()
    assert (cut["x"] <= cut["end"] + slack).all()
    assert cut["start"].nunique() <= min(scorings.STRETCHES, max(1, len(times) // 20))


def test_shares_of_sources_add_up_in_every_stretch() -> None:
    frame = scorings.shares(scorings.cut_time(sample()), "source", ["judge", "sums"])
    assert frame.groupby("start")["share"].sum().tolist() == pytest.approx([1.0] * 10)
    judge = frame[frame["kind"] == "judge"]
    assert judge["share"].tolist() == pytest.approx([0.25] * 10)
    assert judge["low"].tolist() == [0.0] * 10
    assert frame[frame["kind"] == "sums"]["high"].tolist() == pytest.approx([1.0] * 10)


def test_failures_are_shares_of_all_scorings() -> None:
    kinds = list(scorings.FAILURES)
    frame = scorings.shares(scorings.cut_time(sample()), "status", kinds)
    assert frame.groupby("kind")["share"].mean()["timeout"] == pytest.approx(5 / 200)
    assert frame[frame["kind"] == "crashed"]["share"].max() == 0


def test_scores_are_binned_with_both_ends() -> None:
    frame = scorings.score_bins(scorings.cut_time(sample()))
    assert (frame["low"].min(), frame["high"].max()) == (0.0, 1.0)
    assert frame.groupby("start")["share"].sum().tolist() == pytest.approx([1.0] * 10)
    flat = scorings.score_bins(scorings.cut_time(sample().assign(reward=1.0)))
    assert flat["low"].max() <= 1.0 <= flat["high"].min()


def test_parts_are_means_by_source() -> None:
    frame = scorings.part_means(scorings.cut_time(sample()))
    assert set(frame["name"]) == {
        "judge: right", "judge: short", "sums: right", "sums: short"
    }  # fmt: skip
    assert set(frame[frame["name"] == "sums: short"]["value"]) == {0.25}
    one = scorings.part_means(scorings.cut_time(sample().assign(source="sums")))
    assert set(one["name"]) == {"right", "short"}
    assert scorings.part_means(scorings.cut_time(sample().assign(parts=None))).empty
    # SQL has no NaN: what was not finite is null.
    parts = pd.Series([{"right": None}] * len(sample()))
    nothing = sample().assign(parts=parts)
    assert scorings.part_means(scorings.cut_time(nothing)).empty


def test_latency_is_median_and_the_slowest_hundredth() -> None:
    found = scorings.source_latencies(sample())
    assert found["sums"] == (0.5, 0.5)
    assert found["judge"][0] == 0.5
    assert found["judge"][1] == pytest.approx(9.0)
    frame = scorings.latencies(scorings.cut_time(sample()))
    assert set(frame["name"]) == {"judge median", "judge 99 %", "sums median", "sums 99 %"}
    one = scorings.latencies(scorings.cut_time(sample().assign(source="sums")))
    assert set(one["name"]) == {"median", "99 %"}


def test_charts_are_vega_lites() -> None:
    cut = scorings.cut_time(sample())
    colours = scoring_charts.source_colours(["judge", "sums"])
    spec = scoring_charts.share_chart(
        scorings.shares(cut, "source", list(colours)), colours
    ).to_dict()
    assert spec["encoding"]["color"]["scale"]["domain"] == ["judge", "sums"]
    assert scoring_charts.score_chart(scorings.score_bins(cut)).to_dict()["mark"]["type"] == "rect"
    assert len(set(scoring_charts.source_colours([str(i) for i in range(9)]).values())) == 5


def test_a_click_on_a_score_finds_all_answers_that_have_it() -> None:
    """In single precision, which is the browser's, 0.1 is a little more and 0.9 a little less."""
    rewards = sample()["reward"].map({0.0: 0.1, 1.0: 0.9})
    bins = scorings.score_bins(scorings.cut_time(sample().assign(reward=rewards)))
    spec = spec_of(scoring_charts.score_chart(bins, "trajectories?run=a"))
    (table,) = spec["datasets"].values()
    (made,) = spec["transform"]
    asked = re.findall(r"&reward_\w+=' \+ encodeURIComponent\(datum\.(\w+)\)", made["calculate"])
    assert float(table[asked[0]].min()) <= 0.1
    assert float(table[asked[1]].max()) >= 0.9


def test_parts_of_other_sizes_have_axes_of_their_own() -> None:
    sizes = {"right": 1.0, "format": 0.5, "length": 200.0, "nothing": 0.0}
    parts = pd.DataFrame([(0, name, value) for name, value in sizes.items()])
    found = scorings.by_scale("Parts", parts.set_axis(["x", "name", "value"], axis=1))
    assert [(title, set(rows["name"])) for title, rows in found] == [
        ("Parts, up to 1", {"right", "format", "nothing"}),
        ("Parts, up to 200", {"length"}),
    ]
    few = parts.set_axis(["x", "name", "value"], axis=1)[:2]
    assert [title for title, _ in scorings.by_scale("Parts", few)] == ["Parts"]
