"""Bytes that are not those that were written never become records again; what a crash cut off is
told from them."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import UserError
from headrace.protocol.records import Incident, Record
from storage.diagnostics import DiagnosticsReader, DiagnosticsWriter
from storage.frames import END_OF_STREAM, Walk
from storage.journal import Journal, read_journal
from storage.segments import DamagedError, digest_at, segment_paths
from tests.storage.samples import chunk, commit, same, taken
from tests.storage.test_journal import everything, journal


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
    length = Walk(first).done().end
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
    second = list(Walk(path))[1]
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
    flip(path, list(Walk(path))[1].end - 9)
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
        _, second, third = Walk(paths[0])
        data = paths[0].read_bytes()
        paths[0].write_bytes(data[: second.position] + data[third.position :])
    with pytest.raises(DamagedError, match="does not follow"):
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
    marks = []
    for records in three_batches():
        writer.append(records)
        marks.append(writer.mark)
    writer.close()
    assert [mark.records for mark in marks] == [1, 3, 4]
    assert [digest_at(tmp_path / "a", mark.records) for mark in marks] == [m.digest for m in marks]
    assert digest_at(tmp_path / "a", 2) is None
    assert digest_at(tmp_path / "a", 5) is None
    first, *rest = three_batches()
    other = written(tmp_path / "b", [incident("another")], *rest)
    assert len(everything(other)) == 4
    assert digest_at(other, 4) not in (None, marks[-1].digest)
    assert journal(tmp_path / "a").mark == marks[-1]
    assert first


def test_a_journal_from_before_digests_is_read_and_written_on(tmp_path: Path) -> None:
    """Segments without the mark have the CRC32 of their bodies alone."""
    fixture = Path(__file__).parents[1] / "fixtures" / "run_v1"
    (run_dir,) = (path for path in fixture.iterdir() if (path / "journal").is_dir())
    shutil.copytree(run_dir, tmp_path / "run")
    folder = tmp_path / "run" / "journal"
    before = len(everything(folder))
    writer = Journal(folder, run_id="run", segment_mib=1.0)
    writer.append([incident("later")])
    writer.close()
    assert len(everything(folder)) == before + 1
    old = segment_paths(folder)[0]
    flip(old, next(iter(Walk(old))).end - 9)
    with pytest.raises(DamagedError):
        everything(folder)


def test_diagnostics_are_checked_when_they_are_read(tmp_path: Path) -> None:
    from headrace.protocol.records import BatchTaken

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
    flip(path, Walk(path).done().end - 9)
    with pytest.raises(DamagedError):
        DiagnosticsReader(tmp_path / "diagnostics").read([key])
    stale = DiagnosticsReader.__new__(DiagnosticsReader)
    stale.__dict__.update(reader.__dict__, _batches=type(reader._batches)())
    with pytest.raises(DamagedError):
        stale.read([key])
