"""A run's ledger asked whether anything was trained that must not be. Nothing here is shared with
the coordinator: it reads the journal's records in their order."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from headrace.protocol.records import (
    BatchReturned,
    BatchTaken,
    ChunkArrived,
    LineageBegan,
    MetricsSampled,
    Record,
    RewardArrived,
    TrajectoryEnded,
    UpdateCommitted,
)
from storage.audit import recount_ledger
from storage.run_store import RunStore


def records_of(run_dir: Path) -> list[Any]:
    """The journal."""
    store = RunStore.open(run_dir)
    try:
        return list(store.replay())
    finally:
        store.close()


def assert_trained_once(run_dir: Path) -> None:
    """No token has two policy updates and no trajectory two value updates on the surviving lineage;
    value trajectories had ended, whole and scored, when they were taken; every count of the
    coordinator's ledger balances, and its last one is what the journal holds."""
    records = records_of(run_dir)
    batches = _surviving_batches(records)
    policy = [
        (window.trajectory_id, position)
        for batch in batches
        for window in batch.windows
        if window.trained
        for position in range(window.start, window.end)
    ]
    assert policy
    assert len(policy) == len(set(policy))
    values = [key for batch in batches for key in batch.value_trajectories]
    assert values
    assert len(values) == len(set(values))
    _assert_balanced(records)
    counted = recount_ledger(run_dir)
    last = [r for r in records if isinstance(r, UpdateCommitted | MetricsSampled)][-1].metrics
    trained = sum(window.trained for batch in batches for window in batch.windows)
    lengths = {r.trajectory_id: r.length for r in records if isinstance(r, TrajectoryEnded)}
    assert counted["trained_policy"] == last["ledger/trained_policy"] == trained
    assert counted["trained_value"] == last["ledger/trained_value"]
    assert counted["trained_value"] == sum(lengths[key] for key in values)
    assert counted["generated"] == last["ledger/generated"]


def _surviving_batches(records: list[Record]) -> list[BatchTaken]:
    """Batches in the weights at the end. A batch may hold finished trajectories only: checked when
    it is taken, so those of abandoned lineages too."""
    lengths: dict[int, int] = defaultdict(int)
    finished: set[int] = set()
    scored: set[int] = set()
    taken: dict[int, BatchTaken] = {}
    committed: dict[int, BatchTaken] = {}
    for record in records:
        match record:
            case ChunkArrived(trajectory_id=key):
                assert key not in finished, f"trajectory {key} grew after its end"
                assert record.start == lengths[key]
                lengths[key] += record.token_ids.size
            case TrajectoryEnded(trajectory_id=key):
                assert record.length == lengths[key]
                if record.status in ("finished", "truncated"):
                    finished.add(key)
            case RewardArrived(status="ok", trajectory_id=key):
                scored.add(key)
            case BatchTaken():
                assert set(record.value_trajectories) <= finished & scored
                taken[record.update] = record
            case BatchReturned():
                taken.pop(record.update, None)
            case UpdateCommitted():
                batch = taken.pop(record.update)
                if record.skipped is None:
                    committed[record.update] = batch
            case LineageBegan():
                taken.clear()
                committed = {u: b for u, b in committed.items() if u <= record.update}
    return list(committed.values())


def _assert_balanced(records: list[Record]) -> None:
    parts = ("trained_policy", "ready", "in_flight", "dropped")
    for record in records:
        if isinstance(record, UpdateCommitted | MetricsSampled):
            metrics = record.metrics
            assert metrics["ledger/generated"] == sum(metrics[f"ledger/{part}"] for part in parts)
