"""The dashboard's benchmark: a small run of its kind, and a real measurement of it."""

import json
import time
from pathlib import Path

import pytest

from benchmarks.kit.synthetic_runs import LiveRun, gauge_names, make_run, update_names
from benchmarks.performance.dashboard import BATCH, PAGES, main, path_of, rows_of, shape
from headrace.metrics.registry import METRICS, pattern_of
from storage import queries
from storage.audit import audit_run
from tests.services import cannot_have, find_chromium

SMALL = shape(metric_rows=4_000, trajectories=4 * BATCH, figures=0.5)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "large", SMALL)


def test_all_figures_of_the_run_are_described() -> None:
    assert all(pattern_of(name) in METRICS for name in [*update_names(), *gauge_names()])


def test_the_run_is_as_large_as_it_shall_be(run_dir: Path) -> None:
    counts = rows_of(run_dir)
    assert counts["trajectories"] == SMALL.trajectories
    a_sample = SMALL.updates * len(gauge_names())
    assert abs(counts["metric_rows"] - SMALL.metric_rows) <= a_sample


def test_the_run_agrees_with_itself(run_dir: Path) -> None:
    summary = queries.run_summary(run_dir)
    tokens = summary["tokens"]
    assert summary["status"] == "finished"
    assert summary["updates"] == SMALL.updates
    assert tokens["generated"] == tokens["trained_policy"] + sum(tokens["dropped"].values())
    assert tokens["dropped"]["stale"] > 0
    assert {k: v for k, v in tokens["dropped"].items() if v} == queries.dropped_tokens(run_dir)
    again = audit_run(run_dir).counts
    assert again["trained_policy"] == tokens["trained_policy"]
    page = queries.trajectory_page(run_dir, sort="length", limit=1)
    detail = queries.trajectory_detail(run_dir, int(page.rows["trajectory_id"].iloc[0]))
    assert len(detail.tokens.token_ids) == detail.row["length"] > 0
    assert queries.critic_sample(run_dir, 1, SMALL.updates).answers > 0


def test_a_run_that_is_whole_is_not_made_again_and_one_that_is_not_goes_on(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "large", SMALL)
    before = rows_of(run_dir)
    assert rows_of(make_run(tmp_path / "large", SMALL)) == before
    more = shape(metric_rows=8_000, trajectories=6 * BATCH)
    assert rows_of(make_run(tmp_path / "large", more))["trajectories"] == more.trajectories
    summary = queries.run_summary(run_dir)
    assert summary["tokens"]["dropped"]["stale"] == queries.dropped_tokens(run_dir)["stale"]


def test_a_run_lives_while_it_is_looked_at(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "large", SMALL)
    with LiveRun(run_dir, SMALL, every_s=0.05, update=2) as living:
        began = queries.run_line(run_dir)
        assert began.status == "training"
        while living.samples < 4:
            time.sleep(0.01)
    ended = queries.run_line(run_dir)
    assert ended.status == "finished"
    assert ended.updates > SMALL.updates
    assert ended.wall_s > began.wall_s


def test_every_page_has_an_address() -> None:
    assert len({path_of(page) for page in PAGES}) == len(PAGES)


@pytest.mark.browser
def test_the_benchmark_measures_real_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if find_chromium() is None:
        cannot_have("Chromium", "chromium")
    options = ["--metric-rows", "4000", "--trajectories", str(4 * BATCH), "--times", "1"]
    options += ["--pages", "overview", "trajectories", "--live-s", "3"]
    options += ["--root", str(tmp_path / "root"), "--rows", str(tmp_path / "rows.jsonl"), "--json"]
    assert main(options) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert row == json.loads((tmp_path / "rows.jsonl").read_text())
    assert set(row["pages"]) == {"overview", "trajectories"}
    for name in ("first_paint_s", "cpu_s", "bytes_per_paint"):
        assert row[name] == max(page[name] for page in row["pages"].values())
        assert row[name] > 0
    assert set(row["filters"]) == {"reward", "length", "status", "sort", "update"}
    assert row["filter_s"] == max(found["rows_s"] for found in row["filters"].values())
    assert all(found["rows_s"] <= found["whole_s"] for found in row["filters"].values())
    assert row["memory_mb"] > 50
    assert row["load"] >= 0
    # Living adds to the run after it was counted.
    assert row["trajectories"] == SMALL.trajectories
