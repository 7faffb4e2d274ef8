"""A PostgreSQL server that goes away or freezes for a while: the run goes on, and SQL has
everything once the server is back."""

import asyncio
import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, select

from headrace.errors import UserError
from headrace.protocol.records.record_types import Incident, UpdateCommitted
from headrace.run_files.run_folder import LIVE_STATE_FILE
from storage import projection
from storage.audit import audit_run, repair
from storage.database.engine import DatabaseAwayError, open_reader
from storage.database.reader import open_run
from storage.database.tables import Run
from storage.journal.segments import segment_paths
from storage.queries import any_line
from storage.run_store import RunStore
from tests.coordinator.peers import (
    CoordinatorProcess,
    ScriptedGenerator,
    ScriptedLearner,
    ScriptedReward,
    until,
)
from tests.coordinator.test_loop import records_of
from tests.coordinator.test_loop import run_config as whole_run_config
from tests.storage.lives import run_by_hand, write_whole
from tests.storage.postgresql import Server
from tests.storage.samples import run_config, small_run, write_run
from tests.storage.test_run_store import comes, dump, settled

pytestmark = pytest.mark.postgresql
FREEZES = ("freeze", "freeze to the end")


def rows(run_dir: Path, url: str | None = None) -> dict[str, list[Any]]:
    """All rows but the run's own, which names its database."""
    found = dump(run_dir, url)
    found.pop("runs")
    return found


def said(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / LIVE_STATE_FILE).read_text()))


