"""Append-only Arrow IPC streams in numbered segments: what the journal and the diagnostics are.

A folder holds `segment-000001.arrow`, `segment-000002.arrow`, ... , each a valid Arrow stream that
pyarrow, polars and DuckDB read as they are. `append` returns once a batch is on disk (one write,
one fsync). Every batch carries the length and CRC32 of its body, so that `recover` can cut a tail
that a power loss tore, or left as zeros, back to the last whole batch. After recovery writing goes
on in a new segment. A full disk raises StorageFullError; the file then ends with its last whole
batch.
"""

import errno
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from headrace.errors import StorageFullError

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_FIRST_ROW = b"first_row"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Extent(NamedTuple):
    """What a segment file holds that is whole."""

    first_row: int
    rows: int
    good_bytes: int
    """Length of the file up to the end of its last whole batch (0: not even a schema)."""
    sealed: bool


class BatchPlace(NamedTuple):
    """Where a batch begins."""

    path: Path
    position: int


def segment_paths(folder: Path) -> list[Path]:
    """Segment files of a folder in writing order (none if there is no folder)."""
    return sorted(folder.glob("segment-*.arrow"))


def segment_metadata(path: Path) -> dict[bytes, bytes]:
    """Key-value metadata in a segment's schema; empty if not even the schema is whole."""
    try:
        with pa.OSFile(str(path)) as source:
            return pa.ipc.open_stream(source).schema.metadata or {}
    except (pa.ArrowInvalid, OSError):
        return {}


def segment_format(path: Path) -> int | None:
    """The format that a segment's schema names (the first one named none); None if not even the
    schema is whole."""
    metadata = segment_metadata(path)
    return int(metadata.get(b"format", b"1")) if metadata else None


def rows_before(path: Path) -> int:
    """How many rows stand in the segments before this one; -1 if not even the schema is whole."""
    return int(segment_metadata(path).get(_FIRST_ROW, b"-1"))


def measure(path: Path) -> Extent:
    """Walk a segment and check every batch against its CRC."""
    size = path.stat().st_size
    rows, good, sealed = 0, 0, False
    with pa.OSFile(str(path)) as source, path.open("rb") as raw:
        try:
            reader = pa.ipc.open_stream(source)
            first = int(reader.schema.metadata[_FIRST_ROW])
            good = source.tell()
            while True:
                try:
                    batch, extra = reader.read_next_batch_with_custom_metadata()
                except StopIteration:
                    raw.seek(good)
                    sealed = raw.read() == END_OF_STREAM
                    break
                end, length = source.tell(), int(extra[b"length"])
                raw.seek(end - length)
                if end > size or zlib.crc32(raw.read(length)) != int(extra[b"crc32"]):
                    break
                rows += batch.num_rows
                good = end
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError):
            if good == 0:
                return Extent(0, 0, 0, False)
    return Extent(first, rows, good, sealed)


def recover(folder: Path) -> int:
    """Cut a torn tail, seal the last segment, and return the number of rows in the folder."""
    for path in reversed(segment_paths(folder)):
        extent = measure(path)
        if extent.good_bytes == 0:
            path.unlink()  # died while the segment was being made: nothing is lost
            continue
        if not extent.sealed:
            with path.open("r+b") as file:
                file.truncate(extent.good_bytes)
                file.seek(extent.good_bytes)
                file.write(END_OF_STREAM)
                file.flush()
                os.fsync(file.fileno())
        return extent.first_row + extent.rows
    return 0


def read_batches(folder: Path, first_row: int = 0) -> Iterator[pa.RecordBatch]:
    """Batches in writing order, from the one that holds `first_row` on; safe while another process
    appends (a batch that is not whole yet ends the iteration)."""
    for _, batch in locate_batches(folder, first_row):
        yield batch


def locate_batches(folder: Path, first_row: int = 0) -> Iterator[tuple[BatchPlace, pa.RecordBatch]]:
    """`read_batches` with the place of each batch, for `read_batch`."""
    paths = segment_paths(folder)
    starts = [rows_before(path) for path in paths]
    for index, path in enumerate(paths):
        if starts[index] < 0 or (index + 1 < len(paths) and 0 <= starts[index + 1] <= first_row):
            continue
        row = starts[index]
        with pa.OSFile(str(path)) as source:
            reader = pa.ipc.open_stream(source)
            while True:
                place = BatchPlace(path, source.tell())
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    break
                except (pa.ArrowInvalid, OSError):
                    if index + 1 < len(paths):
                        raise
                    break
                row += batch.num_rows
                if row > first_row:
                    yield place, batch


def read_batch(place: BatchPlace) -> pa.RecordBatch:
    """The batch at a place that `locate_batches` gave, with its file's own schema."""
    with pa.OSFile(str(place.path)) as source:
        schema = pa.ipc.open_stream(source).schema
        source.seek(place.position)
        return pa.ipc.read_record_batch(pa.ipc.read_message(source), schema)


class SegmentWriter:
    """Appends batches of one schema to a folder. One writer at a time, one thread at a time."""

    def __init__(self, folder: Path, schema: pa.Schema, *, segment_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._schema = schema
        self._segment_bytes = segment_bytes
        self.rows = recover(folder)
        self._file: io.FileIO | None = None
        self._length = 0
        self._staging = io.BytesIO()

    def append(self, batch: pa.RecordBatch) -> None:
        """One batch on disk: written and fsynced, or StorageFullError and not there at all."""
        if self._file is None:
            self._begin()
        body = memoryview(batch.serialize())
        body = body[8 + int.from_bytes(body[4:8], "little") :]
        extra = {"length": str(len(body)), "crc32": str(zlib.crc32(body))}
        self._stream.write_batch(batch, custom_metadata=extra)
        try:
            self._write(self._staged())
        except (OSError, StorageFullError):
            if self._length == 0:  # without its schema a segment is nothing
                self._discard()
            raise
        self.rows += batch.num_rows
        if self._length >= self._segment_bytes:
            self._seal()

    def close(self) -> None:
        """Seal the open segment; on a full disk the next opening will."""
        if self._file is not None:
            self._seal()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self) -> None:
        paths = segment_paths(self._folder)
        number = int(paths[-1].stem.split("-")[1]) + 1 if paths else 1
        path = self._folder / f"segment-{number:06d}.arrow"
        metadata = {**(self._schema.metadata or {}), _FIRST_ROW: str(self.rows).encode()}
        self._staged()
        self._stream = pa.ipc.new_stream(
            pa.PythonFile(self._staging, "w"), self._schema.with_metadata(metadata)
        )
        try:
            self._file, self._length = io.FileIO(path, "xb"), 0
        except OSError as error:
            if error.errno in _FULL:
                raise StorageFullError(f"no room left in {self._folder}") from error
            raise
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _discard(self) -> None:
        assert self._file is not None
        self._file.close()
        Path(str(self._file.name)).unlink()
        self._file = None

    def _staged(self) -> bytes:
        data = self._staging.getvalue()
        self._staging.seek(0)
        self._staging.truncate()
        return data

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file.fileno(), view) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            os.ftruncate(self._file.fileno(), self._length)
            os.lseek(self._file.fileno(), self._length, os.SEEK_SET)
            if error.errno in _FULL:
                raise StorageFullError(f"no room left in {self._folder}") from error
            raise
        self._length += len(data)

    def _seal(self) -> None:
        assert self._file is not None
        try:
            self._write(END_OF_STREAM)
        except StorageFullError:
            return  # it stays open: the batch is safe, and the next append will say it
        self._file.close()
        self._file = None
