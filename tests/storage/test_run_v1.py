"""A run of the first format, kept for ever, opens: every figure is what the code that made it said.

`tests/fixtures/run_v1/README.md` tells how the run was made. A change of a format that breaks these
tests breaks the runs that users have: it needs a way to read the old one, not other figures here.
"""

import json
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from coordinator.state import State
from headrace.run_folder import read_config
from learner.checkpoint import mismatch, newest
from storage.queries import (
    dropped_windows,
    export,
    list_runs,
    recount_ledger,
    run_summary,
    trajectory_detail,
    trajectory_page,
)
from storage.run_store import RunStore
from tests.integration.audit import assert_trained_once, records_of
from tests.integration.runs import headrace

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run_v1"
KEPT = FIXTURE / "exports"
EXPECTED: dict[str, Any] = json.loads((FIXTURE / "expected.json").read_text())
RUN_ID: str = EXPECTED["summary"]["run_id"]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The run, copied to a folder that it has never been in."""
    return copied(tmp_path / "elsewhere")


def copied(root: Path) -> Path:
    """A copy of the run under another root."""
    return shutil.copytree(FIXTURE / RUN_ID, root / RUN_ID)


def table_rows(run_dir: Path) -> dict[str, int]:
    """How many rows each table holds."""
    base = sqlite3.connect(f"file:{run_dir / 'headrace.sqlite'}?mode=ro", uri=True)
    with closing(base):
        return {
            name: base.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in EXPECTED["tables"]
        }


def trajectory_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The page of all trajectories, some columns of it."""
    page = trajectory_page(run_dir, descending=False, limit=1000)
    assert page.total == len(page.rows)
    columns = ["trajectory_id", "purpose", "status", "length", "reward", "prompt", "answer"]
    rows: list[dict[str, Any]] = json.loads(page.rows[columns].to_json(orient="records"))
    return rows


def dropped_tokens(run_dir: Path) -> dict[str, dict[str, int]]:
    """Dropped windows and their tokens by reason."""
    frame = dropped_windows(run_dir)
    by_reason = frame.groupby("reason")["tokens"]
    return {
        "windows": {str(k): int(v) for k, v in by_reason.count().items()},
        "tokens": {str(k): int(v) for k, v in by_reason.sum().items()},
    }


def replayed(run_dir: Path) -> State:
    """The coordinator's state after every record; its ledger balances after each of them."""
    state = State(read_config(run_dir))
    for record in records_of(run_dir):
        state.apply(record)
        assert state.ledger.balance() == 0
    return state


def assert_holds(got: Any, kept: Any) -> None:
    """All that was said is said again; there may be more keys by now."""
    if isinstance(kept, dict):
        for key, value in kept.items():
            assert key in got
            assert_holds(got[key], value)
    elif isinstance(kept, list):
        assert len(got) == len(kept)
        for one, other in zip(got, kept, strict=True):
            assert_holds(one, other)
    elif isinstance(kept, float):
        assert got == pytest.approx(kept, rel=1e-12)
    else:
        assert got == kept


def test_the_run_holds_what_can_happen_to_one() -> None:
    kinds = EXPECTED["journal"]
    assert kinds["LineageBegan"] == 2
    assert kinds["BatchReturned"] == kinds["Incident"] == 1
    counts = EXPECTED["summary"]["tokens"]
    assert counts["abandoned"] > 0
    assert set(counts["dropped"]) >= {"boundary_mask", "discarded_at_end", "stale", "value_warmup"}
    statuses = Counter(row["status"] for row in EXPECTED["trajectories"])
    assert set(statuses) == {"finished", "truncated", "aborted"}
    assert {row["reward"] for row in EXPECTED["trajectories"]} == {0.0, 1.0, None}
    rows = pq.read_table(KEPT / "trajectories.parquet").to_pylist()
    assert any(len(set(row["versions"])) > 1 for row in rows)
    assert any({0, 1, 2} <= set(row["window_index"]) for row in rows)
    assert any(len(set(row["trained_at_update"])) > 2 for row in rows)
    size = sum(path.stat().st_size for path in FIXTURE.rglob("*") if path.is_file())
    assert size < 2**20


def test_list_and_summary(run_dir: Path) -> None:
    (line,) = list_runs(run_dir.parent)
    assert (line.run_id, line.run_dir, line.status) == (RUN_ID, run_dir, "finished")
    assert line.updates == EXPECTED["summary"]["updates"]
    assert line.accuracy_after == EXPECTED["summary"]["eval"]["after"]
    assert_holds(json.loads(json.dumps(run_summary(run_dir))), EXPECTED["summary"])


