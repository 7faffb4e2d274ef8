"""A reader that remembers where frames begin reads what one that does not reads."""

from pathlib import Path

import pyarrow as pa
import pytest

from storage.journal import segment_index as index_module
from storage.journal import segments
from storage.journal.record_batches import DamagedError
from storage.journal.segment_index import SegmentIndex
from storage.journal.segments import SegmentWriter, read_batches, segment_paths

SCHEMA = pa.schema([pa.field("n", pa.int64())])


def write(folder: Path, first: int, batches: int, *, segment_bytes: int = 6000) -> int:
    writer = SegmentWriter(folder, SCHEMA, segment_bytes=segment_bytes)
    for _ in range(batches):
        size = 1 + first % 5
        writer.append(pa.record_batch([pa.array(range(first, first + size))], schema=SCHEMA))
        first += size
    writer.close()
    return first


def numbers(folder: Path, first: int, index: SegmentIndex | None) -> list[int]:
    return [n for batch in read_batches(folder, first, index) for n in batch.column(0).to_pylist()]


@pytest.fixture(autouse=True)
def _close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "POSITION_BYTES", 700)


def test_reading_with_an_index_is_reading(tmp_path: Path) -> None:
    end, index = write(tmp_path, 0, 60), SegmentIndex()
    assert len(segment_paths(tmp_path)) > 2
    for _ in range(2):
        for first in range(0, end + 3, 7):
            assert numbers(tmp_path, first, index) == numbers(tmp_path, first, None)
    end = write(tmp_path, end, 20)
    for first in range(end - 80, end):
        assert numbers(tmp_path, first, index) == numbers(tmp_path, first, None)


def test_what_stands_before_is_not_read_again_unless_the_file_changed(tmp_path: Path) -> None:
    end, index = write(tmp_path, 0, 60, segment_bytes=10**6), SegmentIndex()
    numbers(tmp_path, end - 3, index)
    (path,) = segment_paths(tmp_path)
    start = index.start_before(path, end - 3)
    assert start is not None
    assert start.position > 700
    data = bytearray(path.read_bytes())
    data[start.position - 20] ^= 1
    path.write_bytes(data)
    assert index.start_before(path, end - 3) is None
    with pytest.raises(DamagedError):
        numbers(tmp_path, end - 3, index)


def test_a_reader_of_some_rows_opens_few_of_many_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of a week has thousands of them, and each page that reads an answer looks for its
    own."""
    end = write(tmp_path, 0, 128, segment_bytes=1)
    paths = segment_paths(tmp_path)
    starts = [segments.rows_before(path) for path in paths]
    assert len(paths) == 128
    opened = set[Path]()

    def rows_before(path: Path) -> int:
        opened.add(path)
        return starts[paths.index(path)]

    with monkeypatch.context() as patch:
        patch.setattr(segments, "rows_before", rows_before)
        for place in (0, 1, 63, 64, 126):
            opened.clear()
            rows = read_batches(tmp_path, starts[place + 1] - 1)
            assert next(rows).column(0).to_pylist()[0] == starts[place]
            assert len(opened) <= 12
    assert numbers(tmp_path, end - 1, None)[-1] == end - 1


def test_a_damaged_segment_on_the_way_misleads_nobody(tmp_path: Path) -> None:
    """Rows before it are found, and it is told when it is reached; nobody needs it behind it."""
    end = write(tmp_path, 0, 64, segment_bytes=1)
    paths = segment_paths(tmp_path)
    places = [segments.rows_before(path) for path in paths]
    paths[32].write_bytes(b"")  # the first that a search would ask
    for number in (0, 3, 31):
        rows = read_batches(tmp_path, places[number])
        assert next(rows).column(0).to_pylist()[0] == places[number]
        with pytest.raises(DamagedError):
            list(rows)
    assert numbers(tmp_path, places[40], None) == list(range(places[40], end))
