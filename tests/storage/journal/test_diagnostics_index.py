"""Readers of token diagnostics know where a run's windows are without reading everything again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.protocol.records.record_types import BatchTaken
from storage.journal import diagnostics
from storage.journal.diagnostics import DiagnosticsReader, DiagnosticsWriter
from storage.journal.record_batches import DamagedError, SegmentWalk
from storage.journal.segments import segment_paths
from tests.storage.samples import commit, taken


def write(folder: Path, first: int, updates: int) -> list[tuple[int, int, int]]:
    writer = DiagnosticsWriter(folder, segment_mib=0.002)
    keys = []
    for update in range(first, first + updates):
        batch = BatchTaken(
            at=1.0, update=update, lineage=0, version=0, windows=[taken(update, 0)],
            value_trajectories=[],
        )  # fmt: skip
        writer.append([commit(batch, at=2.0, metrics={})])
        keys.append((0, update, batch.windows[0].window_id))
    writer.close()
    return keys


def test_a_new_reader_finds_what_was_written_since(tmp_path: Path) -> None:
    keys = write(tmp_path, 1, 12)
    assert len(segment_paths(tmp_path)) > 2
    assert set(DiagnosticsReader(tmp_path).read(keys)) == set(keys)
    more = write(tmp_path, 13, 5)
    found = DiagnosticsReader(tmp_path).read([*keys, *more])
    assert set(found) == {*keys, *more}


def test_segments_that_stayed_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = write(tmp_path, 1, 12)
    DiagnosticsReader(tmp_path)
    before = segment_paths(tmp_path)
    more = write(tmp_path, 13, 1)
    asked: list[Path] = []
    find = diagnostics._batches_of

    def batches_of(path: Path, *, is_last: bool) -> Iterator[diagnostics.LocatedBatch]:
        asked.append(path)
        yield from find(path, is_last=is_last)

    monkeypatch.setattr(diagnostics, "_batches_of", batches_of)
    assert set(DiagnosticsReader(tmp_path).read([*keys, *more])) == {*keys, *more}
    DiagnosticsReader(tmp_path)
    assert asked == segment_paths(tmp_path)[len(before) :]
    assert asked


def damage(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_figures_that_nobody_asks_for_are_not_read(tmp_path: Path) -> None:
    """A week of a large model has half a terabyte of them: none but those of the windows asked for
    are read and checked."""
    keys = write(tmp_path, 1, 12)
    paths = segment_paths(tmp_path)
    for path in paths[:-1]:
        for frame in list(SegmentWalk(path)):
            damage(path, frame.end - 9)
    assert set(DiagnosticsReader(tmp_path).read(keys[-1:])) == {keys[-1]}
    with pytest.raises(DamagedError):
        DiagnosticsReader(tmp_path).read(keys[:1])


@pytest.mark.parametrize("is_last", [True, False])
def test_a_batch_that_cannot_be_found_is_damage_unless_a_crash_cut_it_off(
    tmp_path: Path, is_last: bool
) -> None:
    keys = write(tmp_path, 1, 12)
    path = segment_paths(tmp_path)[-1 if is_last else 0]
    last = list(SegmentWalk(path))[-1]
    path.write_bytes(path.read_bytes()[: last.end - 40])
    if is_last:
        assert set(DiagnosticsReader(tmp_path).read(keys)) == set(keys[:-1])
        return
    with pytest.raises(DamagedError):
        DiagnosticsReader(tmp_path)


def test_zeros_in_the_place_of_a_batch_hide_no_others(tmp_path: Path) -> None:
    """A file system may leave them; Arrow takes four of them for the end of a stream."""
    write(tmp_path, 1, 12)
    path = segment_paths(tmp_path)[0]
    *_, last = SegmentWalk(path)
    data = bytearray(path.read_bytes())
    data[last.position : last.position + 8] = bytes(8)
    path.write_bytes(data)
    with pytest.raises(DamagedError):
        DiagnosticsReader(tmp_path)


def test_a_folder_that_was_cut_is_read_anew(tmp_path: Path) -> None:
    keys = write(tmp_path, 1, 12)
    DiagnosticsReader(tmp_path)
    segment_paths(tmp_path)[-1].unlink()
    assert len(DiagnosticsReader(tmp_path).read(keys)) < len(keys)
