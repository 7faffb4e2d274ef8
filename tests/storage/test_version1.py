"""Runs of record format 1: what they said then, they say today."""

import os
import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from alembic import command
from alembic.config import Config

import storage
from headrace.errors import UserError
from headrace.protocol import records as today
from headrace.protocol.records import MaskedRun, Record, TrajectoryEnded, TrajectoryStatus
from headrace.protocol.streams import Span
from sequence.moves import moves
from storage import queries
from storage.database import SQLITE_NAME, open_file
from storage.journal import SCHEMA, encode, read_journal, record_format
from storage.run_store import RunStore
from storage.segments import SegmentWriter, segment_paths
from storage.version1 import BatchTaken, Settings, TokensDropped, Translator
from tests.storage.samples import chunk, group, run_config, same, small_run, write_run
from tests.storage.test_run_store import dump, without_diagnostics
from tests.storage.version1_samples import old_run, window, write_old_run

WINDOWS = Settings(8, "window")


def told(records: list[Record], settings: Settings = WINDOWS) -> list[Record]:
    """Old records in today's words."""
    translator = Translator(settings)
    return [new for old in records for new in translator.translate(old)]


def states(records: list[Record]) -> dict[int, str]:
    """Where each window is at the end."""
    return {move.window_id: move.state for record in records for move in moves(record)}


def test_the_sample_run_is_told_as_it_would_be_today() -> None:
    flat = [record for batch in old_run() for record in batch]
    expected = [without_diagnostics(record) for batch in small_run() for record in batch]
    found = told(flat)
    assert [type(r).__name__ for r in found] == [type(r).__name__ for r in expected]
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))


def test_a_window_that_turns_out_to_be_the_last_is_recalled() -> None:
    found = told(
        [
            group(1),
            chunk(10, 0, 8),
            TrajectoryEnded(at=1.0, trajectory_id=10, status="finished", length=8),
            today.RewardArrived(at=2.0, trajectory_id=10, status="ok", reward=1.0),
        ]
    )
    names = [type(record).__name__ for record in found]
    assert names[2:4] == ["WindowsClosed", "WindowsReady"]
    assert names[5] == "WindowsRecalled"
    assert names[7:] == ["WindowsReady"]


@pytest.mark.parametrize("unit", ["trajectory", "group"])
def test_larger_units_wait_for_rewards(unit: Any) -> None:
    def ended(key: int) -> list[Record]:
        return [
            chunk(key, 0, 12, finish="stop"),
            TrajectoryEnded(at=1.0, trajectory_id=key, status="finished", length=12),
        ]

    def scored(key: int, status: Any = "ok") -> Record:
        return today.RewardArrived(at=2.0, trajectory_id=key, status=status, reward=1.0)

    first = [group(1, size=2), *ended(10), *ended(11), scored(10)]
    after_one = states(told(first, Settings(8, unit)))
    expected = "ready" if unit == "trajectory" else "closed"
    assert after_one[10 << 16] == after_one[10 << 16 | 1] == expected
    assert after_one[11 << 16] == "closed"
    after_both = states(told([*first, scored(11, "timeout")], Settings(8, unit)))
    assert after_both[10 << 16 | 1] == "ready"
    assert after_both[11 << 16] == after_both[11 << 16 | 1] == "dropped"


def test_what_never_ends_well_is_dropped_with_its_open_part() -> None:
    failed = TrajectoryEnded(at=1.0, trajectory_id=10, status="failed", length=11)
    found = told([group(1), chunk(10, 0, 11), failed])
    assert states(found) == {10 << 16: "ready", 10 << 16 | 1: "dropped"}
    drop = TokensDropped(
        at=2.0, trajectory_id=10, start=0, end=11, reason="discarded_at_end", tokens=11
    )
    found = told([group(1), chunk(10, 0, 11), drop])
    assert states(found) == {10 << 16: "dropped", 10 << 16 | 1: "dropped"}
    assert [(r.reason, r.window_ids) for r in found if isinstance(r, today.WindowsDropped)] == [
        ("discarded_at_end", [10 << 16, 10 << 16 | 1])
    ]


