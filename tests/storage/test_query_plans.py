"""What pages ask of long runs is found by an index: SQLite's own plans, of the statements as they
are sent."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from storage import queries
from storage.database.engine import SQLITE_NAME
from tests.dashboard.scripted_run import write_run

Statement = tuple[str, Any]
INDEXES = {
    "ix_updates_run_update",
    "ix_trajectories_run_finished_at",
    "ix_trajectories_reward_error",
    "ix_trajectories_audit_error",
    "ix_windows_lost",
}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs"), updates=6, roll_back_after=None)


@contextmanager
def sent() -> Iterator[list[Statement]]:
    """The statements that are sent while the block lasts."""
    found: list[Statement] = []

    def note(_c: Any, _k: Any, statement: str, values: Any, _x: Any, _many: bool) -> None:
        if not statement.startswith(("BEGIN", "PRAGMA")):
            found.append((statement, values))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def plans(run_dir: Path, ask: Callable[[], object], table: str) -> list[str]:
    """How each statement about a table finds its rows."""
    with sent() as statements:
        ask()
    steps = [steps_of(run_dir, statement) for statement in statements]
    said = [" ; ".join(step for step in each if f" {table}" in step) for each in steps]
    return [each for each in said if each]


def steps_of(run_dir: Path, statement: Statement) -> list[str]:
    """SQLite's plan of a statement."""
    text, values = statement
    with closing(sqlite3.connect(run_dir / SQLITE_NAME)) as base:
        return [row[3] for row in base.execute(f"EXPLAIN QUERY PLAN {text}", values)]


def newest(run_dir: Path) -> float:
    line = queries.run_line(run_dir)
    return (line.started_at or 0.0) + line.wall_s


def test_what_was_done_lately_is_found_by_its_end(run_dir: Path) -> None:
    since = newest(run_dir) - 5.0
    found = plans(run_dir, lambda: queries.activity(run_dir, since=since), "trajectories")
    assert len(found) == 2  # those that ended, and those that have not
    for plan in found:
        assert "SEARCH trajectories USING INDEX ix_trajectories_run_finished_at" in plan
        assert "finished_at" in plan.split("(", 1)[1]


@pytest.mark.parametrize(
    "ask",
    [
        queries.dropped_tokens,
        queries.dropped_page,
        lambda run_dir: queries.dropped_page(run_dir, reasons=["stale"], lengths=(10, 60)),
        lambda run_dir: queries.dropped_page(run_dir, by="trajectory", order="most tokens"),
    ],
)
def test_windows_that_lost_tokens_are_found_without_the_others(
    run_dir: Path, ask: Callable[[Path], object]
) -> None:
    found = plans(run_dir, lambda: ask(run_dir), "windows")
    assert found
    for plan in found:
        assert "ix_windows_lost" in plan or "ix_windows_run_trajectory_id" in plan
        assert "SCAN windows" not in plan


def test_the_newest_lost_windows_are_read_in_their_order(run_dir: Path) -> None:
    with sent() as statements:
        queries.dropped_page(run_dir, limit=3)
    steps, _ = [steps_of(run_dir, each) for each in statements if "windows" in each[0]]
    assert not [step for step in steps if step == "USE TEMP B-TREE FOR ORDER BY"]


def test_figures_of_a_page_read_no_table_of_answers(run_dir: Path) -> None:
    assert plans(run_dir, lambda: queries.run_figures(run_dir), "windows") == []
    assert plans(run_dir, lambda: queries.run_figures(run_dir), "trajectories") == []


def test_the_newest_error_of_a_source_is_found_among_errors(run_dir: Path) -> None:
    found = plans(run_dir, lambda: queries.reward_sources(run_dir), "trajectories")
    of_errors = [plan for plan in found if "_error" in plan]
    assert len(of_errors) == 2
    assert "ix_trajectories_reward_error" in of_errors[0]
    assert "ix_trajectories_audit_error" in of_errors[1]


@pytest.mark.parametrize(
    "ask",
    [
        queries.band_alerts,
        queries.run_figures,
        lambda run_dir: queries.metric_series(run_dir, ("reward/mean", "actor/entropy")),
        lambda run_dir: queries.metric_series(run_dir, ("reward/mean",), "tokens", points=3),
        lambda run_dir: queries.metric_series(run_dir, ("reward/mean",), "cpu"),
    ],
)
def test_metrics_of_updates_are_found_by_their_names(
    run_dir: Path, ask: Callable[[Path], object]
) -> None:
    with sent() as statements:
        ask(run_dir)
    plans = [steps for steps in map(partial(steps_of, run_dir), statements) if _tables(steps)]
    assert plans
    for steps in plans:
        metrics, *updates = [step for step in steps if step.split()[1] in ("metrics", "updates")]
        assert metrics.startswith("SEARCH metrics"), "before any update"
        assert "(run=? AND name=?" in metrics
        assert all("(run=? AND lineage=? AND update=?)" in step for step in updates)


def _tables(steps: list[str]) -> bool:
    """Whether values of metrics are read."""
    return any(step.startswith(("SEARCH metrics", "SCAN metrics")) for step in steps) and not any(
        "names" in step for step in steps
    )


def test_an_evaluation_looks_up_its_own_update(run_dir: Path) -> None:
    (plan,) = plans(run_dir, lambda: queries.evaluations(run_dir), "updates")
    assert "ix_updates_run_update (run=? AND update=?)" in plan


def test_figures_of_a_page_are_those_of_the_summary(run_dir: Path) -> None:
    summary = queries.run_summary(run_dir)
    figures = queries.run_figures(run_dir)
    assert figures == {name: summary[name] for name in figures}
    assert {"updates", "tokens", "staleness", "weight_version", "evaluations"} <= set(figures)


def test_figures_of_a_page_need_no_check_of_the_configuration(run_dir: Path) -> None:
    """Its models are seconds of imports."""
    script = (
        "import sys; from pathlib import Path; from storage import queries; "
        "mode = queries.run_figures(Path(sys.argv[1]))['mode']; "
        "print(mode, 'headrace.config.sections.run' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, str(run_dir)], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["streaming", "False"]


def test_a_run_has_the_indexes(tmp_path: Path) -> None:
    assert _indexes(write_run(tmp_path, updates=2, roll_back_after=None)) >= INDEXES


def _indexes(run_dir: Path) -> set[str]:
    with closing(sqlite3.connect(run_dir / SQLITE_NAME)) as base:
        rows = base.execute("SELECT name FROM sqlite_master WHERE type = 'index'")
        return {name for (name,) in rows}
