"""Bytes that are not those that were written never become records again; what a crash cut off is
told from them."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import UserError
from headrace.protocol.messages.control import JournalEnd
from headrace.protocol.records.record_types import BatchTaken, Incident, Record, UpdateCommitted
from headrace.run_files.run_folder import manifest_text, read_manifest
from storage.audit import audit_run, repair
from storage.database.engine import SQLITE_NAME
from storage.journal.diagnostics import DiagnosticsReader, DiagnosticsWriter
from storage.journal.record_batches import END_OF_STREAM, DamagedError, SegmentWalk
from storage.journal.segments import digest_at, segment_paths
from storage.journal.store import read_journal
from storage.run_store import RunStore
from tests.storage.journal.test_store import everything, journal
from tests.storage.lives import run_by_hand, write_checkpoint, write_whole
from tests.storage.samples import chunk, commit, run_config, same, taken


def incident(text: str) -> Incident:
    return Incident(at=1.0, level="info", kind="k", text=text)


def written(folder: Path, *batches: list[Record], segment_mib: float = 1.0) -> Path:
    """A journal that was closed in good order."""
    writer = journal(folder, segment_mib=segment_mib)
    for records in batches:
        writer.append(records)
    writer.close()
    return folder


def three_batches() -> list[list[Record]]:
    return [[chunk(1, 0, 3)], [chunk(1, 3, 6, index=1), incident("x")], [chunk(1, 6, 9, index=2)]]


def flip(path: Path, place: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def test_a_flipped_bit_of_a_sealed_segment_never_becomes_a_record(tmp_path: Path) -> None:
    """Every byte of it, whatever it is: schema, metadata, body, padding. What is given out before
    the place is what was written; behind the last batch a flipped bit harms nothing."""
    folder = written(tmp_path / "journal", *three_batches(), segment_mib=0.0015)
    first, *rest = segment_paths(folder)
    assert rest
    whole, before = first.read_bytes(), everything(folder)
    length = SegmentWalk(first).done().end
    assert length == len(whole) - len(END_OF_STREAM)
    for place in range(len(whole)):
        first.write_bytes(whole)
        flip(first, place, place % 8)
        seen: list[tuple[int, Record]] = []
        try:
            for batch in read_journal(folder):
                seen += batch
        except UserError:
            assert place < length
        else:
            assert place >= length, place
        assert all(
            n == offset and same(a, b)
            for (n, a), (offset, b) in zip(seen, before[: len(seen)], strict=True)
        ), place


def test_damage_is_told_with_its_place_and_what_to_do(tmp_path: Path) -> None:
    folder = written(tmp_path / "journal", *three_batches())
    (path,) = segment_paths(folder)
    second = list(SegmentWalk(path))[1]
    flip(path, second.end - 9)
    with pytest.raises(DamagedError) as caught:
        everything(folder)
    text = str(caught.value)
    assert f"{path} is damaged at byte {second.position:,}" in text
    assert f"`headrace audit {tmp_path} --repair`" in text
    assert "\n" not in text


def test_a_journal_with_damage_in_its_middle_is_not_written_on(tmp_path: Path) -> None:
    """Sealed or not, the writer refuses it and leaves every byte as it is."""
    folder = written(tmp_path / "journal", *three_batches())
    (path,) = segment_paths(folder)
    flip(path, list(SegmentWalk(path))[1].end - 9)
    for data in (path.read_bytes(), path.read_bytes().removesuffix(END_OF_STREAM)):
        path.write_bytes(data)
        with pytest.raises(DamagedError):
            journal(folder)
        assert path.read_bytes() == data


def test_a_sealed_segment_whose_last_batch_is_damaged_is_not_torn(tmp_path: Path) -> None:
    folder = written(tmp_path / "journal", *three_batches())
    (path,) = segment_paths(folder)
    flip(path, path.stat().st_size - 20)
    with pytest.raises(DamagedError):
        journal(folder)


def test_a_last_segment_whose_schema_is_damaged_stays(tmp_path: Path) -> None:
    """It is told from one that a crash cut off while it was being made."""
    folder = written(tmp_path / "journal", *three_batches())
    (path,) = segment_paths(folder)
    flip(path, 12, 7)
    for _ in range(2):
        with pytest.raises(DamagedError):
            journal(folder)
        with pytest.raises(DamagedError):
            everything(folder)
    assert path.exists()


@pytest.mark.parametrize("what", ["batch", "segment"])
def test_what_was_taken_out_or_put_in_between_is_found(tmp_path: Path, what: str) -> None:
    """Each batch names the one before it, over the borders of segments, too."""
    batches: list[list[Record]] = [[incident(f"{number}")] for number in range(3)]
    folder = written(tmp_path / "journal", *batches, segment_mib=1e-6 if what == "segment" else 1)
    other: list[list[Record]] = [[incident(f"other {number}")] for number in range(3)]
    foreign = written(tmp_path / "other", *other, segment_mib=1e-6)
    paths = segment_paths(folder)
    if what == "segment":
        shutil.copy(segment_paths(foreign)[1], paths[1])
    else:
        _, second, third = SegmentWalk(paths[0])
        data = paths[0].read_bytes()
        paths[0].write_bytes(data[: second.position] + data[third.position :])
    with pytest.raises(DamagedError, match="does not follow"):
        everything(folder)


def test_a_copy_of_the_first_segment_does_not_stand_for_the_journal(tmp_path: Path) -> None:
    """Behind a segment that was emptied, where the search for the first record ends."""
    batches: list[list[Record]] = [[incident(f"{number}")] for number in range(4)]
    folder = written(tmp_path / "journal", *batches, segment_mib=1e-6)
    paths = segment_paths(folder)
    paths[2].write_bytes(b"")
    shutil.copy(paths[0], paths[3])
    with pytest.raises(DamagedError):
        everything(folder)


def test_a_torn_tail_is_cut_and_the_chain_goes_on(tmp_path: Path) -> None:
    folder = written(tmp_path / "journal", *three_batches())
    (path,) = segment_paths(folder)
    path.write_bytes(path.read_bytes()[:-40])
    assert len(everything(folder)) == 3  # A reader only ends there.
    again = journal(folder)
    assert again.next_offset == 3
    again.append([incident("later")])
    again.close()
    assert len(everything(folder)) == 4


def test_a_digest_names_everything_before_it(tmp_path: Path) -> None:
    """The same records after other ones have another digest; a place within a batch has none."""
    writer = journal(tmp_path / "a")
    ends = []
    for records in three_batches():
        writer.append(records)
        ends.append(writer.end)
    writer.close()
    assert [end.records for end in ends] == [1, 3, 4]
    assert [digest_at(tmp_path / "a", end.records) for end in ends] == [m.digest for m in ends]
    assert digest_at(tmp_path / "a", 2) is None
    assert digest_at(tmp_path / "a", 5) is None
    first, *rest = three_batches()
    other = written(tmp_path / "b", [incident("another")], *rest)
    assert len(everything(other)) == 4
    assert digest_at(other, 4) not in (None, ends[-1].digest)
    assert journal(tmp_path / "a").end == ends[-1]
    assert first


def test_diagnostics_are_checked_when_they_are_read(tmp_path: Path) -> None:
    batch = BatchTaken(
        at=1.0, update=1, lineage=0, version=0, windows=[taken(10, 0)], value_trajectories=[]
    )
    writer = DiagnosticsWriter(tmp_path / "diagnostics", segment_mib=1.0)
    writer.append([commit(batch, at=2.0, metrics={})])
    writer.close()
    reader = DiagnosticsReader(tmp_path / "diagnostics")
    key = (0, 1, batch.windows[0].window_id)
    assert np.array_equal(reader.read([key])[key].columns["values"], np.ones(8))
    (path,) = segment_paths(tmp_path / "diagnostics")
    flip(path, SegmentWalk(path).done().end - 9)
    with pytest.raises(DamagedError):
        DiagnosticsReader(tmp_path / "diagnostics").read([key])
    reader._batch.cache_clear()
    with pytest.raises(DamagedError):
        reader.read([key])


# -- what a checkpoint rests on --------------------------------------------------------------------


def run_with_checkpoint(run_dir: Path, *, end: JournalEnd | None = None) -> list[JournalEnd]:
    """The run by hand in appends of seven, and its checkpoint of update 1, which rests on the whole
    journal or on what is given. The ends of the journal after each append."""
    store = RunStore.create(run_dir, run_dir.name, run_config())
    ends, left = [], list(run_by_hand())
    while left:
        store.append(left[:7])
        ends.append(store.end)
        left = left[7:]
    store.close()
    folder = write_checkpoint(run_dir, 1)
    let_rest(folder, end or ends[-1])
    return ends


def let_rest(folder: Path, end: JournalEnd) -> None:
    manifest = read_manifest(folder)
    manifest["journal"] = {"records": end.records, "digest": end.digest}
    (folder / "manifest.json").write_text(manifest_text(manifest))


def without_sql(run_dir: Path) -> None:
    for path in run_dir.glob(f"{SQLITE_NAME}*"):
        path.unlink()


def test_a_journal_cut_in_half_is_not_resumed_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut where a batch ends, so that nothing in the file itself is wrong; SQL is gone, too. The
    refusal changes nothing, and with the whole journal back the run opens."""
    run_dir = tmp_path / "run"
    ends = run_with_checkpoint(run_dir)
    (path,) = segment_paths(run_dir / "journal")
    whole = path.read_bytes()
    half = list(SegmentWalk(path))[2].end
    path.write_bytes(whole[:half])
    without_sql(run_dir)
    for _ in range(2):
        with pytest.raises(DamagedError) as caught:
            RunStore.open(run_dir)
        text = str(caught.value)
        assert f"step_1 rests on {ends[-1].records} records of the journal; it holds 21" in text
        assert f"`headrace audit {run_dir} --repair`" in text
        assert path.read_bytes() == whole[:half]
    assert any("does not hold" in f.text for f in audit_run(run_dir).findings)
    path.write_bytes(whole)
    with caplog.at_level("INFO", logger="storage.journal.checkpoints"):
        RunStore.open(run_dir).close()
    assert "comparing step_1 with the journal" in caplog.text


