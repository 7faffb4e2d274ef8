"""A PostgreSQL server that goes away for a while: the run goes on, and SQL has everything once the
server is back."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from headrace.errors import UserError
from headrace.protocol.records.record_types import Incident, UpdateCommitted
from storage import projection
from storage.audit import audit_run
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
from tests.storage.postgresql import Server
from tests.storage.samples import run_config, small_run, write_run
from tests.storage.test_run_store import dump

pytestmark = pytest.mark.postgresql


def rows(run_dir: Path, url: str | None = None) -> dict[str, list[Any]]:
    """All rows but the run's own, which names its database."""
    found = dump(run_dir, url)
    found.pop("runs")
    return found


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
    own_server.stop()
    for part in parts[1:3]:
        store.append(part)
        assert "does not follow the journal" in store.behind
    own_server.start()
    store.append(parts[3])
    assert store.behind == ""
    # All statements of a transaction have run, and it cannot be committed.
    real = projection.apply

    def apply(connection: Connection, *arguments: Any) -> None:
        real(connection, *arguments)
        own_server.stop()

    monkeypatch.setattr(projection, "apply", apply)
    store.append(parts[4])
    assert store.behind
    monkeypatch.setattr(projection, "apply", real)
    for part in parts[5:]:
        store.append(part)
    store.close()
    with pytest.raises(UserError, match="cannot reach"):
        RunStore.open(run_dir)
    own_server.start()
    RunStore.open(run_dir).close()
    assert rows(run_dir, url) == expected


async def test_a_run_goes_on_without_its_server(tmp_path: Path, own_server: Server) -> None:
    config = whole_run_config(
        stop={"updates": 10**6},
        evaluation={"before": False, "after": False},
        storage={
            "database": own_server.new_database(),
            "commit_interval_ms": 5,
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
        await asyncio.to_thread(own_server.stop)
        begun = learner.update
        await until(lambda: learner.update >= begun + 20)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(own_server.start)
        begun = learner.update
        await until(lambda: learner.update >= begun + 20)
        assert coordinator.process is not None
        coordinator.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
        assert coordinator.wait() == 0
    finally:
        for task in tasks:
            task.cancel()
        coordinator.end()
    records = records_of(coordinator.run_dir)
    told = [r.text for r in records if isinstance(r, Incident) and r.kind == "database_behind"]
    assert told
    assert "does not follow the journal for now" in told[0]
    assert len([r for r in records if isinstance(r, UpdateCommitted)]) >= 45
    report = audit_run(coordinator.run_dir)
    assert [f for f in report.findings if f.kind != "checkpoint"] == []
    assert report.looked_at["applied"] >= 45
