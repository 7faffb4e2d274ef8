"""The journal gives back what was put in, whatever is torn from its end."""

import os
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import StorageBlockedError
from headrace.protocol.records.record_types import (
    ChunkArrived,
    Incident,
    MetricsSampled,
    Milestone,
    Record,
    Snapshot,
)
from headrace.protocol.token_spans import Span
from storage.journal.record_batches import DamagedError
from storage.journal.segments import segment_paths
from storage.journal.store import SNAPSHOT_GROWTH, Journal, decode, encode, read_journal, snapshots
from tests.storage.samples import chunk, same, small_run

numbers = st.floats(width=64)
texts = st.text(st.characters(codec="utf-8"))


@st.composite
def chunks(draw: Any) -> ChunkArrived:
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), max_size=12))
    start = draw(st.integers(0, 1000))
    logprobs = draw(st.lists(st.floats(width=32), min_size=len(tokens), max_size=len(tokens)))
    cuts = sorted({0, len(tokens), *draw(st.lists(st.integers(0, len(tokens)), max_size=3))})
    versions = draw(st.lists(st.integers(0, 2**40), min_size=len(cuts), max_size=len(cuts)))
    return ChunkArrived(
        at=draw(st.floats(0, 2e9)),
        trajectory_id=draw(st.integers(0, 2**60)),
        lease_id=draw(st.integers(0, 2**60)),
        chunk_index=draw(st.integers(0, 2**20)),
        generator=draw(texts),
        start=start,
        token_ids=np.array(tokens, np.int32),
        logprobs=np.array(logprobs, np.float32),
        spans=[
            Span(version, start + low, start + high)
            for version, low, high in zip(versions, cuts, cuts[1:], strict=False)
        ],
        finish=draw(st.sampled_from([None, "stop", "length", "window", "held", "failed"])),
    )


others = st.one_of(
    st.builds(
        MetricsSampled,
        at=numbers,
        update=st.integers(0, 2**62),
        metrics=st.dictionaries(texts, numbers),
    ),
    st.builds(Incident, at=numbers, level=st.just("info"), kind=texts, text=texts),
    st.sampled_from(
        [r for records in small_run() for r in records if not getattr(r, "diagnostics", [])]
    ),
)


def journal(folder: Path, *, segment_mib: float = 1.0) -> Journal:
    return Journal(folder, run_id="run", segment_mib=segment_mib)


def everything(folder: Path) -> list[tuple[int, Record]]:
    return [pair for batch in read_journal(folder) for pair in batch]


@settings(deadline=None)
@given(st.lists(st.one_of(chunks(), others), max_size=8))
def test_replay_gives_back_what_was_appended(records: list[Record]) -> None:
    replayed = list(decode(encode(records, first_offset=40))) if records else []
    assert [offset for offset, _ in replayed] == list(range(40, 40 + len(records)))
    assert all(same(a, b) for a, (_, b) in zip(records, replayed, strict=True))


def test_a_record_without_its_time_is_refused() -> None:
    batch = encode([Incident(at=7.0, level="info", kind="k", text="t")], first_offset=3)
    body = msgspec.msgpack.decode(batch.column("body")[0].as_py())
    del body["at"]
    place = batch.schema.get_field_index("body")
    bodies = pa.array([msgspec.msgpack.encode(body)], batch.schema.field(place).type)
    bare = batch.set_column(place, batch.schema.field(place), bodies)
    with pytest.raises(msgspec.ValidationError, match="record 3 lacks the `at`"):
        list(decode(bare))


def test_reading_from_an_offset_and_over_segments(tmp_path: Path) -> None:
    writer = journal(tmp_path, segment_mib=0.01)
    records = [chunk(n, 0, 200) for n in range(60)]
    for first in range(0, 60, 3):
        writer.append(records[first : first + 3])
    writer.close()
    assert len(segment_paths(tmp_path)) > 2
    for first in (0, 1, 29, 59, 60):
        found = [pair for batch in read_journal(tmp_path, first) for pair in batch]
        assert [offset for offset, _ in found] == list(range(first, 60))
        assert all(same(records[offset], record) for offset, record in found)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.lists(st.one_of(chunks(), others), max_size=5), max_size=4), st.integers(0, 9))
def test_reading_some_kinds_only_gives_their_records(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Record]], first: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    writer = journal(folder)
    for records in batches:
        writer.append(records)
    writer.close()
    only = (ChunkArrived, Incident)
    found = [pair for batch in read_journal(folder, first, only=only) for pair in batch]
    wanted = [(n, r) for n, r in everything(folder) if n >= first and isinstance(r, only)]
    assert [n for n, _ in found] == [n for n, _ in wanted]
    assert all(same(a, b) for (_, a), (_, b) in zip(found, wanted, strict=True))


def snapshot(size: int) -> Snapshot:
    return Snapshot(at=1.0, state=bytes(size), milestones=[Milestone(3, 1), Milestone(5, 2)])


def test_a_snapshot_is_wanted_where_a_segment_begins_and_found_there(tmp_path: Path) -> None:
    writer = journal(tmp_path, segment_mib=0.01)

    def is_wanted() -> bool:
        return writer.wants_snapshot

    assert not is_wanted()
    while not is_wanted():
        writer.append([chunk(1, 0, 200)])
    assert list(snapshots(tmp_path)) == []
    place = writer.next_offset
    writer.append([chunk(1, 0, 3), snapshot(100), chunk(1, 0, 3)])
    ((offset, found),) = snapshots(tmp_path)
    assert (offset, found) == (place + 1, snapshot(100))
    assert not is_wanted()
    writer.close()
    assert len(everything(tmp_path)) == place + 3