def test_trajectories_and_tables(run_dir: Path) -> None:
    assert trajectory_rows(run_dir) == EXPECTED["trajectories"]
    assert table_rows(run_dir) == EXPECTED["tables"]
    assert dropped_tokens(run_dir) == EXPECTED["dropped"]


def test_token_table(run_dir: Path) -> None:
    """Of every trajectory, what one page shows is what the export of all of them said."""
    kept = pq.read_table(KEPT / "trajectories.parquet").to_pylist()
    for row in kept:
        detail = trajectory_detail(run_dir, row["trajectory_id"])
        assert detail.text == row["response"]
        assert detail.prompt_ids.tolist() == row["prompt_ids"]
        for name, values in detail.tokens._asdict().items():
            assert _plain(values.tolist()) == _plain(row[name])


def _plain(values: list[Any]) -> list[str]:
    """NaN equals itself as text."""
    return [repr(value) for value in values]


@pytest.mark.parametrize("kind", ["trajectories", "tokens"])
def test_exports(run_dir: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / f"{kind}.parquet"
    summary = export(run_dir, kind, None, out)
    kept = pq.read_table(KEPT / f"{kind}.parquet")
    again = pq.read_table(out).select(kept.schema.names)
    assert summary.rows == kept.num_rows == EXPECTED["exports"][kind]["rows"]
    for name in kept.schema.names:
        assert _plain(again[name].to_pylist()) == _plain(kept[name].to_pylist()), name


def test_export_as_jsonl(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "rewarded.jsonl"
    export(run_dir, "trajectories", None, out, where="reward > 0")
    again, kept = (
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in (out, KEPT / "rewarded.jsonl")
    )
    assert len(kept) == EXPECTED["exports"]["rewarded"]["rows"]
    assert [{key: row[key] for key in old} for row, old in zip(again, kept, strict=True)] == kept


def test_journal_and_ledger(run_dir: Path) -> None:
    records = records_of(run_dir)
    assert Counter(type(record).__name__ for record in records) == EXPECTED["journal"]
    assert_holds(recount_ledger(run_dir), EXPECTED["recount"])
    assert_trained_once(run_dir)


def test_replay_rebuilds_the_state(run_dir: Path) -> None:
    state = replayed(run_dir)
    assert state.ledger.as_metrics() == EXPECTED["ledger"]
    assert (state.update, state.lineage) == (
        EXPECTED["summary"]["updates"],
        EXPECTED["summary"]["lineage"],
    )
    for name in ("generated", "trained_policy", "trained_value", "abandoned"):
        assert EXPECTED["ledger"][f"ledger/{name}"] == EXPECTED["summary"]["tokens"][name]


def test_sql_made_anew_from_the_journal_holds_the_same(run_dir: Path) -> None:
    (run_dir / "headrace.sqlite").unlink()
    RunStore.open(run_dir).close()
    assert table_rows(run_dir) == EXPECTED["tables"]
    assert trajectory_rows(run_dir) == EXPECTED["trajectories"]
    assert_holds(json.loads(json.dumps(run_summary(run_dir))), EXPECTED["summary"])


def test_the_checkpoint_is_whole(run_dir: Path) -> None:
    found = newest(run_dir / "checkpoints")
    assert found is not None
    assert found.name == f"step_{EXPECTED['summary']['updates']}"
    assert mismatch(found) is None


@pytest.mark.slow
def test_a_copy_goes_on(tmp_path: Path) -> None:
    """Two more updates from the kept checkpoint, journal and database."""
    run_dir = copied(tmp_path)
    wanted = EXPECTED["summary"]["updates"] + 2
    command = ["train", "--resume", RUN_ID, "--root", str(tmp_path), "--plain"]
    done = headrace(*command, f"stop.updates={wanted}")
    assert done.returncode == 0, done.stdout + done.stderr
    shown = run_summary(run_dir)
    assert (shown["status"], shown["updates"]) == ("finished", wanted)
    assert shown["lineage"] == EXPECTED["summary"]["lineage"] + 1
    assert shown["tokens"]["trained_policy"] > EXPECTED["summary"]["tokens"]["trained_policy"]
    assert shown["tokens"]["abandoned"] == EXPECTED["summary"]["tokens"]["abandoned"]
    assert_trained_once(run_dir)
    rows = {row["trajectory_id"]: row for row in trajectory_rows(run_dir)}
    assert len(rows) > len(EXPECTED["trajectories"])
    assert all(rows[row["trajectory_id"]] == row for row in EXPECTED["trajectories"])