def test_a_repair_says_what_is_lost_and_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    ends = run_with_checkpoint(run_dir)
    (path,) = segment_paths(run_dir / "journal")
    path.write_bytes(path.read_bytes()[: list(SegmentWalk(path))[2].end])
    without_sql(run_dir)
    done = repair(run_dir)
    assert (done.kept, done.lost) == (21, ends[-1].records - 21)
    assert done.damaged is None
    assert done.checkpoints == ["damaged-1-step_1"]
    assert done.goes_on == "the starting model"
    assert not (run_dir / "checkpoints" / "latest").exists()
    store = RunStore.open(run_dir)
    assert sum(1 for _ in store.replay()) == 21
    store.close()
    assert repair(run_dir).why is None


def test_another_journal_of_the_same_length_is_not_resumed_from(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    (end, *_) = run_with_checkpoint(tmp_path / "other")
    run_with_checkpoint(run_dir, end=JournalEnd(end.records, "0" * 64))
    with pytest.raises(DamagedError, match="7 records of the journal; they are other ones"):
        RunStore.open(run_dir)


def test_a_checkpoint_rests_on_nothing_that_came_later(tmp_path: Path) -> None:
    """A torn tail behind that is cut, and a checkpoint that names nothing is taken as it is."""
    run_dir = tmp_path / "run"
    ends = run_with_checkpoint(run_dir)
    let_rest(run_dir / "checkpoints" / "step_1", ends[3])
    (path,) = segment_paths(run_dir / "journal")
    path.write_bytes(path.read_bytes()[:-30])
    without_sql(run_dir)
    RunStore.open(run_dir).close()
    old = write_whole(tmp_path / "old", run_by_hand())
    (path,) = segment_paths(old / "journal")
    path.write_bytes(path.read_bytes()[: list(SegmentWalk(path))[2].end])
    without_sql(old)
    RunStore.open(old).close()


def test_an_acknowledged_batch_at_the_end_is_not_cut_as_a_torn_one(tmp_path: Path) -> None:
    """By itself it could be what a power loss left. SQL knows better."""
    run_dir = tmp_path / "run"
    run_with_checkpoint(run_dir)
    shutil.rmtree(run_dir / "checkpoints")
    (path,) = segment_paths(run_dir / "journal")
    path.write_bytes(path.read_bytes().removesuffix(END_OF_STREAM))
    flip(path, path.stat().st_size - 9)
    before = path.read_bytes()
    with pytest.raises(DamagedError, match="the database knows"):
        RunStore.open(run_dir)
    assert path.read_bytes() == before
    done = repair(run_dir)
    assert done.damaged == "journal.damaged-1"
    assert (run_dir / done.damaged / path.name).read_bytes() == before
    RunStore.open(run_dir).close()


def test_a_damaged_seal_loses_nothing_in_a_repair(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_with_checkpoint(run_dir)
    store = RunStore.open(run_dir)
    store.append([incident("later")])
    store.close()
    first = segment_paths(run_dir / "journal")[0]
    flip(first, first.stat().st_size - 6)
    assert len(everything(run_dir / "journal")) == len(run_by_hand()) + 1
    assert [f.kind for f in audit_run(run_dir).findings] == ["damaged"]
    done = repair(run_dir)
    assert (done.lost, done.checkpoints, done.goes_on) == (0, [], "step_1")
    assert audit_run(run_dir).findings == []


def test_a_repair_keeps_the_diagnostics_that_are_whole(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_with_checkpoint(run_dir)
    commits = sum(isinstance(record, UpdateCommitted) for record in run_by_hand())
    (path,) = segment_paths(run_dir / "diagnostics")
    frames = list(SegmentWalk(path))
    assert len(frames) == commits > 1
    flip(path, frames[0].end - 9)
    assert "damaged" in {finding.kind for finding in audit_run(run_dir).findings}
    done = repair(run_dir)
    assert (done.why, done.diagnostics) == (None, "diagnostics.damaged-1")
    kept = [p for p in segment_paths(run_dir / "diagnostics") if SegmentWalk(p).done().rows]
    assert len(kept) == commits - 1
    assert {f.kind for f in audit_run(run_dir).findings} <= {"diagnostics"}
    assert repair(run_dir).diagnostics is None
