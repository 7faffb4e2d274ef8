"""Alerts of a run are those of its metrics, on the surviving line, bounded."""

from dataclasses import asdict
from pathlib import Path

import pytest

from headrace.metrics.health_ranges import BANDS, alert_sentence, alerts
from headrace_cli.cli import main
from storage import queries
from tests.dashboard.odd_runs import collapse
from tests.dashboard.scripted_run import write_run

ENTROPY = "actor/entropy"
FOR = BANDS[ENTROPY].updates


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose entropy falls to 0.01 for good after its scripted updates."""
    root = tmp_path_factory.mktemp("alerts")
    run_dir = write_run(root, updates=4, roll_back_after=None, end=False)
    collapse(run_dir, first=5, updates=FOR + 3)
    return run_dir


def test_a_run_says_what_its_series_say(collapsed: Path) -> None:
    frame = queries.metric_series(collapsed, list(BANDS))
    series = {
        str(name): list(zip(rows["x"], rows["value"], strict=True))
        for name, rows in frame.groupby("name")
    }
    found = queries.band_alerts(collapsed)
    assert found == alerts(series)
    (alert,) = [alert for alert in found if alert.metric == ENTROPY]
    assert (alert.since, alert.updates, alert.now) == (5, FOR + 3, True)


def test_show_has_the_same_entries(collapsed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary, found = queries.run_summary(collapsed), queries.band_alerts(collapsed)
    assert summary["bands"] == [asdict(alert) for alert in found]
    assert summary["alerts"][: len(found)] == [alert_sentence(alert) for alert in found]
    assert main(["show", collapsed.name, "--root", str(collapsed.parent)]) == 0
    text = capsys.readouterr().out
    assert f"entropy under 0.02 for {FOR + 3} updates, since update 5" in text
    assert "bands" not in text


def test_only_the_newest_updates_are_looked_at(collapsed: Path) -> None:
    metrics = {alert.metric for alert in queries.band_alerts(collapsed, updates=FOR - 1)}
    assert ENTROPY not in metrics


def test_updates_that_were_undone_do_not_count(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, updates=6, roll_back_after=4)
    frame = queries.metric_series(run_dir, [ENTROPY])
    assert frame["x"].is_unique
    assert [a for a in queries.band_alerts(run_dir) if a.metric == ENTROPY] == []
