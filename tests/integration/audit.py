"""A run's account asked whether it is right, once a whole run is there."""

from pathlib import Path
from typing import Any

from storage.audit import audit_run
from storage.run_store import RunStore


def records_of(run_dir: Path) -> list[Any]:
    """The journal."""
    store = RunStore.open(run_dir)
    try:
        return list(store.replay())
    finally:
        store.close()


def assert_trained_once(run_dir: Path) -> None:
    """The audit finds nothing: no token has two policy updates and no trajectory two value updates
    on the surviving lineage, every ledger balances, SQL, checkpoints and diagnostics agree; and
    something was trained."""
    report = audit_run(run_dir)
    assert report.findings == []
    assert report.balanced
    assert report.counts["trained_policy"] > 0
    assert report.counts["trained_value"] > 0
