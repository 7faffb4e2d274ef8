"""`headrace runs`: every folder is a line, whatever is in it."""

import io
import json
import os
import shutil
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.messages.control import Status
from headrace.protocol.records.record_types import EvaluationDone
from headrace.protocol.transport.sockets import Link
from headrace.run_files import run_folder
from headrace.run_files.run_folder import LIVE_STATE_FILE, RESOLVED, locked, make_run_folder
from headrace.run_files.run_notes import change_notes
from headrace_cli.cli import main
from headrace_cli.commands.inspection import runs
from headrace_cli.launch import monitor
from storage import queries
from storage.run_store import RunStore
from tests.dashboard.scripted_run import make_config, write_run


def broken_runs(root: Path) -> dict[str, str]:
    """Folders that are no readable runs, and a word of what is said of each."""
    whole = write_run(root, "whole-1", updates=2, roll_back_after=None)
    (root / "latest").write_text("whole-1\n")
    said = {
        "no-configuration": "no resolved.json",
        "torn-configuration": "resolved.json cannot be read",
        "other-configuration": "not the configuration of a run",
        "no-database": "no headrace.sqlite",
        "torn-database": "database",
        "torn-journal": "",
    }
    for name in said:
        shutil.copytree(whole, root / name)
    (root / "no-configuration" / "resolved.json").unlink()
    (root / "torn-configuration" / "resolved.json").write_text('{"name": "x", "task": {"ki')
    (root / "other-configuration" / "resolved.json").write_text("[1, 2]")
    shutil.rmtree(root / "no-database" / "journal")
    (root / "no-database" / "headrace.sqlite").unlink()
    for path in (root / "torn-database").glob("headrace.sqlite*"):
        path.write_bytes(b"not a database at all" * 100)
    for path in (root / "torn-journal" / "journal").iterdir():
        path.write_bytes(b"\0" * 100)
    (root / "nothing").mkdir()
    return said


