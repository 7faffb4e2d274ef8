"""Rows say what they were measured on and of which code."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.evidence import MONTH
from benchmarks.kit import rows as rows_module
from benchmarks.kit.rows import (
    DIRTY,
    FORMAT,
    RESULTS,
    UNKNOWN,
    ResultFile,
    commit,
    result_line,
    stamp,
)

SAID = {"format", "commit", "at", "machine", "load"}


def git(tree: Path, *arguments: str) -> str:
    who = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.org")
    command = ["git", "-C", str(tree), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one committed file."""
    folder = tmp_path / "tree"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "code.py").write_text("1\n")
    git(folder, "add", "code.py")
    git(folder, "commit", "-q", "-m", "First")
    return folder


def test_a_clean_tree_is_named_by_its_commit(tree: Path) -> None:
    assert commit(tree) == git(tree, "rev-parse", "HEAD")[:12]


@pytest.mark.parametrize("name", ["code.py", "new.py"])
def test_a_changed_or_a_new_file_makes_the_tree_dirty(tree: Path, name: str) -> None:
    (tree / name).write_text("2\n")
    assert commit(tree) == git(tree, "rev-parse", "HEAD")[:12] + DIRTY


def test_rows_that_were_written_do_not_make_the_tree_dirty(tree: Path) -> None:
    results = tree / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "study.jsonl").write_text("{}\n")
    assert not commit(tree).endswith(DIRTY)


def test_an_installed_tree_has_no_commit(tree: Path, tmp_path: Path) -> None:
    """Not even where it lies inside somebody else's repository."""
    installed = tree / "site-packages"
    installed.mkdir()
    (installed / "code.py").write_text("1\n")
    assert commit(installed) == commit(tmp_path) == UNKNOWN


def test_without_git_the_commit_is_unknown(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert commit(tree) == UNKNOWN


def test_every_row_says_format_commit_time_machine_and_load(tmp_path: Path) -> None:
    rows = ResultFile(tmp_path / "rows.jsonl")
    rows.add("one", {"figure": 1.5})
    (line,) = (tmp_path / "rows.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert set(row) == {"key", "figure", *SAID}
    assert (row["key"], row["figure"], row["format"]) == ("one", 1.5, FORMAT)
    assert row["commit"] == commit()
    assert ResultFile(tmp_path / "rows.jsonl").rows == {"one": row}


def test_a_result_on_one_line_says_the_same() -> None:
    result = json.loads(result_line({"name": "x", "ratio": 1.0}))
    assert set(result) == {"name", "ratio", *SAID}


def test_a_tree_that_changed_during_a_measurement_counts_as_dirty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows_module, "commit", lambda: "b" * 12)
    assert stamp({}, began_at="a" * 12)["commit"] == "a" * 12 + DIRTY
    assert stamp({}, began_at="a" * 12 + DIRTY)["commit"] == "a" * 12 + DIRTY
    assert stamp({}, began_at="b" * 12)["commit"] == "b" * 12
    assert stamp({})["commit"] == "b" * 12


def test_checked_in_rows_say_their_format_or_lie_under_their_date() -> None:
    """A row of format 1 does not say its commit, so that its place has to say its time."""
    for path in RESULTS.rglob("*.jsonl"):
        for row in ResultFile(path).rows.values():
            assert path.parent == RESULTS / MONTH or {*SAID} <= set(row)
