"""The reads that the pages need beyond what the command line asks for."""

from pathlib import Path

import pandas as pd
import pytest

from storage import queries
from tests.dashboard.scripted_run import MARKUP_ID


def test_a_bounded_series_averages_neighbours_and_keeps_the_ends(run_dir: Path) -> None:
    whole = queries.metric_series(run_dir, ["actor/entropy"])
    fewer = queries.metric_series(run_dir, ["actor/entropy"], points=6)
    assert list(whole["x"]) == list(range(1, 25))
    assert list(fewer["x"]) == [4, 8, 12, 16, 20, 24]
    assert fewer["value"].iloc[0] == pytest.approx(whole["value"].iloc[:4].mean())
    assert queries.metric_series(run_dir, ["actor/entropy"], points=24).equals(whole)


def test_bounded_samples_are_few_and_in_order(run_dir: Path) -> None:
    names = ["schedule/live", "idle/learner"]
    whole = queries.metric_series(run_dir, names, "wall", samples=True)
    fewer = queries.metric_series(run_dir, names, "wall", samples=True, points=10)
    counts = fewer.groupby("name").size()
    assert counts.max() <= 11
    assert counts.max() < whole.groupby("name").size().max()
    assert fewer["x"].is_monotonic_increasing
    assert fewer["x"].max() == whole["x"].max()


def test_trajectories_of_an_update(run_dir: Path) -> None:
    page = queries.trajectory_page(run_dir, update=5, limit=1000)
    windows = [
        queries.trajectory_detail(run_dir, int(key)).windows for key in page.rows["trajectory_id"]
    ]
    assert page.total == len(page.rows) > 0
    assert all((frame["update"] == 5).any() for frame in windows)
    assert queries.trajectory_page(run_dir, update=999).total == 0


def test_search_in_responses(run_dir: Path) -> None:
    assert queries.search_responses(run_dir, "<b>bold") == [MARKUP_ID]
    assert queries.search_responses(run_dir, "no such text") == []
    assert queries.search_responses(run_dir, "<b>bold", newest=10) == []


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