def test_a_broken_folder_is_a_line_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = broken_runs(tmp_path)
    lines = {line.run_dir.name: line for line in queries.list_runs(tmp_path)}
    assert set(lines) == {"whole-1", *said}
    assert lines["whole-1"].status == "finished"
    for name, words in said.items():
        assert lines[name].status == queries.UNREADABLE, name
        assert words in lines[name].detail, lines[name].detail
    assert main(["runs", "--root", str(tmp_path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 + len(lines)
    assert "? -> ?" not in "".join(printed)
    row = next(line for line in printed if line.startswith("torn-configuration"))
    assert row.split()[1] == "unreadable"
    assert "resolved.json cannot be read" in row
    assert main(["runs", "--root", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["run_id"]: row["status"] for row in rows}["no-database"] == "unreadable"


@pytest.mark.parametrize("name", ["torn-configuration", "torn-database", "no-database"])
def test_show_of_a_broken_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    broken_runs(tmp_path)
    assert main(["show", name, "--root", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


NOBODY = "postgresql://nobody@127.0.0.1:1/nothing"


def move_projection(run_dir: Path, by: int) -> None:
    with closing(sqlite3.connect(run_dir / "headrace.sqlite")) as database:
        database.execute("update projection set next_offset = next_offset + ?", (by,))
        database.commit()


def ahead(run_dir: Path, phase: str, url: str | None = None) -> None:
    """SQL lacks a record, and the coordinator, which lives, said so; `url`: of a server that cannot
    be asked."""
    move_projection(run_dir, -1)
    trouble = {"text": "SQL does not follow", "age_s": 42.0}
    said = {"at": time.time(), "phase": phase, "waits": [], "heard": {}, "updates": 64}
    said |= {"records": 10**6, "sql": trouble if phase == "training" else None}
    (run_dir / LIVE_STATE_FILE).write_text(json.dumps(said))
    if url is not None:
        path = run_dir / RESOLVED
        config = json.loads(path.read_text())
        config["storage"]["database"] = url
        path.write_text(json.dumps(config))


@pytest.mark.parametrize("url", [None, NOBODY])
@pytest.mark.parametrize("phase", ["training", "finished"])
def test_a_run_that_sql_lacks_some_of_is_as_its_folder_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], phase: str, url: str | None
) -> None:
    """And SQL's own figures say as of when they are."""
    run_dir = write_run(tmp_path, updates=2, roll_back_after=None, end=False)
    ahead(run_dir, phase, url)
    assert main(["runs", "--root", str(tmp_path)]) == 0
    _, row, why = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert row.split()[1:3] == [phase, "64"]
    assert ("42 s by" in why) == (phase == "training")
    assert ("as of" if url is None else "cannot reach") in why
    assert main(["show", run_dir.name, "--root", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["status"], shown["updates"]) == (phase, 64)
    assert ("as of" if url is None else "cannot reach") in shown["sql"]
    assert ("tokens" in shown) == (url is None)
    assert main(["show", run_dir.name, "--root", str(tmp_path)]) == 0
    assert "64" in capsys.readouterr().out


def test_a_word_that_is_older_than_a_repair_says_nothing(tmp_path: Path) -> None:
    """SQL has all that the journal has now."""
    run_dir = write_run(tmp_path, updates=2, roll_back_after=None)
    ahead(run_dir, "finished")
    assert queries.any_line(run_dir).sql
    move_projection(run_dir, 1)
    line = queries.any_line(run_dir)
    assert (line.sql, line.updates) == ("", 2)


def test_a_renamed_run_is_listed_by_the_name_that_finds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = write_run(tmp_path, "old-1", updates=2, roll_back_after=None)
    run_dir.rename(tmp_path / "baseline")
    assert main(["runs", "--root", str(tmp_path)]) == 0
    name = capsys.readouterr().out.splitlines()[1].split()[0]
    assert main(["show", name, "--root", str(tmp_path)]) == 0


def test_a_run_that_has_no_database_yet_is_starting(tmp_path: Path) -> None:
    run_dir = make_run_folder(make_config(tmp_path))
    assert queries.list_runs(tmp_path)[0].status == queries.UNREADABLE
    with locked(run_dir):
        (line,) = queries.list_runs(tmp_path)
    assert (line.status, line.detail) == ("starting", "")


def test_what_is_noted_is_shown_and_archived_runs_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("old-1", "new-2"):
        write_run(tmp_path, name, updates=2, roll_back_after=None)
    change_notes(tmp_path / "old-1", tags=["slow", "paper"], note="lr too high\nsee new-2")
    arguments = ["runs", "--root", str(tmp_path)]
    assert main(arguments) == 0
    rows = capsys.readouterr().out.splitlines()
    assert next(row for row in rows if row.startswith("old-1")).endswith(
        "0.281 -> 0.906  [slow, paper]  lr too high"
    )
    change_notes(tmp_path / "old-1", archived=True)
    assert main(arguments) == 0
    rows = capsys.readouterr().out.splitlines()
    assert not any(row.startswith("old-1") for row in rows)
    assert rows[-1] == "1 archived; --archived lists them, too"
    assert main([*arguments, "--archived"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert "  (archived)  [slow, paper]" in next(row for row in rows if row.startswith("old-1"))
    assert main([*arguments, "--archived", "--json"]) == 0
    found = {row["run_id"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["old-1"]["notes"]["tags"] == ["slow", "paper"]
    assert (found["new-2"]["seed"], found["new-2"]["accuracy"]) == (0, 0.90625)
    change_notes(tmp_path / "new-2", archived=True)
    assert main(arguments) == 0
    assert capsys.readouterr().out == "2 archived; --archived lists them, too\n"


def test_the_coordinator_that_takes_over_is_asked_to_stop_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one that is asked is killed before it has ended the run."""
    asked: list[str] = []

    class AnyCoordinator:
        """Monitor of a run that goes on until its second coordinator is asked."""

        def __init__(self, *_: object) -> None:
            self.send_command = asked.append

        def request_status(self) -> None:
            pass

        def latest_status(self, timeout_s: float = 0.0) -> Status:
            return Status(
                run_id="r", phase="training", update=0, version=0, gauges={}, ledger={},
                dropped={}, waits={}, processes={},
            )  # fmt: skip

        def close(self) -> None:
            pass

    run_dir = make_run_folder(make_config(tmp_path))
    monkeypatch.setattr(runs, "ASK_EVERY_S", 0.0)
    monkeypatch.setattr(runs, "Monitor", AnyCoordinator)
    monkeypatch.setattr(runs, "link_of", lambda folder: Link("tcp://127.0.0.1:1"))
    monkeypatch.setattr(run_folder, "is_running", lambda folder: len(asked) < 2)
    assert main(["stop", str(run_dir)]) == 0
    assert asked == ["stop", "stop"]
    assert capsys.readouterr().out.endswith(f"{run_dir.name} has ended\n")


def test_a_run_of_another_host_is_asked_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both hosts see its folder, and another run may have that port here."""
    asked: list[str] = []

    class NoAnswer:
        """Monitor of a coordinator that does not answer."""

        def __init__(self, _config: object, address: str) -> None:
            asked.append(address)

        def request_status(self) -> None:
            pass

        def latest_status(self, timeout_s: float = 0.0) -> None:
            pass

        def close(self) -> None:
            pass

    run_dir = make_run_folder(make_config(tmp_path))
    told = {"address": "tcp://0.0.0.0:7001", "host": "far-away", "pid": 1, "run_id": run_dir.name}
    (run_dir / "coordinator.json").write_text(json.dumps(told))
    for module in (runs, monitor):
        monkeypatch.setattr(module, "Monitor", NoAnswer)
    with locked(run_dir):
        assert main(["stop", str(run_dir)]) == 2
        assert monitor.waits_of(run_dir, run_folder.read_config(run_dir)) is None
    assert asked == ["tcp://far-away:7001"] * 2


def test_a_run_evaluated_in_between_alone_has_its_newest_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(tmp_path, evaluation={"before": False})
    run_dir = make_run_folder(config)
    store = RunStore.create(run_dir, run_dir.name, config)
    during = EvaluationDone(
        at=1.0, label="during", update=5, version=1, num_prompts=4, accuracy=0.75,
        response_length=3.0, max_response_length=9, truncated=0.0, failed=0, seconds=1.0,
        train_time_s=1.0,
    )  # fmt: skip
    store.append([during])
    store.close()
    assert main(["runs", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("  0.750")


def test_an_evaluation_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config: Any = make_config(tmp_path, evaluation={"only": True})
    run_dir = make_run_folder(config)
    RunStore.create(run_dir, run_dir.name, config).close()
    (line,) = queries.list_runs(tmp_path)
    assert line.kind == "evaluation"
    assert main(["runs", "--root", str(tmp_path)]) == 0
    assert "(evaluation)" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["runs"], ["audit", "latest"]])
def test_a_reader_that_goes_away_changes_no_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """As in `headrace runs | head -1`."""

    class OneLine(io.StringIO):
        def write(self, text: str) -> int:
            if "\n" in self.getvalue():
                raise BrokenPipeError
            return super().write(text)

        def fileno(self) -> int:
            return os.open(os.devnull, os.O_WRONLY)

    write_run(tmp_path, "whole-1", updates=2, roll_back_after=None)
    words = [*command, "--root", str(tmp_path)]
    expected = main(words)
    monkeypatch.setattr(sys, "stdout", OneLine())
    assert main(words) == expected
