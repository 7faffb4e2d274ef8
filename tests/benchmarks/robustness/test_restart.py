"""The scripted history is one that a coordinator could have written, and restarts are measured."""

import json
from pathlib import Path

import pytest

from benchmarks.kit.rows import read_rows
from benchmarks.robustness import restart
from storage.audit import audit_run


def test_the_history_is_sound(tmp_path: Path) -> None:
    """Before and behind a resume; nobody trained it, so checkpoints and figures are not there."""
    run_dir = tmp_path / "run"
    for size in (256, 2816):
        restart.grow(run_dir, size, 8)
    report = audit_run(run_dir)
    assert report.balanced
    assert report.looked_at["trajectories"] == 2816
    assert {finding.kind for finding in report.findings} <= {"checkpoint", "weights", "diagnostics"}


def test_a_row_for_each_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    root.mkdir()
    options = ["--trajectories", "384", "--tokens", "8", "--root", str(root), "--json"]
    assert restart.main([*options, "--rows", str(tmp_path / "rows.jsonl")]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    sizes = json.loads(line)["sizes"]
    (row,) = read_rows(tmp_path / "rows.jsonl").values()
    assert (row["name"], row["sizes"]) == ("restart", sizes)
    assert [row["trajectories"] for row in sizes] == [128, 384]
    for row in sizes:
        assert row["restart_s"] > 0
        assert row["peak_mb"] >= row["memory_mb"] > 0
    assert list(root.iterdir()) == []
