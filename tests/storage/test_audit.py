"""An audit finds nothing in a sound run, and every breach of a run's account under its name."""

import fcntl
import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from headrace.errors import UserError
from headrace.protocol.records.record_types import (
    RECORD_FORMAT,
    AuditArrived,
    BatchReturned,
    BatchTaken,
    ChunkArrived,
    GroupIssued,
    LeaseIssued,
    LineageBegan,
    MaskedRun,
    ProcessChanged,
    Record,
    RewardArrived,
    RunPhase,
    TrajectoryEnded,
    UpdateCommitted,
    VersionIssued,
    VersionLoaded,
    VersionPublished,
    WindowsClosed,
    WindowsDropped,
    WindowsReady,
    WindowsRecalled,
)
from headrace.protocol.token_spans import EnvironmentStep, Piece, Reward, Span, Streams
from headrace.run_files.run_folder import CHECKPOINT_FORMAT, described_files, manifest_text
from headrace_cli.cli import main
from storage import projection
from storage.audit import AuditReport, audit_run, repair
from storage.audit.findings import Findings, Kind
from storage.audit.journal_facts import JournalFacts
from storage.audit.reading import JournalRecord, survey
from storage.audit.recount import check_tokens
from storage.audit.sequences import SequenceChecks
from storage.audit.updates import UpdateChecks
from storage.database.engine import SQLITE_NAME
from storage.journal.record_batches import SegmentWalk
from storage.journal.segments import SegmentWriter
from storage.journal.store import SCHEMA, encode
from storage.run_store import RunStore
from tests.storage.lives import (
    Life,
    run_by_hand,
    write_checkpoint,
    write_journal,
    write_whole,
)
from tests.storage.samples import chunk, closed, group, run_config, taken
from tests.storage.test_run_store import settled