def test_a_large_snapshot_is_followed_by_much_before_the_next(tmp_path: Path) -> None:
    """So that snapshots are a small share of a journal; a new writer knows of the last one."""
    writer = journal(tmp_path, segment_mib=0.01)
    writer.append([snapshot(50_000)])
    written = 0
    while not writer.wants_snapshot:
        writer.append([chunk(1, 0, 200)])
        written += 1
        if written % 40 == 0:
            writer.close()
            writer = journal(tmp_path, segment_mib=0.01)
    bytes_of_a_chunk = encode([chunk(1, 0, 200)], 0).nbytes
    assert (
        0.5 * SNAPSHOT_GROWTH * 50_000 < written * bytes_of_a_chunk < 1.2 * SNAPSHOT_GROWTH * 50_000
    )
    writer.append([snapshot(10)])
    writer.close()
    assert [len(found.state) for _, found in snapshots(tmp_path)] == [10, 50_000]


def test_tail_torn_at_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a thousand journals, none to keep
    folder = tmp_path / "journal"
    writer = journal(folder)
    writer.append([chunk(1, 0, 3)])
    (path,) = segment_paths(folder)
    good = path.stat().st_size
    writer.append([chunk(1, 3, 6, index=1), Incident(at=1.0, level="info", kind="k", text="t")])
    whole = path.read_bytes()
    writer.close()
    for size in range(good, len(whole)):
        for found in segment_paths(folder):
            found.unlink()
        path.write_bytes(whole[:size])
        again = journal(folder)
        assert again.next_offset == 1, size
        again.append([chunk(2, 0, 4)])
        again.close()
        ids = [getattr(record, "trajectory_id", None) for _, record in everything(folder)]
        assert ids == [1, 2], size


def test_tail_of_zeros_or_damaged_bytes_is_cut(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    writer = journal(folder)
    writer.append([chunk(1, 0, 3)])
    (path,) = segment_paths(folder)
    good = path.stat().st_size
    writer.append([chunk(1, 3, 6, index=1)])
    whole = path.read_bytes()
    writer.close()
    damaged = bytearray(whole)
    damaged[-10] ^= 1
    half = whole[: (good + len(whole)) // 2]
    for tail in (whole[:good] + bytes(len(whole) - good), half + bytes(len(whole)), bytes(damaged)):
        for found in segment_paths(folder):
            found.unlink()
        path.write_bytes(tail)
        assert journal(folder).next_offset == 1
        assert len(everything(folder)) == 1


def test_segment_that_died_at_birth_is_forgotten(tmp_path: Path) -> None:
    writer = journal(tmp_path)
    writer.append([chunk(1, 0, 3)])
    writer.close()
    (tmp_path / "segment-000002.arrow").write_bytes(b"\xff\xff")
    again = journal(tmp_path)
    assert again.next_offset == 1
    again.append([chunk(1, 3, 5)])
    again.close()
    assert len(everything(tmp_path)) == 2


def test_damage_in_a_sealed_segment_is_not_passed_over(tmp_path: Path) -> None:
    writer = journal(tmp_path, segment_mib=0.0001)
    writer.append([chunk(1, 0, 3)])
    writer.append([chunk(1, 3, 6)])
    writer.close()
    first = segment_paths(tmp_path)[0]
    first.write_bytes(first.read_bytes()[:-40])
    with pytest.raises(DamagedError, match=r"segment-000001.arrow is damaged at byte .*--repair"):
        everything(tmp_path)


@pytest.mark.parametrize("at_begin", [True, False])
def test_full_disk_leaves_nothing_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_begin: bool
) -> None:
    writer = journal(tmp_path)
    if not at_begin:
        writer.append([chunk(1, 0, 3)])
    before = [path.stat().st_size for path in segment_paths(tmp_path)]
    real_write = os.write
    room = 100

    def write_until_full(descriptor: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(28, "No space left on device")
        written = real_write(descriptor, data[:room])
        room -= written
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_until_full)
        with pytest.raises(StorageBlockedError, match=r"room for .* bytes in"):
            writer.append([chunk(1, 3, 6)])
    assert [path.stat().st_size for path in segment_paths(tmp_path)] == before
    writer.append([chunk(1, 3, 6)])
    writer.close()
    assert [offset for offset, _ in everything(tmp_path)] == list(range(1 if at_begin else 2))


def test_an_append_returns_behind_the_fsync_of_all_its_bytes(
    tmp_path: Path, synced: dict[int, int]
) -> None:
    """And of the folder that names the file: what is acknowledged then survives a power cut."""
    writer = journal(tmp_path)
    synced.clear()
    for count in range(3):
        writer.append([chunk(1, count, count + 1)])
        (path,) = segment_paths(tmp_path)
        assert synced.get(path.stat().st_ino) == path.stat().st_size
        assert tmp_path.stat().st_ino in synced
    writer.close()


def test_reader_beside_a_writer_sees_whole_batches(tmp_path: Path) -> None:
    writer = journal(tmp_path)
    for count in range(5):
        assert len(everything(tmp_path)) == count
        writer.append([chunk(1, count, count + 1)])
    writer.close()


def test_other_programs_read_tokens(tmp_path: Path) -> None:
    writer = journal(tmp_path)
    writer.append([chunk(1, 0, 3), chunk(2, 0, 2)])
    writer.close()
    with pa.OSFile(str(segment_paths(tmp_path)[0])) as source:
        table = pa.ipc.open_stream(source).read_all()
    query = "select trajectory_id, unnest(token_ids) as token from chunks order by all"
    with duckdb.connect() as connection:
        connection.register("chunks", table)
        found = connection.execute(query).fetchall()
    assert found == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
