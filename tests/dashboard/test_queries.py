"""The reads that the pages need beyond what the command line asks for."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dashboard.components import panels
from dashboard.reads import data
from dashboard.views import rewards
from headrace.protocol.records.record_types import (
    BatchTaken,
    MetricsSampled,
    RewardArrived,
    RunPhase,
    TrajectoryEnded,
    UpdateCommitted,
)
from storage import queries
from storage.queries import answers
from storage.queries.metrics import Axis
from storage.run_store import RunStore
from tests.dashboard.odd_runs import breathe, evaluate
from tests.dashboard.scripted_run import MARKUP_ID, make_config, write_run
from tests.storage.samples import chunk, group


def test_a_bounded_series_keeps_least_and_largest_and_the_ends(run_dir: Path) -> None:
    """Eight points of twenty-four: three stretches of eight updates, two rows of each, the ends."""
    whole = queries.metric_series(run_dir, ["actor/entropy"])
    fewer = queries.metric_series(run_dir, ["actor/entropy"], points=8)
    assert list(whole["x"]) == list(range(1, 25))
    assert len(fewer) <= 8
    values = dict(zip(whole["x"], whole["value"], strict=True))
    assert all(values[x] == value for x, value in zip(fewer["x"], fewer["value"], strict=True))
    for first in (0, 8, 16):
        stretch = whole[first : first + 8]
        found = fewer[fewer["x"].between(first + 1, first + 8)]
        assert found["value"].min() == stretch["value"].min()
        assert found["value"].max() == stretch["value"].max()
        assert found["mean"].tolist() == pytest.approx([stretch["value"].mean()] * len(found))
    assert (fewer["x"].iloc[0], fewer["x"].iloc[-1]) == (1, 24)
    assert queries.metric_series(run_dir, ["actor/entropy"], points=24).equals(whole)


def test_a_single_spike_is_never_lost(tmp_path: Path) -> None:
    """A gradient norm of 500 among five thousand of about 1 is a point of the line."""
    norms = [1.0 + 0.001 * (i % 7) for i in range(5000)]
    norms[3210] = 500.0
    norms[17] = 0.125
    store = RunStore.create(tmp_path / "run", "run", make_config(tmp_path))
    records: list[Any] = [RunPhase(at=0.0, phase="training")]
    for i, norm in enumerate(norms):
        at, update = 1.0 + i, i + 1
        records += [
            BatchTaken(
                at=at, update=update, lineage=0, version=0, windows=[], value_trajectories=[]
            ),
            UpdateCommitted(
                at=at + 0.5,
                update=update,
                lineage=0,
                version=0,
                train_time_s=at,
                trained_tokens=update,
                window_ids=[],
                value_trajectories=[],
                metrics={"actor/grad_norm": norm},
                diagnostics=[],
            ),
            MetricsSampled(at=at + 0.6, update=update, metrics={"schedule/live": norm}),
        ]
    store.append(records)
    store.close()
    axes: list[Axis] = ["update", "train_time", "wall", "tokens"]
    for x in axes:
        line = queries.metric_series(tmp_path / "run", ["actor/grad_norm"], x, points=600)
        assert len(line) <= 600
        assert (line["value"].max(), line["value"].min()) == (500.0, 0.125), x
        if x == "update":
            assert line["x"][line["value"] == 500.0].tolist() == [3211]
    gauge = queries.metric_series(
        tmp_path / "run", ["schedule/live"], "wall", samples=True, points=600
    )
    assert len(gauge) <= 602
    assert (gauge["value"].max(), gauge["value"].min()) == (500.0, 0.125)


def test_cpu_seconds_are_an_axis(run_dir: Path) -> None:
    names = ["perf/cpu_s", "reward/mean"]
    for points in (None, 8):
        both = queries.metric_series(run_dir, names, "cpu", points=points)
        own = both[both["name"] == "perf/cpu_s"]
        assert own["x"].tolist() == own["value"].tolist()
        assert own["x"].is_monotonic_increasing
        assert {"reward/mean", "perf/cpu_s"} == set(both["name"])
    by_update = queries.metric_series(run_dir, ["reward/mean"])
    by_cpu = queries.metric_series(run_dir, ["reward/mean"], "cpu")
    assert by_cpu["value"].tolist() == by_update["value"].tolist()
    before, after = queries.evaluations(run_dir)["cpu_s"]
    assert np.isnan(before), "nobody had looked yet"
    assert after == pytest.approx(queries.latest_metrics(run_dir)["perf/cpu_s"], abs=8.0)


def test_bounded_samples_are_few_and_in_order(run_dir: Path) -> None:
    names = ["schedule/live", "idle/learner"]
    whole = queries.metric_series(run_dir, names, "wall", samples=True)
    fewer = queries.metric_series(run_dir, names, "wall", samples=True, points=10)
    counts = fewer.groupby("name").size()
    assert counts.max() <= 12
    assert counts.max() < whole.groupby("name").size().max()
    assert fewer["x"].is_monotonic_increasing
    assert fewer["x"].max() == whole["x"].max()


def test_trajectories_of_an_update(run_dir: Path) -> None:
    page = queries.trajectory_page(run_dir, updates=(5, 5), limit=1000)
    windows = [
        queries.trajectory_detail(run_dir, int(key)).windows for key in page.rows["trajectory_id"]
    ]
    assert page.total == len(page.rows) > 0
    assert all((frame["update"] == 5).any() for frame in windows)
    assert queries.trajectory_page(run_dir, updates=(999, 999)).total == 0


def test_search_in_responses(run_dir: Path) -> None:
    assert queries.search_responses(run_dir, "<b>bold", purpose="train") == [MARKUP_ID]
    assert queries.search_responses(run_dir, "no such text", purpose="train") == []


def test_the_line_of_a_run_is_that_of_the_list(run_dir: Path) -> None:
    assert queries.run_line(run_dir) == queries.list_runs(run_dir.parent)[0]


def test_rows_after_a_rollback_are_those_of_the_surviving_lineage(run_dir: Path) -> None:
    frame: pd.DataFrame = queries.metric_series(run_dir, ["reward/mean", "actor/entropy"])
    assert not frame.duplicated(["x", "name"]).any()


def test_answers_of_groups_as_texts(run_dir: Path) -> None:
    found = list(queries.group_answers(run_dir))
    page = queries.trajectory_page(run_dir, filters={"purpose": "train"}, limit=100_000).rows
    scored = page[page["correct"].notna() & (page["length"] > 0)]
    assert len(found) == len(scored) > 0
    texts = {queries.trajectory_detail(run_dir, int(key)).text for key in scored["trajectory_id"]}
    assert {answer.text for answer in found} == texts
    assert {answer.group_id for answer in found} == set(scored["group_id"])


def test_how_answers_begin(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = queries.trajectory_page(run_dir, filters={"status": "finished"}, limit=500).rows
    ids = [int(key) for key in rows["trajectory_id"]]
    found = queries.beginnings(run_dir, ids)
    for key in ids[::40]:
        text = queries.trajectory_detail(run_dir, key).text
        assert text
        assert found[key]
        assert text.startswith(found[key].removesuffix("\ufffd"))
    assert queries.beginnings(run_dir, [10**9]) == {}
    monkeypatch.setattr(answers, "MAX_DISTANCE", 10)
    assert queries.beginnings(run_dir, ids) == {}


def test_the_lives_of_the_newest_answers(run_dir: Path) -> None:
    found = queries.lives(run_dir, newest=40)
    assert found["trajectory_id"].nunique() == 40
    for key, stages in found.groupby("trajectory_id"):
        row = queries.trajectory_detail(run_dir, int(str(key))).row
        by_stage = {stage: rows for stage, rows in stages.groupby("stage")}
        assert by_stage["generating"]["start"].item() == row["first_token_at"]
        assert by_stage["generating"]["version"].item() == row["max_version"]
        assert stages["start"].min() == row["issued_at"]
        update = queries.trajectory_detail(run_dir, int(str(key))).windows["update"]
        assert len(by_stage.get("training", ())) == update.nunique()
    last = float(found["end"].max())
    recent = queries.lives(run_dir, newest=40, since=last - 5.0)
    assert 0 < len(recent) < len(found)
    assert (recent["end"] > last - 5.0).all()


def test_an_evaluation_has_its_own_answers_and_a_prompt_its_history(tmp_path: Path) -> None:
    run = write_run(tmp_path, updates=3, roll_back_after=None, end=False)
    evaluate(run, {"a": ["2", "1", "1"], "b": ["22", "222", "1"]})
    evaluate(run, {"c": ["2222"]}, ends=False)

    def answers(number: int, **filters: Any) -> list[int]:
        found = queries.trajectory_page(
            run, evaluation=number, filters={"purpose": "eval", **filters}, descending=False
        )
        assert found.total == len(found.rows)
        return list(found.rows["length"])

    numbers = range(queries.asked_number(run) + 2)
    assert [answers(number) for number in numbers] == [
        [], [], [1, 2], [1, 3], [1, 1], [4], []
    ]  # fmt: skip
    assert answers(3, correct=False) == [3]
    last = queries.trajectory_page(run, evaluation=3, filters={"purpose": "eval"}, newest=1)
    assert (last.total, list(last.rows["length"])) == (1, [3])
    history = queries.prompt_history(run, "b")
    assert list(history["evaluation"]) == [2, 3, 4]
    assert list(history["reward"]) == [0, 0, 1]
    assert set(history["update"]) == {queries.run_line(run).updates}
    assert list(queries.prompt_history(run, "b", most=1)["evaluation"]) == [4]
    (row,) = queries.reward_sources(run, 3).to_dict("records")
    assert (row["answers"], row["correct"]) == (2, 0.5)
    (failure,) = [one for one in queries.reward_failures(run) if one.status == "crashed"]
    assert failure.number == 1
    assert (queries.trajectory_page(run, limit=1).rows["surprise"] == 0.5).all()


def test_answers_over_their_lengths_are_those_scored_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first update, which may take an hour, and between two of them."""
    run = tmp_path / "young-1"
    store = RunStore.create(run, run.name, make_config(tmp_path))
    store.append([RunPhase(at=0.0, phase="training"), group(10, size=2)])
    breathe(run)
    shown: list[int] = []
    monkeypatch.setattr(panels, "frame_card", lambda *parts, **_: shown.append(len(parts[2])))
    for key, at in ((100, 10.0), (101, 20.0)):
        ended = TrajectoryEnded(at=at, trajectory_id=key, status="finished", length=2)
        score = RewardArrived(at=at, trajectory_id=key, status="ok", reward=1.0, correct=True)
        store.append([chunk(key, 0, 2, at=at, finish="stop"), ended, score])
        line = queries.run_line(run)
        assert (line.status, line.updates) == ("training", 0)
        rewards._scatter(data.RunData(line), None)
    store.close()
    assert shown == [1, 2]