def test_counts_become_the_tokens_that_were_meant() -> None:
    """Versions 0 0 1 1 1 2 2 2; token 1 is not finite. A staleness bound that takes version 0 out
    counts one more token; a boundary of two takes the last two."""
    arrived = chunk(10, 0, 8)
    logprobs = arrived.logprobs.copy()
    logprobs[1] = np.nan
    spans = [Span(0, 0, 2), Span(1, 2, 5), Span(2, 5, 8)]
    arrived = type(arrived)(
        **{
            **{n: getattr(arrived, n) for n in arrived.__struct_fields__},
            "logprobs": logprobs,
            "spans": spans,
        }
    )
    left_out = window(10, 0, 0, 8, non_finite=1, stale=1, boundary_mask=2)
    batch = BatchTaken(
        at=3.0, update=1, lineage=0, version=2, windows=[left_out], value_trajectories=[]
    )
    (taken,) = [r for r in told([group(1), arrived, batch]) if isinstance(r, today.BatchTaken)]
    assert taken.windows[0].masked == [
        MaskedRun("non_finite", 1, 2, 1),
        MaskedRun("stale", 0, 1, 1),
        MaskedRun("boundary_mask", 6, 8, 2),
    ]


def test_reading_from_any_offset_gives_the_same_records(tmp_path: Path) -> None:
    journal = write_old_run(tmp_path / "run") / "journal"
    whole = [pair for batch in read_journal(journal) for pair in batch]
    assert len(segment_paths(journal)) > 1
    for first in (1, 17, 30, whole[-1][0]):
        part = [pair for batch in read_journal(journal, first) for pair in batch]
        rest = [pair for pair in whole if pair[0] >= first]
        assert [o for o, _ in part] == [o for o, _ in rest]
        assert all(same(a, b) for (_, a), (_, b) in zip(part, rest, strict=True))


def test_a_folder_without_today_s_rows_gets_them(tmp_path: Path) -> None:
    """All reads of an old run are those of the same run today, but for the returns, which nobody
    wrote down then."""
    run_dir, new = write_old_run(tmp_path / "old-1"), write_run(tmp_path / "new" / "old-1")
    make_old_database(run_dir)
    assert queries.run_summary(run_dir) == queries.run_summary(new)
    assert queries.dropped_windows(run_dir).equals(queries.dropped_windows(new))
    a, b = (queries.trajectory_detail(folder, 10) for folder in (run_dir, new))
    for left, right in zip(a.tokens[:-1], b.tokens[:-1], strict=True):
        np.testing.assert_array_equal(left, right)
    for name in a.tokens.figures:
        np.testing.assert_array_equal(a.tokens.figures[name], b.tokens.figures[name])
    ours = ["state", "tokens", "masked", "update", "lineage", "version"]
    assert a.windows[ours].equals(b.windows[ours])


def make_old_database(run_dir: Path) -> None:
    """A database of the first version that says nothing true."""
    path = run_dir / SQLITE_NAME
    engine = open_file(path)
    config = Config()
    migrations = Path(storage.__file__).parent / "migrations"
    config.set_main_option("script_location", str(migrations))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0001")
    engine.dispose()
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(
            "insert into runs (run_id, name, config, status, detail, lineage)"
            " values ('old-1', 'sample', '{}', 'finished', '', 0)"
        )
        file.execute("insert into projection (run, next_offset) values (1, 99)")


def test_the_old_file_is_kept(tmp_path: Path) -> None:
    run_dir = write_old_run(tmp_path / "old-1")
    make_old_database(run_dir)
    assert queries.run_summary(run_dir)["updates"] == 2
    kept = run_dir / "headrace-version-0001.sqlite"
    with closing(sqlite3.connect(kept)) as connection:
        assert connection.execute("select version_num from alembic_version").fetchall() == [
            ("0001",)
        ]
        assert connection.execute("select next_offset from projection").fetchall() == [(99,)]
    before = {path: path.stat().st_mtime_ns for path in (run_dir / "journal").iterdir()}
    RunStore.open(run_dir).close()
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_folder_that_cannot_be_written_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = write_old_run(tmp_path / "old-1")
    make_old_database(run_dir)
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}
    real_access = os.access

    def access(path: Any, mode: int) -> bool:
        return not Path(path).is_relative_to(run_dir) and real_access(path, mode)

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert queries.run_summary(run_dir)["updates"] == 2
    assert before == {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}
    assert len(list((tmp_path / "cache").rglob(SQLITE_NAME))) == 1


