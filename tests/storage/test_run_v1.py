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

from headrace.protocol import records as today
from headrace.run_folder import read_config
from learner.checkpoint import mismatch, newest
from sequence.account import Account
from storage.queries import (
    dropped_tokens,
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
NO_LONGER = {"returns", "return"}
"""Figures that were made up when they were read: the run has none of them."""


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
            if name != "drops"
        }


def trajectory_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The page of all trajectories, some columns of it."""
    page = trajectory_page(run_dir, descending=False, limit=1000)
    assert page.total == len(page.rows)
    columns = ["trajectory_id", "purpose", "status", "length", "reward", "prompt", "answer"]
    rows: list[dict[str, Any]] = json.loads(page.rows[columns].to_json(orient="records"))
    return rows


def replayed(run_dir: Path) -> Account:
    """The account after every record; its ledger balances after each of them."""
    account = Account(has_value=read_config(run_dir).algorithm.value is not None)
    for record in records_of(run_dir):
        account.apply(record)
        assert account.ledger.balance() == 0
    return account


def assert_tokens(name: str, got: list[Any], kept: list[Any]) -> None:
    """One column of tokens. Windows that no update trained had no number then."""
    if name == "window_index":
        got = [new if old >= 0 else old for new, old in zip(got, kept, strict=True)]
    if name not in NO_LONGER:
        assert _plain(got) == _plain(kept), name


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


def as_then(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary in the words of then: what the run's end left unfinished was called failed, and a
    checkpoint that nobody evaluated had the accuracy of an earlier one."""
    row: dict[str, Any] = json.loads(json.dumps(summary))
    row["trajectories"]["failed"] += row["trajectories"].pop("unfinished")
    for mine, kept in zip(row["checkpoints"], EXPECTED["summary"]["checkpoints"], strict=True):
        if mine["accuracy"] is None:
            mine["accuracy"] = kept["accuracy"]
    return row


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
    assert_holds(as_then(run_summary(run_dir)), EXPECTED["summary"])


def test_trajectories_and_tables(run_dir: Path) -> None:
    assert trajectory_rows(run_dir) == EXPECTED["trajectories"]
    assert_tables(run_dir)


def assert_tables(run_dir: Path) -> None:
    """As many rows as then. There is a row for each window since, and none for tokens alone."""
    rows = table_rows(run_dir)
    found, kept = rows.pop("windows"), EXPECTED["tables"]
    arrays = [
        value
        for record in records_of(run_dir)
        if isinstance(record, today.UpdateCommitted)
        for values in record.metrics.values()
        if isinstance(values, list)
        for value in values
        if value is not None
    ]
    rows["metrics"] += len(arrays)  # each had a row of its own then
    assert rows == {name: count for name, count in kept.items() if name in rows}
    assert found > kept["windows"]


def test_dropped_tokens_are_those_of_the_ledger(run_dir: Path) -> None:
    """The page of then counted windows of aborted trajectories twice."""
    counts = EXPECTED["recount"]["dropped"]
    assert dropped_tokens(run_dir) == counts
    frame = dropped_windows(run_dir)
    assert frame.groupby("reason")["tokens"].sum().to_dict() == counts
    assert not frame.duplicated(["trajectory_id", "start"]).any()
    twice = EXPECTED["dropped"]["tokens"]
    assert {name: n for name, n in twice.items() if name != "reward_failed"} == counts


def test_token_table(run_dir: Path) -> None:
    """Of every trajectory, what one page shows is what the export of all of them said."""
    kept = pq.read_table(KEPT / "trajectories.parquet").to_pylist()
    for row in kept:
        detail = trajectory_detail(run_dir, row["trajectory_id"])
        assert detail.text == row["response"]
        assert detail.prompt_ids.tolist() == row["prompt_ids"]
        tokens = detail.tokens._asdict() | detail.tokens.figures
        for name, values in tokens.items():
            if name in row:
                assert_tokens(name, values.tolist(), row[name])


def _plain(values: list[Any]) -> list[str]:
    """NaN equals itself as text."""
    return [repr(value) for value in values]


@pytest.mark.parametrize("kind", ["trajectories", "tokens"])
def test_exports(run_dir: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / f"{kind}.parquet"
    summary = export(run_dir, kind, None, out)
    order = ["trajectory_id", *(["position"] if kind == "tokens" else [])]
    kept, again = (
        pq.read_table(path).sort_by([(name, "ascending") for name in order])
        for path in (KEPT / f"{kind}.parquet", out)
    )
    assert summary.rows == kept.num_rows == EXPECTED["exports"][kind]["rows"]
    for name in kept.schema.names:
        values = _nulled(kept[name].to_pylist())
        if name in summary.left_out:
            assert name in NO_LONGER or not any(_has_value(value) for value in values)
            continue
        pairs = zip(again[name].to_pylist(), values, strict=True)
        for new, old in pairs if kind == "trajectories" and name == "window_index" else ():
            assert_tokens(name, new, old)
        if kind == "tokens" or name != "window_index":
            assert_tokens(name, again[name].to_pylist(), values)


def _nulled(value: Any) -> Any:
    """What nobody knew was NaN then, and is null now."""
    if isinstance(value, list):
        return [_nulled(item) for item in value]
    return None if isinstance(value, float) and value != value else value


def _has_value(value: Any) -> bool:
    return any(_has_value(item) for item in value) if isinstance(value, list) else value is not None


def test_export_as_jsonl(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "rewarded.jsonl"
    export(run_dir, "trajectories", None, out, where="reward > 0")
    again, kept = (
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in (out, KEPT / "rewarded.jsonl")
    )
    assert len(kept) == EXPECTED["exports"]["rewarded"]["rows"]
    again.sort(key=lambda row: int(row["trajectory_id"]))
    kept.sort(key=lambda row: int(row["trajectory_id"]))
    for new, old in zip(again, kept, strict=True):
        for name in old:
            if name not in new:
                assert name in NO_LONGER or not _has_value(old[name])
            elif name == "window_index":
                assert_tokens(name, new[name], old[name])
            elif name not in NO_LONGER:
                assert new[name] == old[name]


def test_journal_and_ledger(run_dir: Path) -> None:
    records = records_of(run_dir)
    kinds = Counter(type(record).__name__ for record in records)
    kept = {kind: n for kind, n in EXPECTED["journal"].items() if kind != "TokensDropped"}
    assert {kind: n for kind, n in kinds.items() if kind in kept} == kept
    assert kinds["VersionIssued"] == kinds["VersionPublished"]
    assert_holds(recount_ledger(run_dir), EXPECTED["recount"])
    assert_trained_once(run_dir)


def test_replay_rebuilds_the_account(run_dir: Path) -> None:
    account = replayed(run_dir)
    assert_holds(account.ledger.as_metrics(), EXPECTED["ledger"])
    last = [r for r in records_of(run_dir) if isinstance(r, today.UpdateCommitted)][-1]
    assert (last.update, last.lineage) == (
        EXPECTED["summary"]["updates"],
        EXPECTED["summary"]["lineage"],
    )
    for name in ("generated", "trained_policy", "trained_value", "abandoned"):
        assert EXPECTED["ledger"][f"ledger/{name}"] == EXPECTED["summary"]["tokens"][name]


def test_sql_made_anew_from_the_journal_holds_the_same(run_dir: Path) -> None:
    (run_dir / "headrace.sqlite").unlink()
    RunStore.open(run_dir).close()
    assert_tables(run_dir)
    assert trajectory_rows(run_dir) == EXPECTED["trajectories"]
    assert_holds(as_then(run_summary(run_dir)), EXPECTED["summary"])


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
