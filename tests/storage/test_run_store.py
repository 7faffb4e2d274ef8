"""The store a coordinator writes through: journal and SQL always tell the same."""

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, select
from sqlalchemy.exc import OperationalError

from coordinator import run as takeover
from headrace.errors import UserError
from headrace.protocol.messages.diagnostics import TokenDiagnostics
from headrace.protocol.records.record_types import (
    ChunkArrived,
    Incident,
    Record,
    TrajectoryEnded,
    UpdateCommitted,
)
from headrace.run_files.run_folder import is_running
from storage import projection, run_store
from storage.audit import repair
from storage.database.engine import open_reader
from storage.database.tables import Base, Run
from storage.journal.record_batches import DamagedError
from storage.journal.segments import segment_paths
from storage.run_store import RunStore
from tests.storage.samples import chunk, group, run_config, same, small_run, write_run


def dump(run_dir: Path, url: str | None = None) -> dict[str, list[Any]]:
    """Every row of every table."""
    engine = open_reader(run_dir, url)
    with engine.connect() as connection:
        return {
            table.name: sorted(map(repr, connection.execute(select(table))))
            for table in Base.metadata.sorted_tables
        }


def comes(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def settled(store: RunStore) -> None:
    comes(lambda: store.behind_s == 0.0 and not store.behind)


def flat() -> list[Record]:
    return [record for records in small_run() for record in records]


def without_diagnostics(record: Record) -> Record:
    if isinstance(record, UpdateCommitted):
        return type(record)(
            **{n: getattr(record, n) for n in record.__struct_fields__ if n != "diagnostics"},
            diagnostics=list[TokenDiagnostics](),
        )
    return record


def test_replay_is_what_was_appended(tmp_path: Path) -> None:
    store = RunStore.open(write_run(tmp_path / "run"))
    replayed = list(store.replay())
    store.close()
    assert len(replayed) == len(flat())
    for written, read in zip(flat(), replayed, strict=True):
        assert same(without_diagnostics(written), read)


def test_sql_is_rebuilt_from_the_journal(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")
    before = dump(run_dir)
    for path in run_dir.glob("headrace.sqlite*"):
        path.unlink()
    RunStore.open(run_dir).close()
    assert dump(run_dir) == before
    assert len(before["trajectories"]) == 5


def test_a_database_that_is_none_is_made_anew_by_a_repair(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")
    before = dump(run_dir)
    (run_dir / "headrace.sqlite").write_bytes(b"not a database at all" * 100)
    with pytest.raises(UserError, match=rf"not a database\): .*headrace audit {run_dir} --repair"):
        RunStore.open(run_dir)
    assert repair(run_dir).made_anew
    RunStore.open(run_dir).close()
    assert dump(run_dir) == before


@settings(deadline=None, max_examples=8)
@given(st.lists(st.integers(0, len(flat())), max_size=3))
def test_any_batching_and_reopening_gives_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    run_dir = tmp_path_factory.mktemp("cut") / "run"
    store = RunStore.create(run_dir, "run", run_config())
    borders = sorted({0, len(flat()), *cuts})
    for first, last in pairwise(borders):
        store.append(flat()[first:last])
        store.close()
        store = RunStore.open(run_dir)
    store.close()
    assert dump(run_dir) == dump(_reference(tmp_path_factory))


_made: list[Path] = []


def _reference(factory: pytest.TempPathFactory) -> Path:
    if not _made:
        _made.append(write_run(factory.mktemp("reference") / "run"))
    return _made[0]


@pytest.mark.postgresql
def test_postgresql_holds_the_same_rows(tmp_path: Path, postgresql_url: str) -> None:
    config = run_config(storage={"database": postgresql_url})
    run_dir = write_run(tmp_path / "run", config)
    sqlite_dir = write_run(tmp_path / "other" / "run")
    rows, expected = dump(run_dir, postgresql_url), dump(sqlite_dir)
    rows.pop("runs"), expected.pop("runs")
    assert rows == expected
    write_run(tmp_path / "second", config)
    assert len(dump(run_dir, postgresql_url)["runs"]) == 2


def test_records_are_applied_once(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")
    before = dump(run_dir)
    store = RunStore.open(run_dir)
    with store._engine.begin() as connection:
        run = connection.execute(select(Run.id)).scalar_one()
        projection.apply(connection, run, list(enumerate(flat())))
    store.close()
    assert dump(run_dir) == before


def test_sql_that_fails_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    store = RunStore.create(run_dir, "run", run_config())
    real_apply = projection.apply

    def fail(*_: object) -> None:
        raise OperationalError("insert", {}, Exception("database or disk is full"))

    parts = small_run()
    store.append(parts[0])
    monkeypatch.setattr(projection, "apply", fail)
    store.append(parts[1])
    store.append(parts[2])
    monkeypatch.setattr(projection, "apply", real_apply)
    for records in parts[3:]:
        store.append(records)
    store.close()
    assert dump(run_dir) == dump(write_run(tmp_path / "whole" / "run"))


def test_what_a_slow_commit_waits_for_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not answer is not the journal's disk."""
    run_dir, places = tmp_path / "run", list[str]()
    store = RunStore.create(run_dir, "run", run_config())
    real_append, real_apply = store._journal.append, projection.apply

    def append(records: Sequence[Record]) -> None:
        places.append(store.place)
        real_append(records)

    def apply(connection: Connection, run: int, records: list[tuple[int, Record]]) -> None:
        places.append(store.place)
        real_apply(connection, run, records)

    monkeypatch.setattr(store._journal, "append", append)
    monkeypatch.setattr(projection, "apply", apply)
    store.append(small_run()[0])
    store.close()
    assert places == [f"the disk of {run_dir}/journal", f"SQL in {run_dir}/headrace.sqlite"]


def gone(run_dir: Path) -> None:
    for path in run_dir.glob("headrace.sqlite*"):
        path.unlink()


@pytest.mark.parametrize("left", [0, 3])
def test_sql_that_lacks_much_is_brought_up_beside_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """The store is open before that, and takes records meanwhile; at its end the rows are whole."""
    parts = small_run()
    run_dir = tmp_path / "run"
    store = RunStore.create(run_dir, "run", run_config())
    for records in parts[: len(parts) - left]:
        store.append(records)
    store.close()
    gone(run_dir)
    monkeypatch.setattr(run_store, "BACKGROUND_CATCH_UP_RECORDS", 3)
    may_begin, real_apply = threading.Event(), projection.apply

    def apply(*arguments: Any) -> None:
        may_begin.wait()
        real_apply(*arguments)

    monkeypatch.setattr(projection, "apply", apply)
    store = RunStore.open(run_dir)
    for records in parts[len(parts) - left :]:
        store.append(records)
        assert "is being brought up to the journal" in store.behind
    may_begin.set()
    store.close()
    assert store.behind == ""
    assert dump(run_dir) == dump(write_run(tmp_path / "whole" / "run"))


def test_sql_that_fails_beside_the_run_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = write_run(tmp_path / "run")
    before = dump(run_dir)
    gone(run_dir)
    monkeypatch.setattr(run_store, "BACKGROUND_CATCH_UP_RECORDS", 3)
    monkeypatch.setattr(run_store, "CATCH_UP_S", 0.0)
    fails, real_apply = [True, True], projection.apply

    def apply(*arguments: Any) -> None:
        if fails and fails.pop():
            raise OperationalError("insert", {}, Exception("database or disk is full"))
        real_apply(*arguments)

    monkeypatch.setattr(projection, "apply", apply)
    store = RunStore.open(run_dir)
    began = time.monotonic()
    store.append([Incident(at=1.0, level="info", kind="k", text="t")])
    while fails and time.monotonic() < began + 60:
        store.append([Incident(at=1.0, level="info", kind="k", text="t")])
        time.sleep(0.01)
    store.close()
    assert not fails
    assert store.behind == ""
    rows = dump(run_dir)
    assert len(rows.pop("events")) > len(before.pop("events"))
    assert {name: rows[name] for name in ("trajectories", "windows", "updates")} == {
        name: before[name] for name in ("trajectories", "windows", "updates")
    }


def test_a_locked_file_holds_one_commit_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else has begun to write SQLite and does not end."""
    monkeypatch.setattr("storage.database.engine._LOCKED_TIMEOUT_S", 0.2)
    monkeypatch.setattr(run_store, "MAX_SILENCE_S", 0.5)
    parts, run_dir = small_run(), tmp_path / "run"
    store = RunStore.create(run_dir, "run", run_config())
    with closing(sqlite3.connect(run_dir / "headrace.sqlite", isolation_level=None)) as other:
        other.execute("begin exclusive")
        store.append(parts[0])
        assert "locked" in store.behind
        goes_on, update_sql = threading.Event(), store._update_sql

        def wait_and_update(*arguments: Any, **how: Any) -> None:
            assert goes_on.wait(20), "a commit waited for SQL"
            update_sql(*arguments, **how)

        monkeypatch.setattr(store, "_update_sql", wait_and_update)
        for part in parts[1:-1]:
            store.append(part)
        goes_on.set()
        store._catch_up_at = 0.0
        other.execute("rollback")
        store.append(parts[-1])
        settled(store)
        other.execute("begin exclusive")
        store.append([Incident(at=1.0, level="info", kind="k", text="t")])
        began = time.monotonic()
        store.close()
        assert time.monotonic() - began < 5.0
    RunStore.open(run_dir).close()
    assert (
        len(dump(run_dir)["events"]) == len(dump(write_run(tmp_path / "a" / "run"))["events"]) + 1
    )


def test_a_coordinator_that_takes_over_waits_for_sql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It begins again as another process, while one that a person starts says what is wrong."""
    run_dir, waits = tmp_path / "run", list[str]()
    RunStore.create(run_dir, "run", run_config()).close()

    async def opening(_: object, folder: Path, **__: object) -> int:
        RunStore.open(folder).close()
        return 0

    def begins_again(*_: object) -> None:
        raise InterruptedError

    monkeypatch.setattr("storage.database.engine._LOCKED_TIMEOUT_S", 0.2)
    monkeypatch.setattr(takeover, "_main", opening)
    monkeypatch.setattr(takeover, "_wait_for_room", lambda _, problem: waits.append(problem))
    for name in ("memory.give_back", "stack_dumps.log_and_listen"):
        monkeypatch.setattr(f"headrace.host.{name}", lambda: None)
    monkeypatch.setattr("os.execv", begins_again)
    command = ["--run-dir", str(run_dir), "--resume"]
    with closing(sqlite3.connect(run_dir / "headrace.sqlite", isolation_level=None)) as other:
        other.execute("begin exclusive")
        assert takeover.main(command) == 2
        assert "headrace.sqlite cannot be written (database is locked)" in capsys.readouterr().err
        with pytest.raises(InterruptedError):
            takeover.main([*command, "--patient"])
    (problem,) = waits
    assert "(database is locked)" in problem
    assert takeover.main([*command, "--patient"]) == 0


def test_a_run_that_ends_leaves_sql_behind_if_it_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = write_run(tmp_path / "run")
    before = dump(run_dir)
    gone(run_dir)
    may_begin, real_apply = threading.Event(), projection.apply

    def apply(*arguments: Any) -> None:
        may_begin.wait()
        real_apply(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(run_store, "BACKGROUND_CATCH_UP_RECORDS", 3)
        patch.setattr(run_store, "MAX_CLOSE_S", 0.01)
        patch.setattr(projection, "apply", apply)
        store = RunStore.open(run_dir)
        store.close()
        may_begin.set()
    RunStore.open(run_dir).close()
    assert dump(run_dir) == before


def test_power_loss_between_journal_and_sql(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")
    before = dump(run_dir)
    path = segment_paths(run_dir / "journal")[-1]
    path.write_bytes(path.read_bytes()[:-30])
    for name in run_dir.glob("headrace.sqlite*"):
        name.unlink()
    store = RunStore.open(run_dir)
    store.append(small_run()[-1])
    store.close()
    assert dump(run_dir) == before


WRITER = """
import sys
from pathlib import Path
from storage.run_store import RunStore
from tests.storage.samples import chunk, group, run_config

store = RunStore.create(Path(sys.argv[1]), "run", run_config())
store.append([group(1)])
for count in range(1_000_000):
    store.append([chunk(10, count, count + 1, index=count)])
    print(count, flush=True)
"""


def test_writer_killed_at_any_moment_loses_nothing_it_promised(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = [sys.executable, "-c", WRITER, str(run_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        promised = [int(writer.stdout.readline()) for _ in range(40)][-1]
        writer.kill()
        promised = int([str(promised), *writer.stdout.read().split()][-1])
    store = RunStore.open(run_dir)
    chunks = [record for record in store.replay() if isinstance(record, ChunkArrived)]
    store.close()
    assert [record.chunk_index for record in chunks] == list(range(len(chunks)))
    assert promised < len(chunks) <= promised + 2
    before = dump(run_dir)
    for path in run_dir.glob("headrace.sqlite*"):
        path.unlink()
    RunStore.open(run_dir).close()
    assert dump(run_dir) == before


def test_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")
    with pytest.raises(UserError, match="already holds a run"):
        RunStore.create(run_dir, "run", run_config())


def test_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        RunStore.open(tmp_path)


@pytest.mark.postgresql
def test_password_of_the_database_is_not_stored(tmp_path: Path, postgresql_url: str) -> None:
    secret = postgresql_url.replace("tester@", "tester:very-secret@")
    run_dir = write_run(tmp_path / "run", run_config(storage={"database": secret}))
    assert "very-secret" not in repr(dump(run_dir, postgresql_url)["runs"])


@pytest.mark.postgresql
def test_text_with_nul_and_odd_numbers(tmp_path: Path, postgresql_url: str) -> None:
    odd = type(group(1))(
        **{
            **{n: getattr(group(1), n) for n in group(1).__struct_fields__},
            "prompt": "a\x00b",
            "answer": "\U0001f600",
        }
    )
    for url in (None, postgresql_url):
        run_dir = tmp_path / str(url is None)
        store = RunStore.create(run_dir, run_dir.name, run_config(storage={"database": url}))
        store.append([odd, chunk(10, 0, 0, finish="held"), chunk(10, 0, 3, index=1)])
        store.close()
        (row,) = dump(run_dir, url)["prompts"]
        assert "a\ufffdb" in row


@pytest.mark.postgresql
def test_a_database_without_an_encoding(tmp_path: Path, postgresql_url: str) -> None:
    """As a server makes it that was set up without a locale."""
    with psycopg.connect(postgresql_url, autocommit=True) as server:
        server.execute(
            "create database bare template template0 encoding 'SQL_ASCII' "
            "lc_collate 'C' lc_ctype 'C'"
        )
    url, run_dir = postgresql_url.rpartition("/")[0] + "/bare", tmp_path / "run"
    store = RunStore.create(run_dir, "run", run_config(storage={"database": url}))
    store.append([msgspec.structs.replace(group(1), answer="\U0001f600")])
    store.close()
    (row,) = dump(run_dir, url)["prompts"]
    assert "'\U0001f600'" in row


def test_sql_ahead_of_a_journal_that_lost_its_end(tmp_path: Path) -> None:
    """An older journal was put back: that is told, and after a repair the rows of what it lost are
    not believed."""
    run_dir = write_run(tmp_path / "run")
    shutil.copytree(run_dir / "journal", tmp_path / "kept")
    before = dump(run_dir)
    store = RunStore.open(run_dir)
    store.append(
        [
            chunk(30, 5, 9, index=1),
            TrajectoryEnded(at=50.0, trajectory_id=30, status="finished", length=9),
        ]
    )
    store.close()
    shutil.rmtree(run_dir / "journal")
    (tmp_path / "kept").rename(run_dir / "journal")
    with pytest.raises(DamagedError, match=f"knows {len(flat()) + 2} records, and the journal has"):
        RunStore.open(run_dir)
    done = repair(run_dir)
    assert (done.kept, done.lost, done.damaged) == (len(flat()), 2, None)
    RunStore.open(run_dir).close()
    assert dump(run_dir) == before


def test_one_writer(tmp_path: Path) -> None:
    """Whoever opens the store of a run is the only one, until it is closed or the process dead."""
    run_dir = write_run(tmp_path / "run")
    assert not is_running(run_dir)
    store = RunStore.open(run_dir)
    assert is_running(run_dir)
    for other in (RunStore.open, repair):
        with pytest.raises(UserError, match=f"still being written by process {os.getpid()}"):
            other(run_dir)
    store.append([chunk(30, 5, 9, index=1)])
    store.close()
    assert not is_running(run_dir)
    command = [sys.executable, "-c", HOLDER, str(run_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        with pytest.raises(UserError, match=f"still being written by process {holder.pid}"):
            RunStore.open(run_dir, wait_s=0.2)
        holder.kill()
    RunStore.open(run_dir).close()


HOLDER = """
import sys
import time
from pathlib import Path
from storage.run_store import RunStore

store = RunStore.open(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""
