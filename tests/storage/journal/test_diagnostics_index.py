"""Readers of token diagnostics know where a run's windows are without reading everything again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.protocol.records.record_types import BatchTaken
from storage.journal import diagnostics
from storage.journal.diagnostics import DiagnosticsReader, DiagnosticsWriter
from storage.journal.record_batches import Frame
from storage.journal.segments import read_frames, segment_paths
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
    more = write(tmp_path, 13, 1)
    asked: list[int] = []

    def read(folder: Path, first: int = 0) -> Iterator[Frame]:
        asked.append(first)
        yield from read_frames(folder, first)

    monkeypatch.setattr(diagnostics, "read_frames", read)
    assert set(DiagnosticsReader(tmp_path).read([*keys, *more])) == {*keys, *more}
    DiagnosticsReader(tmp_path)
    assert len(asked) == 1
    assert asked[0] > 0


def test_a_folder_that_was_cut_is_read_anew(tmp_path: Path) -> None:
    keys = write(tmp_path, 1, 12)
    DiagnosticsReader(tmp_path)
    segment_paths(tmp_path)[-1].unlink()
    assert len(DiagnosticsReader(tmp_path).read(keys)) < len(keys)