BY_HAND = {
    "generated": 20,
    "trained_policy": 18,
    "ready": 0,
    "in_flight": 0,
    "dropped": {"boundary_mask": 2},
    "trained_value": 12,
    "value_waiting": 0,
    "value_dropped": 0,
    "abandoned": 4,
    "evaluation": 4,
    "inserted": 0,
    "discarded_at_hold": 3,
    "lost": 0,
}


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run by hand, whole; not to be changed."""
    return write_whole(tmp_path_factory.mktemp("whole") / "run", run_by_hand())


@pytest.fixture
def run_dir(whole_run: Path, tmp_path: Path) -> Path:
    """A copy of the run by hand."""
    return shutil.copytree(whole_run, tmp_path / "run")


def kinds(report: AuditReport) -> set[str]:
    return {finding.kind for finding in report.findings}


# -- sound runs ------------------------------------------------------------------------------------


def test_a_sound_run(run_dir: Path) -> None:
    report = audit_run(run_dir)
    assert report.findings == []
    assert report.is_clean
    assert report.counts == BY_HAND
    assert report.looked_at == {
        "records": len(run_by_hand()), "trajectories": 3, "windows": 3, "token_tables": 2,
        "checkpoints": 1, "applied": 0, "diagnostics": 3,
    }  # fmt: skip


@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 2**32),
    unit=st.sampled_from(["window", "trajectory", "group"]),
    size=st.integers(1, 3),
)
def test_any_sound_run(
    tmp_path_factory: pytest.TempPathFactory, seed: int, unit: str, size: int
) -> None:
    """Kills, rollbacks, inserted tokens and all: nothing is found, and the recount is what the
    coordinator's account says."""
    config = run_config(schedule={"unit": unit, "num_generations": size})
    life = Life(config, seed)
    life.live(200)
    run_dir = write_whole(tmp_path_factory.mktemp("life") / "run", life.records, config)
    report = audit_run(run_dir)
    assert report.findings == []
    assert report.balanced
    ledger = life.account.ledger
    said = ledger.as_metrics()
    for name, tokens in report.counts.items():
        if name == "dropped":
            assert tokens == {reason: n for reason, n in sorted(ledger.dropped.items()) if n}
        else:
            assert tokens == said[f"ledger/{name}"], name


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    """SQL is behind, the last batch is half written, a lock is held: nothing is wrong with that."""
    records = run_by_hand()
    store = RunStore.create(tmp_path / "run", "run", run_config())
    store.append(records[:30])
    store.close()
    write_checkpoint(tmp_path / "run", 1)
    before = (tmp_path / "run" / SQLITE_NAME).read_bytes()
    store = RunStore.open(tmp_path / "run")
    store.append(records[30:])
    store.close()
    (tmp_path / "run" / SQLITE_NAME).write_bytes(before)
    newest = sorted((tmp_path / "run" / "journal").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:-8] + b"\xff\xff\xff\xff half")
    with (tmp_path / "run" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        report = audit_run(tmp_path / "run")
    assert report.findings == []
    assert report.counts == BY_HAND


@pytest.mark.postgresql
def test_a_run_on_a_server_that_goes_on(
    tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that come while the journal is read first are no matter of the audit."""
    records, run_dir = run_by_hand(), tmp_path / "run"
    store = RunStore.create(run_dir, "run", run_config(storage={"database": postgresql_url}))
    store.append(records[:30])
    settled(store)
    write_checkpoint(run_dir, 1)

    def survey_and_write(*arguments: Any, **options: Any) -> Any:
        found = survey(*arguments, **options)
        store.append(records[30:])
        settled(store)
        return found

    monkeypatch.setattr("storage.audit.run_audit.survey", survey_and_write)
    report = audit_run(run_dir)
    store.close()
    assert report.findings == []
    assert report.looked_at["records"] == 30


# -- breaches --------------------------------------------------------------------------------------

Records = list[Record]
Change = Callable[[Records], Any]


def at(records: Records, kind: type[Record], number: int = 0) -> int:
    """Where the record of a kind is, by its number among them."""
    return [place for place, record in enumerate(records) if isinstance(record, kind)][number]


def change(kind: type[Record], number: int = 0, **values: Any) -> Change:
    """Change fields of one record."""

    def apply(records: Records) -> None:
        place = at(records, kind, number)
        records[place] = msgspec.structs.replace(records[place], **values)

    return apply


def without(kind: type[Record], number: int = 0) -> Change:
    """Leave one record out."""
    return lambda records: records.pop(at(records, kind, number))


def again(kind: type[Record], number: int = 0) -> Change:
    """Write one record twice."""

    def apply(records: Records) -> None:
        place = at(records, kind, number)
        records.insert(place, records[place])

    return apply


def metric(name: str, value: float, number: int = 0) -> Change:
    """Change a figure of one commit."""

    def apply(records: Records) -> None:
        place = at(records, UpdateCommitted, number)
        record = records[place]
        assert isinstance(record, UpdateCommitted)
        metrics = {**record.metrics, name: value}
        records[place] = msgspec.structs.replace(record, metrics=metrics)

    return apply


def train_again(records: Records) -> None:
    """The last batch once more, with what it already trained."""
    batch, commit = (records[at(records, kind, -1)] for kind in (BatchTaken, UpdateCommitted))
    records += [msgspec.structs.replace(record, update=3) for record in (batch, commit)]


def outcome_first(records: Records) -> None:
    """The critic trains on trajectory 10 with update 1, its last window is trained in update 2."""
    change(BatchTaken, 0, value_trajectories=[10])(records)
    change(UpdateCommitted, 0, value_trajectories=[10])(records)
    del records[at(records, BatchTaken, 1) :]
    batch = BatchTaken(
        at=20.0, update=2, lineage=0, version=1, windows=[taken(10, 1)], value_trajectories=[]
    )
    records.append(batch)


def audit(key: int) -> AuditArrived:
    return AuditArrived(at=30.0, trajectory_id=key, source="truth", status="ok", reward=1.0)


BREACHES: list[tuple[str, str, Change]] = [
    ("a chunk is missing", "tokens", without(ChunkArrived, 1)),
    ("a chunk came twice", "tokens", again(ChunkArrived, 1)),
    ("a chunk of another lease", "tokens", change(ChunkArrived, 2, lease_id=77)),
    ("a chunk after the end", "tokens", lambda r: r.append(chunk(40, 4, 5, index=1))),
    ("a gap in the chunks", "tokens", change(ChunkArrived, 1, start=9)),
    ("an end at another length", "tokens", change(TrajectoryEnded, 0, length=11)),
    ("two ends", "tokens", again(TrajectoryEnded)),
    ("two scores", "tokens", again(RewardArrived)),
    ("an audit of what has no reward", "tokens", lambda r: r.append(audit(20))),
    ("an audit of an evaluation", "tokens", lambda r: r.append(audit(40))),
    ("two audits", "tokens", lambda r: r.extend([audit(10), audit(10)])),
    ("spans too short", "tokens", change(ChunkArrived, 3, spans=[Span(0, 0, 3)])),
    ("a version nobody published", "versions", change(ChunkArrived, 3, spans=[Span(9, 0, 4)])),
    ("a version given out twice", "versions", again(VersionIssued, 1)),
    ("a version of another update", "versions", change(VersionPublished, 1, update=0)),
    ("a version published twice", "versions", again(VersionPublished, 2)),
    ("a window of other tokens", "window", change(WindowsClosed, 2, windows=[
        closed(20, 0, 0, 8, tokens=7)])),
    ("a window of other versions", "window", change(WindowsClosed, 2, windows=[
        closed(20, 0, 0, 8, max_version=1)])),
    ("a window final too early", "window", change(WindowsClosed, 2, windows=[
        closed(20, 0, 0, 8, final=True)])),
    ("a window closed twice", "window", again(WindowsClosed)),
    ("a window never closed", "window", without(WindowsClosed, 2)),
    ("a window ready twice", "window", again(WindowsReady)),
    ("a window taken before it was ready", "window", without(WindowsReady, 2)),
    ("an update left out", "batch", change(BatchTaken, 1, update=3)),
    ("a batch with other windows", "batch", change(UpdateCommitted, 0, window_ids=[
        taken(10, 0).window_id])),
    ("a commit of what was not out", "batch", without(BatchTaken, 1)),
    ("a rollback leaves windows out", "rollback", change(LineageBegan, window_ids=[])),
    ("a rollback gives too much back", "rollback", change(LineageBegan, window_ids=[
        taken(10, 1).window_id, taken(10, 0).window_id])),
    ("a rollback to what was forgotten", "rollback", change(LineageBegan, update=0)),
    ("a lineage left out", "rollback", change(LineageBegan, lineage=2)),
    ("trained again", "trained_twice", train_again),
    ("a value without a score", "value", without(RewardArrived)),
    ("a value trajectory twice", "value", train_again),
    ("the critic knew", "critic_saw_outcome", outcome_first),
    ("a ledger that does not balance", "ledger", metric("ledger/ready", 5.0)),
    ("values that do not balance", "ledger", metric("ledger/value_waiting", 5.0)),
    ("reasons that do not add up", "ledger", metric("ledger/dropped/stale", 5.0)),
    ("a ledger of another run", "ledger", metric("ledger/evaluation", 5.0, number=2)),
    ("a ledger that counts backwards", "ledger", metric("ledger/abandoned", 9.0, number=1)),
    ("a checkpoint of another update", "checkpoint", lambda r: r.append(
        msgspec.structs.replace(next(c for c in r if type(c).__name__ == "CheckpointWritten")))),
    ("no diagnostics", "diagnostics", change(UpdateCommitted, 0, diagnostics=[])),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "breach"), [b[1:] for b in BREACHES], ids=[b[0] for b in BREACHES]
)
def test_breaches_of_the_journal(run_dir: Path, kind: str, breach: Change) -> None:
    records = run_by_hand()
    breach(records)
    write_journal(run_dir, records)
    report = audit_run(run_dir)
    assert kind in kinds(report)
    assert not report.is_clean


def test_the_checks_are_apart(run_dir: Path) -> None:
    """Breaches that touch one promise only are found under one name only."""
    for name in (
        "a chunk of another lease", "a version given out twice", "a window of other versions",
        "values that do not balance", "no diagnostics",
    ):  # fmt: skip
        _, kind, breach = next(b for b in BREACHES if b[0] == name)
        records = run_by_hand()
        breach(records)
        write_journal(run_dir, records)
        found = kinds(audit_run(run_dir)) - {"sql", "mask"}  # SQL is of the sound run
        assert found == {kind}, name


# -- what each check says --------------------------------------------------------------------------


def told_of(records: Records) -> list[tuple[str, str]]:
    """Kinds and texts of what the checks of single records and of all tokens find."""
    facts, findings = JournalFacts(), Findings()
    checks = (SequenceChecks(facts, findings, has_value=True), UpdateChecks(facts, findings))
    for offset, record in enumerate(records):
        for each in checks:
            each.check_record(JournalRecord(offset, record))
    check_tokens(facts, findings, settled_before=len(records))
    return [(finding.kind, finding.text) for finding in findings.all()]


def masking(*runs: MaskedRun) -> Change:
    """Other masked runs in the first window of the first batch, [0, 8) of trajectory 10."""
    return change(BatchTaken, 0, windows=[taken(10, 0, *runs), taken(20, 0)])


def more(record: Record) -> Change:
    """One record more at the end."""
    return lambda records: records.append(record)


def cut_before(kind: type[Record], number: int) -> Change:
    """The journal ends before one record."""

    def apply(records: Records) -> None:
        del records[at(records, kind, number) :]

    return apply


FIRST, LAST = "window 655360 (trajectory 10, no. 0)", "window 655361 (trajectory 10, no. 1)"
OTHER = "window 1310720 (trajectory 20, no. 0)"
SHORT_PIECES = Streams(pieces=[Piece("policy", "assistant", 0, 0, 7)])
SAID: list[tuple[Change, str, str]] = [
    (again(GroupIssued), "tokens", "group 1 was issued before"),
    (again(GroupIssued), "tokens", "trajectory 10 was issued before"),
    (change(LeaseIssued, 1, lease_id=10), "tokens",
     "lease 10 of trajectory 20 does not follow lease 10"),
    (change(LeaseIssued, 0, start=3), "tokens", "lease 10 of trajectory 10 starts at 3, not 0"),
    (more(LeaseIssued(lease_id=50, trajectory_id=40, generator="g", start=4, version=0)), "tokens",
     "lease 50 of trajectory 40 was given after its end"),
    (change(ChunkArrived, 2, streams=SHORT_PIECES), "tokens",
     "chunk 0 of trajectory 20: its pieces do not cover its tokens"),
    (change(ChunkArrived, 2, streams=Streams(step=EnvironmentStep(turn=1, digest=""))), "tokens",
     "chunk 0 of trajectory 20: no environment was asked for turn 1"),
    (more(RewardArrived(trajectory_id=20, status="ok", reward=1.0)), "tokens",
     "trajectory 20 was scored and is running"),
    (change(RewardArrived, 0, rewards=[Reward(1.0, 12)]), "tokens",
     "trajectory 10 earned something outside its tokens"),
    (change(VersionPublished, 1, version=5), "versions",
     "version 5 was published and never given out"),
    (more(VersionLoaded(generator="g", version=7, gap_s=0.0, load_s=0.0)), "versions",
     "g loaded version 7, never published"),
    (change(BatchTaken, 0, version=7), "versions", "batch of version 7, never published"),
    (change(WindowsClosed, 1, windows=[closed(10, 1, 9, 12, final=True)]), "window",
     f"{LAST} is [9, 12) where 8 is the next of 12 positions"),
    (change(WindowsClosed, 1, windows=[closed(10, 1, 6, 12, final=True)]), "window",
     "2 tokens are in two windows"),
    (more(WindowsClosed(windows=[closed(40, 0, 0, 4, final=True)])), "window",
     "window 2621440 (trajectory 40, no. 0) is of an evaluation"),
    (more(WindowsRecalled(window_ids=[20 << 16])), "window",
     f"{OTHER} was recalled and the answer does not end there"),
    (cut_before(WindowsClosed, 1), "window", "4 tokens of the ended answer are in no window"),
    (masking(MaskedRun("stale", 5, 7, 2), MaskedRun("boundary_mask", 6, 8, 2)), "window",
     f"{FIRST}: its masked runs do not lie in it apart"),
    (masking(MaskedRun("boundary_mask", 7, 9, 2)), "window",
     f"{FIRST}: its masked runs do not lie in it apart"),
    (masking(MaskedRun("boundary_mask", 6, 8, 3)), "window",
     f"{FIRST}: boundary_mask [6, 8) of 3 has 2 tokens"),
    (change(BatchTaken, 0, windows=[taken(10, 0), taken(20, 0), taken(20, 0)]), "batch",
     "a window is in the batch twice"),
    (again(BatchTaken), "batch", "update 1 was still out"),
    (change(UpdateCommitted, 1, value_trajectories=[]), "batch",
     "update 2 of lineage 0 came back with other value trajectories"),
    (more(BatchReturned(update=2, lineage=1, reason="", window_ids=[], value_trajectories=[])),
     "batch", "update 2 of lineage 1 came back and was not out"),
    (change(LineageBegan, value_trajectories=[]), "rollback",
     "lineage 1 leaves out value trajectories 10"),
    (change(LineageBegan, update=3, window_ids=[], value_trajectories=[]), "rollback",
     "lineage 1 goes on from update 3; those from 1 to 2 can be gone back to"),
    (more(WindowsDropped(window_ids=[], reason="filtered", value_trajectories=[10])), "value",
     "trajectory 10 was dropped and is trained"),
    (train_again, "trained_twice", "4 tokens were trained more than once"),
    (train_again, "trained_twice", "the value model trained on it in 2, 3"),
]  # fmt: skip


@pytest.mark.parametrize(("breach", "kind", "text"), SAID, ids=[text for _, _, text in SAID])
def test_each_check_says_what_it_found(breach: Change, kind: str, text: str) -> None:
    """In a run whose records are sound but for this; other checks may find more of it."""
    records = run_by_hand()
    assert told_of(records) == []
    breach(records)
    assert (kind, text) in told_of(records)


@pytest.mark.parametrize(
    "statement",
    [
        "update windows set state = 'ready' where window_id = 655360",
        "update trajectories set length = 11 where trajectory_id = 10",
        "delete from windows where window_id = 655361",
        "insert into value_uses select run, 99, state, lineage, \"update\", \"offset\" "
        "from value_uses",
        "update updates set abandoned = 0",
        "update weight_versions set \"update\" = 0 where version = 1",
        "delete from checkpoints",
        "update token_losses set tokens = 4",
        "update runs set status = 'training'",
        "delete from groups where group_id = 4",
        "update projection set next_offset = 1000",
        "update metrics set value = value + 1 where name = 'ledger/generated'",
        "update groups set position = position + 1",
    ],
)  # fmt: skip
def test_breaches_of_sql(run_dir: Path, statement: str) -> None:
    edit(run_dir, statement)
    assert "sql" in kinds(audit_run(run_dir))


def edit(run_dir: Path, statement: str) -> None:
    with closing(sqlite3.connect(run_dir / SQLITE_NAME)) as base:
        base.execute(statement)
        base.commit()


@pytest.mark.postgresql
def test_breaches_of_postgresql(tmp_path: Path, postgresql_url: str) -> None:
    """Its rows are compared in the order of their bytes, whatever the database's own is, and beside
    those of other runs."""
    with psycopg.connect(postgresql_url, autocommit=True) as base:
        base.execute(
            "create database words template template0 locale_provider icu icu_locale 'en-US'"
        )
    url = postgresql_url.rsplit("/", 1)[0] + "/words"
    config = run_config(storage={"database": url})
    life = Life(config, 3)
    life.live(200)
    other = write_whole(tmp_path / "other", life.records, config)
    processes = [
        ProcessChanged(at=50.0, name=name, role="generator", pid=1, host="h", state="up")
        for name in ("a-1", "B-1", "_b", "a_1", "ab")
    ]
    run_dir = write_whole(tmp_path / "run", [*run_by_hand(), *processes], config)
    assert audit_run(run_dir).findings == []
    for statement in (
        "update metrics set value = value + 1 where name = 'ledger/generated'",
        "delete from processes where name = '_b'",
        "update groups set position = position + 1 where group_id = 4",
    ):
        with psycopg.connect(url) as base:
            of_run = "(select id from runs where run_id = 'run')"
            assert base.execute(f"{statement} and run = {of_run}".encode()).rowcount > 0
        assert kinds(audit_run(run_dir)) == {"sql"}, statement
        assert repair(run_dir).made_anew
        assert audit_run(run_dir).findings == []
    assert audit_run(other).findings == []


def test_a_mask_that_shows_something_else(run_dir: Path) -> None:
    edit(run_dir, "update windows set masked = '[]', masked_tokens = 0 where window_id = 655360")
    assert kinds(audit_run(run_dir)) == {"sql", "mask"}


def test_weights_that_nobody_wrote_down(run_dir: Path) -> None:
    """The learner keeps an account of its own, and it lacks an update that the journal has."""
    batch = BatchTaken(
        at=9.0, update=9, lineage=0, version=0, windows=[], value_trajectories=[], batch_id=7
    )
    commit = UpdateCommitted(
        at=9.0, update=9, lineage=0, version=0, train_time_s=1.0, trained_tokens=0,
        window_ids=[], value_trajectories=[], metrics={}, diagnostics=[], batch_id=7,
    )  # fmt: skip
    with_applied = run_dir / "applied"
    store = RunStore.open(run_dir)
    store.append([batch, commit])
    store.close()
    assert "weights" not in kinds(audit_run(run_dir))
    with_applied.mkdir()
    told = [f.text for f in audit_run(run_dir).findings if f.kind == "weights"]
    assert told == [
        "update 9 of lineage 0 (batch 7) is committed, and no learner wrote that it is in the "
        "weights"
    ]


def test_no_sql(run_dir: Path) -> None:
    (run_dir / SQLITE_NAME).unlink()
    report = audit_run(run_dir)
    assert kinds(report) == {"sql"}
    assert report.counts == BY_HAND


def test_checkpoints(run_dir: Path) -> None:
    folder = run_dir / "checkpoints" / "step_1"
    (folder / "weights").write_bytes(b"12345")
    assert kinds(audit_run(run_dir)) == {"checkpoint"}
    (folder / "weights").unlink()
    assert "missing" in audit_run(run_dir).findings[0].text
    manifest = {"format": CHECKPOINT_FORMAT, "update": 3, "files": {}}
    (folder / "manifest.json").write_text(manifest_text(manifest))
    assert "update 3" in audit_run(run_dir).findings[0].text
    (folder / "manifest.json").write_text("{")
    assert "cannot be read" in audit_run(run_dir).findings[0].text
    shutil.rmtree(folder)
    assert [finding.where for finding in audit_run(run_dir).findings] == ["step_1", "latest"]


def test_a_flipped_bit_of_a_checkpoint(run_dir: Path) -> None:
    """Of the same length, so that only its sha256 tells."""
    file = next(p for p in (run_dir / "checkpoints/step_1").rglob("*") if p.name == "weights")
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)
    (finding,) = audit_run(run_dir).findings
    assert (finding.kind, finding.where) == ("checkpoint", "step_1")
    assert "weights is damaged" in finding.text


def test_a_checkpoint_that_is_removed_for_a_later_one(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is looked at, and before; the journal need not know of the later one yet."""

    def described(folder: Path, names: Any) -> dict[str, dict[str, Any]]:
        if folder.name == "step_1":
            shutil.rmtree(folder)
        return described_files(folder, names)

    write_checkpoint(run_dir, 2, lineage=1)
    monkeypatch.setattr("storage.audit.files.described_files", described)
    for _ in range(2):
        assert audit_run(run_dir).findings == []
        assert not (run_dir / "checkpoints" / "step_1").exists()


def test_no_journal_segment(run_dir: Path) -> None:
    for path in (run_dir / "journal").iterdir():
        path.unlink()
    assert "journal" in kinds(audit_run(run_dir))


@pytest.mark.parametrize("wrong", ["short", "nan"])
def test_diagnostics(run_dir: Path, wrong: str) -> None:
    records = run_by_hand()
    commit = records[at(records, UpdateCommitted)]
    assert isinstance(commit, UpdateCommitted)
    first, *rest = commit.diagnostics
    columns = {
        name: values[:-1] if wrong == "short" else np.full_like(values, np.nan)
        for name, values in first.columns.items()
    }
    bad = msgspec.structs.replace(first, columns=columns)
    change(UpdateCommitted, 0, diagnostics=[bad, *rest])(records)
    write_journal(run_dir, records)
    found = audit_run(run_dir).findings
    assert [finding.kind for finding in found if finding.kind != "sql"] == ["diagnostics"]


def test_diagnostics_that_a_report_had_no_room_for(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner leaves them out of a message that would be too large, and says so."""
    records = run_by_hand()
    change(UpdateCommitted, 0, diagnostics=[])(records)
    write_journal(run_dir, records)
    assert "diagnostics" in kinds(audit_run(run_dir))
    monkeypatch.setattr("storage.audit.files.WINDOW_BYTES", 64 << 20)
    assert "diagnostics" not in kinds(audit_run(run_dir))


def test_a_flipped_bit(run_dir: Path) -> None:
    """Found with its file and place, although Arrow reads on without a word."""
    (path,) = (run_dir / "journal").iterdir()
    data = bytearray(path.read_bytes())
    data[-400] ^= 1
    path.write_bytes(data)
    report = audit_run(run_dir)
    assert "damaged" in kinds(report)
    (finding,) = [each for each in report.findings if each.kind == "damaged"]
    assert finding.where.startswith(f"{path.name} at byte ")
    assert report.looked_at["records"] < len(run_by_hand())


def test_a_torn_end(run_dir: Path) -> None:
    (path,) = (run_dir / "journal").iterdir()
    path.write_bytes(path.read_bytes()[:-100])
    assert {"torn", "sql"} <= kinds(audit_run(run_dir))


def test_a_segment_that_is_gone(run_dir: Path) -> None:
    store = RunStore.open(run_dir)
    store.append([RunPhase(at=60.0, phase="finished")])
    store.close()
    first, _ = sorted((run_dir / "journal").iterdir())
    first.unlink()
    assert "journal" in kinds(audit_run(run_dir))


def test_the_critic_knew(run_dir: Path) -> None:
    """Both are told: the value model was given the answer too early, and its window came after."""
    records = run_by_hand()
    outcome_first(records)
    write_journal(run_dir, records)
    found = [f.text for f in audit_run(run_dir).findings if f.kind == "critic_saw_outcome"]
    assert len(found) == 2
    assert "while its last window was ready" in found[0]
    assert "update 1 had shown the critic how the answer ends" in found[1]


def test_every_kind_is_provoked() -> None:
    provoked = {kind for _, kind, _ in BREACHES}
    # Those of lines are in test_lines.py, those of weights in
    # tests/headrace/run_files/test_update_log.py, of images in tests/integration/test_images.py.
    elsewhere = {
        "sql", "mask", "damaged", "torn", "journal", "unusable", "lines", "weights", "image",
    }  # fmt: skip
    assert provoked | elsewhere == set(get_args(Kind))


# -- records that cannot be used, and the repair ---------------------------------------------------


def poisons() -> list[Record]:
    return [
        ProcessChanged(at=1.0, name="g", role="generator", pid=2**63, host="h", state="up"),
        msgspec.structs.replace(chunk(20, 8, 9, index=1), token_ids=np.array([-1], np.int32)),
        chunk(20, 8, 9, index=1, version=2**62 + 1),
        chunk(20, 12, 16, index=1),
        BatchReturned(
            at=1.0, update=9, lineage=9, reason="", window_ids=[12345], value_trajectories=[]
        ),
        RewardArrived(at=1.0, trajectory_id=40, status="ok", reward=float("inf")),
    ]


@pytest.mark.parametrize("poison", poisons(), ids=lambda record: type(record).__name__)
def test_repair(run_dir: Path, poison: Record) -> None:
    """The journal ends before the poison, the run can be opened and goes on, and the damaged
    journal is there."""
    records = run_by_hand()
    sound = len(records)
    write_journal(run_dir, [*records, poison, *records[-1:]])
    assert not audit_run(run_dir).is_clean
    done = repair(run_dir)
    assert done.why is not None
    assert done.kept == sound
    assert done.lost == 3
    assert done.lost_kinds[type(poison).__name__] == 1
    assert (run_dir / str(done.damaged)).is_dir()
    report = audit_run(run_dir)
    assert report.findings == []
    assert report.counts == BY_HAND
    store = RunStore.open(run_dir)
    store.append([chunk(20, 8, 9, index=1)])
    assert sum(1 for _ in store.replay()) == sound + 1
    store.close()
    assert repair(run_dir).why is None


@pytest.mark.parametrize("poison", ["pid", "version", "token", "empty"])
def test_repair_of_what_a_coordinator_dies_of(run_dir: Path, poison: str) -> None:
    """At every resume."""
    schema = SCHEMA.with_metadata({"run_id": "run", "format": str(RECORD_FORMAT)})
    writer = SegmentWriter(run_dir / "journal", schema, segment_bytes=2**20)
    before, number = writer.rows, 10**6
    born = msgspec.structs.replace(group(number), trajectory_ids=[number * 10])
    every: dict[str, list[Record]] = {
        "pid": poisons()[:1],
        "version": [VersionLoaded(at=1.0, generator="g", version=2**63, gap_s=0.0, load_s=0.0)],
        "token": [born, msgspec.structs.replace(
            chunk(number * 10, 0, 1), token_ids=np.array([-1], np.int32))],
        "empty": [born, chunk(number * 10, 0, 0, finish="stop")],
    }  # fmt: skip
    records = every[poison]
    writer.append(encode(records, before))
    writer.close()
    assert "unusable" in kinds(audit_run(run_dir))
    done = repair(run_dir)
    assert (done.kept, done.lost) == (before + len(records) - 1, 1)
    report = audit_run(run_dir)
    assert report.findings == []
    assert report.counts == BY_HAND


def test_repair_cuts_at_a_damaged_batch(run_dir: Path) -> None:
    (path,) = (run_dir / "journal").iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    done = repair(run_dir)
    assert done.damaged == "journal.damaged-1"
    assert 0 < done.kept < len(run_by_hand())
    assert "damaged" not in kinds(audit_run(run_dir))


def test_repair_counts_the_damaged_batch_too(run_dir: Path) -> None:
    """By kind where it still says them; what nobody can tell any more is counted as unknown."""
    (path,) = (run_dir / "journal").iterdir()
    whole, frames = path.read_bytes(), list(SegmentWalk(path))
    records = run_by_hand()
    for frame in (frames[1], frames[-1]):
        after = records[7 * frames.index(frame) :]
        expected = Counter(type(record).__name__ for record in after)
        said = bytearray(whole)
        said[frame.end - 1] ^= 1  # of its body: the last column's padding
        path.write_bytes(said)
        done = repair(run_dir)
        assert (done.kept, done.lost) == (len(records) - len(after), len(after))
        assert done.lost_kinds == expected
        said = bytearray(whole)
        said[frame.position : frame.end] = bytes(frame.end - frame.position)
        path.write_bytes(said)
        done = repair(run_dir)
        behind = len(after) - frame.batch.num_rows
        if behind:
            assert done.lost_kinds.pop("unknown") == frame.batch.num_rows
        assert sum(done.lost_kinds.values()) == behind


def test_repair_without_a_journal(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run_dir / "journal")
    assert main(["audit", "run", "--root", str(run_dir.parent), "--repair"]) == 1
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "run: journal: holds no segment: there is nothing to count"
    assert second.startswith(f"kept 0 records, lost {len(run_by_hand())} (")


def test_repair_sets_checkpoints_of_lost_updates_aside(run_dir: Path) -> None:
    records = run_by_hand()
    place = at(records, BatchTaken, 1)
    write_journal(run_dir, [*records[:place], poisons()[0], *records[place:]])
    write_checkpoint(run_dir, 2, lineage=1)
    done = repair(run_dir)
    assert done.checkpoints == ["damaged-1-step_2"]
    assert (run_dir / "checkpoints" / "latest").read_text() == "step_1\n"
    assert audit_run(run_dir).findings == []


@pytest.mark.postgresql
def test_repair_on_a_server_leaves_nothing_of_what_is_lost(
    tmp_path: Path, postgresql_url: str
) -> None:
    """The run's own row does not go on with a lineage that the journal has lost."""
    records = run_by_hand()
    config = run_config(storage={"database": postgresql_url})
    run_dir = write_whole(tmp_path / "run", records, config)
    place = at(records, LineageBegan)
    write_journal(run_dir, [*records[:place], poisons()[0], *records[place:]])
    done = repair(run_dir)
    assert (done.kept, done.made_anew) == (place, True)
    assert audit_run(run_dir).findings == []


@pytest.mark.postgresql
def test_other_runs_begin_while_a_repair_makes_sql_anew(
    tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a long run takes hours, and what all runs share must not stay locked for so long."""
    config = run_config(storage={"database": postgresql_url})
    run_dir, other = write_whole(tmp_path / "run", run_by_hand(), config), tmp_path / "other"
    with psycopg.connect(postgresql_url) as base:
        base.execute("update projection set next_offset = next_offset - 1")
    real = projection.apply

    def apply(connection: Any, *arguments: Any) -> None:
        if connection.dialect.name == "postgresql" and not other.exists():
            write_whole(other, run_by_hand(), config)
        real(connection, *arguments)

    monkeypatch.setattr("storage.run_store.STATEMENT_S", 1)
    monkeypatch.setattr(projection, "apply", apply)
    assert repair(run_dir).made_anew
    for folder in (run_dir, other):
        assert audit_run(folder).findings == []


def test_a_repair_killed_before_its_last_rename_is_brought_to_its_end(run_dir: Path) -> None:
    """The part that it kept stands whole under another name."""
    records = run_by_hand()
    write_journal(run_dir, [*records, poisons()[0]])
    assert repair(run_dir).kept == len(records)
    for name in ("journal", "diagnostics"):
        (run_dir / name).rename(run_dir / f"{name}.repaired")
    done = repair(run_dir)
    assert (done.why, done.kept) == (None, len(records))
    assert audit_run(run_dir).findings == []


def test_repair_cuts_nothing_for_want_of_room_to_try_it(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own tables are in the folder for temporary files, which may be small."""

    def full(*_: Any) -> None:
        raise OperationalError("", {}, sqlite3.OperationalError("database or disk is full"))

    before = {path: path.read_bytes() for path in (run_dir / "journal").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr("storage.projection.apply", full)
        with pytest.raises(UserError, match=r"nothing was changed; .*: database or disk is full"):
            repair(run_dir)
    assert {path: path.read_bytes() for path in (run_dir / "journal").iterdir()} == before
    assert repair(run_dir).why is None


def test_repair_leaves_a_sound_or_living_run_alone(run_dir: Path) -> None:
    before = {path: path.read_bytes() for path in (run_dir / "journal").iterdir()}
    assert repair(run_dir).why is None
    assert {path: path.read_bytes() for path in (run_dir / "journal").iterdir()} == before
    with (run_dir / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="still going on"):
            repair(run_dir)


def test_repair_makes_damaged_sql_anew_and_passes_damaged_checkpoints_over(run_dir: Path) -> None:
    """The journal is whole: nothing is cut, and it says from where the run really can go on."""
    edit(run_dir, "update metrics set value = value + 1 where name = 'ledger/generated'")
    assert repair(run_dir).goes_on == "step_1"
    assert audit_run(run_dir).findings == []
    (run_dir / SQLITE_NAME).write_bytes((run_dir / SQLITE_NAME).read_bytes()[:9000])
    (run_dir / "checkpoints/step_1/weights").write_bytes(b"1235")
    done = repair(run_dir)
    assert (done.why, done.made_anew) == (None, True)
    assert done.goes_on != "step_1"
    assert kinds(audit_run(run_dir)) == {"checkpoint"}


# -- the command -----------------------------------------------------------------------------------


def test_command(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["run", "--root", str(run_dir.parent)]
    assert main(["audit", *where]) == 0
    assert "balanced, findings: 0" in capsys.readouterr().out
    assert main(["audit", *where, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["balanced"] is True
    assert shown["counts"] == BY_HAND
    assert (shown["run"], shown["format"], shown["findings"]) == ("run", 2, [])
    write_journal(run_dir, [*run_by_hand(), poisons()[0]])
    assert main(["audit", *where, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert {finding["kind"] for finding in found} == {"unusable"}
    assert main(["audit", *where, "--repair"]) == 0
    assert "the damaged journal is journal.damaged-1" in capsys.readouterr().out
    assert main(["audit", "nothing", "--root", str(run_dir.parent)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