def test_what_came_while_the_server_was_away_is_in_sql_afterwards(
    tmp_path: Path, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it stops: between two transactions, within one, at the end, twice."""
    monkeypatch.setattr("storage.run_store.CATCH_UP_S", 0.0)
    url = own_server.new_database()
    config = run_config(storage={"database": url})
    parts, run_dir = small_run(), tmp_path / "run"
    expected = rows(write_run(tmp_path / "other" / "run"))
    store = RunStore.create(run_dir, "run", config)
    store.append(parts[0])
    settled(store)
    own_server.stop()
    for part in parts[1:3]:
        store.append(part)
    comes(lambda: "does not follow the journal" in store.behind)
    own_server.start()
    store.append(parts[3])
    settled(store)
    # All statements of a transaction have run, and it cannot be committed.
    real = projection.apply

    def apply(connection: Connection, *arguments: Any) -> None:
        real(connection, *arguments)
        own_server.stop()

    monkeypatch.setattr(projection, "apply", apply)
    store.append(parts[4])
    comes(lambda: store.behind != "")
    monkeypatch.setattr(projection, "apply", real)
    for part in parts[5:]:
        store.append(part)
    store.close()
    with pytest.raises(UserError, match="cannot reach"):
        RunStore.open(run_dir)
    own_server.start()
    RunStore.open(run_dir).close()
    assert rows(run_dir, url) == expected


def test_a_frozen_server_holds_nobody_up_and_has_each_record_once(
    tmp_path: Path, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When all statements of a transaction have run, with more records than wait in memory; and
    again at the run's end, which leaves a transaction to a server that nobody listens to."""
    monkeypatch.setattr("storage.run_store.BEHIND_AFTER_S", 0.2)
    monkeypatch.setattr("storage.run_store.MAX_SILENCE_S", 0.3)
    url = own_server.new_database()
    parts, run_dir = small_run(), tmp_path / "run"
    expected = rows(write_run(tmp_path / "other" / "run"))
    store = RunStore.create(run_dir, "run", run_config(storage={"database": url}))
    real, wanted, frozen = projection.apply, threading.Event(), threading.Event()

    def apply(connection: Connection, run: int, records: Any) -> None:
        real(connection, run, records)
        if wanted.is_set():
            wanted.clear()
            own_server.freeze()
            frozen.set()

    monkeypatch.setattr(projection, "apply", apply)
    for part in parts[:3]:
        store.append(part)
    settled(store)
    wanted.set()
    store.append(parts[3])
    assert frozen.wait(20)
    monkeypatch.setattr("storage.run_store.PROJECTED_RECORDS", 10)
    began = time.monotonic()
    for part in parts[4:-2]:
        store.append(part)
    assert time.monotonic() - began < 2.0
    comes(lambda: " late" in store.behind)
    assert store.behind_s > 0.2
    own_server.thaw()
    settled(store)
    frozen.clear()
    wanted.set()
    store.append(parts[-2])
    assert frozen.wait(20)
    store.append(parts[-1])
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < 5.0
    with pytest.raises(UserError, match="cannot reach"):
        open_reader(run_dir, f"{url}?connect_timeout=2")
    own_server.thaw()
    RunStore.open(run_dir).close()
    assert rows(run_dir, url) == expected


def test_a_server_that_took_over_with_fewer_records_gets_the_others_again(
    tmp_path: Path, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby lacks the last commits, and its address is that of the one that is gone: a new
    connection is all that the writer sees."""
    monkeypatch.setattr("storage.run_store.CATCH_UP_S", 0.0)
    url = own_server.new_database()
    name = url.rpartition("/")[2]
    parts, run_dir = small_run(), tmp_path / "run"
    store = RunStore.create(run_dir, "run", run_config(storage={"database": url}))
    with psycopg.connect(own_server.url + "postgres", autocommit=True) as server:
        end = f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
        for part in parts[:2]:
            store.append(part)
        settled(store)
        server.execute(end)
        server.execute(f"create database standby template {name}")
        store.append(parts[2])
        settled(store)
        server.execute(f"drop database {name} with (force)")
        server.execute(f"alter database standby rename to {name}")
        for part in parts[3:]:
            store.append(part)
            settled(store)
    store.close()
    assert rows(run_dir, url) == rows(write_run(tmp_path / "other" / "run"))


def test_a_session_that_the_server_ends_for_its_idleness_ends_no_run(
    tmp_path: Path, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it may do when both were frozen in the middle of a transaction."""
    monkeypatch.setattr("storage.run_store.CATCH_UP_S", 0.0)
    url = own_server.new_database()
    run_dir = tmp_path / "run"
    real, slow = projection.apply, [True]

    def apply(connection: Connection, run: int, records: Any) -> None:
        if slow and slow.pop():
            connection.exec_driver_sql("set idle_in_transaction_session_timeout = 50")
            time.sleep(0.3)
        real(connection, run, records)

    monkeypatch.setattr(projection, "apply", apply)
    store = RunStore.create(run_dir, "run", run_config(storage={"database": url}))
    for part in small_run():
        store.append(part)
    settled(store)
    store.close()
    assert (slow, rows(run_dir, url)) == ([], rows(write_run(tmp_path / "other" / "run")))


@pytest.mark.parametrize(
    "fault", ["stop", *(pytest.param(fault, marks=pytest.mark.slow) for fault in FREEZES)]
)
async def test_a_run_goes_on_without_its_server(
    tmp_path: Path, own_server: Server, fault: str
) -> None:
    config = whole_run_config(
        stop={"updates": 10**6},
        evaluation={"before": False, "after": False},
        storage={
            "database": own_server.new_database(),
            "commit_interval_ms": 30,
            "token_diagnostics": False,
        },
    )
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    address = coordinator.start()
    learner = ScriptedLearner(address, "learner-0").writes(coordinator.run_dir)
    peers = [
        ScriptedGenerator(address, "generator-0", capacity=8),
        ScriptedReward(address, "reward-0"),
        learner,
    ]
    tasks = [asyncio.create_task(peer.run()) for peer in peers]
    try:
        await until(lambda: learner.update >= 5)
        await asyncio.to_thread(own_server.stop if fault == "stop" else own_server.freeze)
        begun = learner.update
        await until(lambda: said(coordinator.run_dir)["updates"] >= begun + 20)
        await until(lambda: said(coordinator.run_dir)["sql"])
        line = await asyncio.to_thread(any_line, coordinator.run_dir)
        assert (line.status, line.updates >= begun + 20) == ("training", True)
        assert line.sql
        if fault != "freeze to the end":
            await asyncio.to_thread(own_server.start if fault == "stop" else own_server.thaw)
            await until(lambda: said(coordinator.run_dir)["sql"] is None, 120)
            await until(lambda: any_line(coordinator.run_dir).sql == "")
        begun = learner.update
        await until(lambda: learner.update >= begun + 20)
        assert coordinator.process is not None
        coordinator.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
        assert coordinator.wait() == 0
        if fault == "freeze to the end":
            line = await asyncio.to_thread(any_line, coordinator.run_dir)
            assert (line.status, line.updates >= 45) == ("stopped", True)
            own_server.thaw()
            assert repair(coordinator.run_dir).why is None
        await until(lambda: any_line(coordinator.run_dir).sql == "")
        assert any_line(coordinator.run_dir).status == "stopped"
    finally:
        for task in tasks:
            task.cancel()
        coordinator.end()
    records = records_of(coordinator.run_dir)
    told = [r.text for r in records if isinstance(r, Incident) and r.kind == "database_behind"]
    assert told
    assert "does not follow the journal for now" in told[0] or told[0].endswith("over 5 s late")
    if fault != "freeze to the end":
        assert any(text.startswith("SQL has caught up") for text in told[1:])
    assert len([r for r in records if isinstance(r, UpdateCommitted)]) >= 45
    report = audit_run(coordinator.run_dir)
    assert [f for f in report.findings if f.kind != "checkpoint"] == []
    assert report.looked_at["applied"] >= 45


def test_a_server_that_stops_beneath_a_reader_is_a_line(tmp_path: Path, own_server: Server) -> None:
    """In the middle of an export, or between two queries of a page."""
    url = own_server.new_database()
    run_dir = write_run(tmp_path / "run", run_config(storage={"database": url}))
    reader, query = open_run(run_dir), select(Run.run_id)

    def read_while_it_stops() -> None:
        with reader.moment() as now:
            assert now.value(query) == "run"
            own_server.stop()
            now.value(query)

    with pytest.raises(DatabaseAwayError, match=f"cannot read {url}: "):
        read_while_it_stops()
    with pytest.raises(DatabaseAwayError, match=f"cannot read {url}: "):
        reader.value(query)
    own_server.start()
    assert reader.value(query) == "run"


def test_a_repair_cuts_nothing_while_the_server_is_away(tmp_path: Path, own_server: Server) -> None:
    """Else it would end with that error, and nobody would be told what it had cut."""
    config = run_config(storage={"database": own_server.new_database()})
    run_dir = write_whole(tmp_path / "run", run_by_hand(), config)
    (path,) = segment_paths(run_dir / "journal")
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    own_server.stop()
    with pytest.raises(UserError, match="cannot reach"):
        repair(run_dir)
    assert [path.name for path in run_dir.glob("journal*")] == ["journal"]
    assert path.read_bytes() == damaged
    own_server.start()
    assert repair(run_dir).damaged == "journal.damaged-1"