def test_an_old_run_goes_on_in_new_segments(tmp_path: Path) -> None:
    run_dir = write_old_run(tmp_path / "old-1")
    make_old_database(run_dir)
    store = RunStore.open(run_dir)
    length = len(list(store.replay()))
    store.append([today.RunPhase(at=50.0, phase="training")])
    store.close()
    formats = [record_format(path) for path in segment_paths(run_dir / "journal")]
    assert formats == [1] * (len(formats) - 1) + [2]
    again = RunStore.open(run_dir)
    assert len(list(again.replay())) == length + 1
    again.close()
    before = dump(run_dir)
    for path in run_dir.glob(f"{SQLITE_NAME}*"):
        path.unlink()
    RunStore.open(run_dir).close()
    again_made = dump(run_dir)
    assert before.pop("runs") != again_made.pop("runs")  # the old file's had no configuration
    assert again_made == before


@pytest.mark.postgresql
def test_rows_on_a_server_are_left_to_a_writer(tmp_path: Path, postgresql_url: str) -> None:
    """A reader takes a file of its own; whoever goes on with the run projects it anew."""
    config = run_config(storage={"database": postgresql_url})
    run_dir = write_old_run(tmp_path / "old-1", config)
    RunStore.open(run_dir).close()
    expected = dump(run_dir, postgresql_url)
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute("update projection set format = 1")
        connection.execute("delete from windows")
    assert queries.dropped_tokens(run_dir)["filtered"] == 8
    assert (run_dir / SQLITE_NAME).exists()
    RunStore.open(run_dir).close()
    assert dump(run_dir, postgresql_url) == expected


def test_a_run_of_a_later_version_is_refused(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    RunStore.create(run_dir, "run", run_config()).close()
    schema = SCHEMA.with_metadata({"run_id": "run", "format": "3"})
    writer = SegmentWriter(run_dir / "journal", schema, segment_bytes=1 << 20)
    writer.append(encode([group(1)], 0))
    writer.close()
    with pytest.raises(UserError, match="record format 3"):
        list(read_journal(run_dir / "journal"))
    with pytest.raises(UserError, match="record format 3"):
        RunStore.open(run_dir)
    with closing(sqlite3.connect(run_dir / SQLITE_NAME)) as connection, connection:
        connection.execute("update alembic_version set version_num = '0099'")
    with pytest.raises(UserError, match="version 0099"):
        queries.run_summary(run_dir)


def test_every_token_is_told_once_whatever_happened() -> None:
    """Random lives: windows cover each trajectory once and without gaps."""
    for seed in range(40):
        chance = random.Random(seed)
        records: list[Record] = [group(1, size=3)]
        ends = {10: 0, 11: 0, 12: 0}
        for _ in range(30):
            key = chance.choice(list(ends) or [10])
            if key not in ends:
                break
            end = ends[key] + chance.randint(1, 6)
            finish = chance.choice([None, None, None, "stop"])
            records.append(chunk(key, ends[key], end, finish=finish))
            ends[key] = end
            if finish:
                status: TrajectoryStatus = chance.choice(["finished", "failed"])
                records.append(
                    TrajectoryEnded(at=1.0, trajectory_id=key, status=status, length=ends.pop(key))
                )
        settings = Settings(8, chance.choice(["window", "trajectory", "group"]))
        found = told(records, settings)
        closed = [w for r in found if isinstance(r, today.WindowsClosed) for w in r.windows]
        places: dict[int, list[tuple[int, int]]] = {}
        for item in closed:
            places.setdefault(item.trajectory_id, []).append((item.start, item.end))
        for spans in places.values():
            assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
        assert max(Counter(w.window_id for w in closed).values(), default=1) == 1
