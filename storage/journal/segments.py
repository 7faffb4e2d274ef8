"""Append-only Arrow IPC streams in numbered segments: what the journal and the diagnostics are.

A folder holds `segment-000001.arrow`, `segment-000002.arrow`, ... , each a valid Arrow stream that
pyarrow, polars and DuckDB read as they are. `append` returns once a batch is on disk (one write,
one fsync). Every batch carries checksums (`storage.journal.record_batches`) and they are checked
whenever it is read: DamagedError names the place where bytes are not those that were written. What
a write leaves that a crash cut off is no damage: readers end there, and `recover` cuts it off.
After recovery writing goes on in a new segment. A disk that takes nothing raises
StorageBlockedError; the file then ends with its last whole batch.
"""

import contextlib
import io
import logging
import os
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from headrace.errors import FormatError, StorageBlockedError
from headrace.host.disk import sync, writing
from storage.journal.record_batches import (
    DIGESTS,
    END_OF_STREAM,
    FIRST_ROW,
    UNREADABLE,
    Frame,
    FrameStart,
    SegmentEnding,
    SegmentWalk,
    damage_error,
    stamped,
    stamps,
)
from storage.journal.segment_index import SegmentIndex

log = logging.getLogger(__name__)


class SegmentsEnd(NamedTuple):
    """The end of a folder of segments: its number of whole rows, and the last digest."""

    rows: int
    digest: str


class BatchPlace(NamedTuple):
    """The beginning of a batch."""

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
    except UNREADABLE:
        return {}


def check_format(folder: Path, known: int) -> None:
    """FormatError unless segments have format `known`.

    Only the first and the last are read, as a folder of another format is never appended to. A
    damaged schema is found by its readers: the first batch's digest, if any, covers it."""
    paths = segment_paths(folder)
    for path in (*paths[:1], *paths[-1:]):
        metadata = segment_metadata(path)
        found = _number(metadata, b"format", 1)  # the first one was not named
        if metadata and found != known and (DIGESTS not in metadata or any(SegmentWalk(path))):
            raise FormatError(path, found, known)


def rows_before(path: Path) -> int:
    """Number of rows in the segments before this one; -1 if its schema is not whole."""
    return _number(segment_metadata(path), FIRST_ROW, -1)


def _number(metadata: dict[bytes, bytes], name: bytes, otherwise: int) -> int:
    text = metadata.get(name, b"")
    return int(text) if text.isdigit() else otherwise


def end_of(folder: Path) -> SegmentsEnd:
    """The end of a folder; changes nothing. DamagedError: there is more than that."""
    for walk, _ in _last_walks(folder):
        if walk.rows:
            return SegmentsEnd(walk.first_row + walk.rows, walk.digest)
    return SegmentsEnd(0, "")


def recover(folder: Path) -> SegmentsEnd:
    """Cut off a torn write and seal the last segment; returns the folder's end. DamagedError: more
    is damaged, and nothing was changed."""
    end = end_of(folder)
    for walk, ending in _last_walks(folder):
        if ending == "torn":
            cut = walk.path.stat().st_size - walk.end
            log.warning(
                "%s: cut off %d bytes of a write that never came to its end", walk.path, cut
            )
        if not walk.rows:
            walk.path.unlink()  # died while the segment was being made: nothing is lost
        elif ending != "sealed":
            with walk.path.open("r+b", buffering=0) as file:
                file.truncate(walk.end)
                file.seek(walk.end)
                try:
                    with writing(folder, len(END_OF_STREAM)):
                        file.write(END_OF_STREAM)
                        os.fsync(file.fileno())
                except StorageBlockedError:
                    file.truncate(walk.end)  # it is whole without the seal
    return end


def _last_walks(folder: Path) -> list[tuple[SegmentWalk, SegmentEnding]]:
    """The last segments, newest first, up to one that holds a row."""
    walks: list[tuple[SegmentWalk, SegmentEnding]] = []
    for path in reversed(segment_paths(folder)):
        walk = SegmentWalk(path).done()
        walks.append((walk, walk.ending()))
        if walks[-1][1] == "damaged":
            raise damage_error(path, walk.end)
        if walk.rows:
            break
    return walks


def digest_at(folder: Path, rows: int) -> str | None:
    """The digest of the batch that ends the first `rows` rows; None where none does."""
    for path in reversed(segment_paths(folder)):
        if 0 <= rows_before(path) < rows:
            walk = SegmentWalk(path)
            for frame in walk:
                if walk.first_row + walk.rows >= rows:
                    return frame.digest if walk.first_row + walk.rows == rows else None
            return None
    return None


def read_batches(
    folder: Path, first_row: int = 0, index: SegmentIndex | None = None
) -> Iterator[pa.RecordBatch]:
    """Batches in writing order, from the one that holds `first_row` on.

    Safe while another process appends: an incomplete batch ends the iteration. DamagedError at the
    first changed byte, before anything behind it is yielded. `index`: with it the rows long
    before `first_row` are not read again."""
    paths = segment_paths(folder)
    if paths and rows_before(paths[-1]) < 0:  # being made, or its writer died over it
        walk = SegmentWalk(paths[-1]).done()
        if walk.ending() == "damaged" and rows_before(paths[-1]) < 0:
            raise damage_error(paths[-1], walk.end)
        del paths[-1]
    del paths[: _place_of(paths, first_row)]
    row, digest = -1, None
    for number, path in enumerate(paths, 1):
        first = rows_before(path)
        if (row < 0 and first > first_row) or (row >= 0 and first not in (row, -1)):
            raise damage_error(
                path, 0, f"it begins with record {first:,}, and {max(row, first_row):,} is next"
            )
        start = None
        if index is not None and row < 0 <= first:
            start = index.start_before(path, first_row - first)
        row = max(row, first + (start.rows if start else 0))
        until = rows_before(paths[number]) if number < len(paths) else None
        for frame in _frames_of(path, until=until, start=start):
            if index is not None:
                index.add(frame, row - first)
            if digest is not None and frame.after != digest:
                raise damage_error(path, frame.position, "it does not follow what stands before it")
            digest = frame.digest
            row += frame.batch.num_rows
            if row > first_row:
                yield frame.batch


def _place_of(paths: list[Path], row: int) -> int:
    """The segment that holds a row, else the first. Few are opened: a long run has thousands."""
    if not row:
        return 0  # Where a schema is damaged, the search can end at a copy of the first one.
    place = max(0, bisect_right(paths, row, key=rows_before) - 1)
    while place and not 0 <= rows_before(paths[place]) <= row:
        place -= 1  # The schema of another one is damaged.
    return place


def _frames_of(
    path: Path, *, until: int | None, start: FrameStart | None = None
) -> Iterator[Frame]:
    """The frames of a segment; the next one begins with row `until`. A damaged last seal is
    ignored."""
    end = 0
    while True:
        walk = SegmentWalk(path, start)
        yield from (frame for frame in walk if frame.position >= end)
        if until is not None:
            if walk.first_row + walk.rows != until:
                raise damage_error(path, walk.end)
            return
        if walk.ending() != "damaged":
            return
        if walk.end == end:
            raise damage_error(path, end)
        end = walk.end  # it may have grown meanwhile: look again


class SegmentWriter:
    """Appends batches of one schema to a folder: one writer, one thread at a time."""

    def __init__(self, folder: Path, schema: pa.Schema, *, segment_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._schema = schema
        self._segment_bytes = segment_bytes
        self.rows, self._digest = recover(folder)
        self._file: io.FileIO | None = None
        self._length = 0
        self._is_torn = False
        self._unborn: Path | None = None
        """A segment that got no batch and could not be removed."""
        self._staging = io.BytesIO()

    @property
    def end(self) -> SegmentsEnd:
        """The folder's present end."""
        return SegmentsEnd(self.rows, self._digest)

    @property
    def is_open(self) -> bool:
        """True if a segment is open, which the next batch is appended to."""
        return self._file is not None

    def append(self, batch: pa.RecordBatch) -> None:
        """Write and fsync one batch; StorageBlockedError: nothing of it is there."""
        if self._file is None:
            self._begin()
        self._stream.write_batch(batch, custom_metadata=stamps(batch, self._digest))
        data, digest = stamped(self._staged())
        try:
            self._write(data)
        except (OSError, StorageBlockedError):
            if self._length == 0:  # without its schema a segment is nothing
                self._discard()
            raise
        self.rows, self._digest = self.rows + batch.num_rows, digest
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
        path = self._unborn or self._folder / f"segment-{number:06d}.arrow"
        first = str(self.rows).encode()
        metadata = {**(self._schema.metadata or {}), FIRST_ROW: first, DIGESTS: b"sha256"}
        self._staged()
        self._stream = pa.ipc.new_stream(
            pa.PythonFile(self._staging, "w"), self._schema.with_metadata(metadata)
        )
        with writing(self._folder, self._staging.tell()):
            file = io.FileIO(path, "wb" if self._unborn else "xb")
            self._file, self._length, self._is_torn, self._unborn = file, 0, False, None
            try:
                sync(self._folder)
            except OSError:
                self._discard()
                raise

    def _discard(self) -> None:
        assert self._file is not None
        self._file.close()
        self._unborn, self._file = Path(str(self._file.name)), None
        with contextlib.suppress(OSError):
            self._unborn.unlink()
            self._unborn = None

    def _staged(self) -> bytes:
        data = self._staging.getvalue()
        self._staging.seek(0)
        self._staging.truncate()
        return data

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        view = memoryview(data)
        with writing(self._folder, len(data)):
            self._trim()
            self._is_torn = True
            try:
                while view:
                    view = view[os.write(self._file.fileno(), view) :]
                os.fsync(self._file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    self._trim()
                raise
        self._is_torn = False
        self._length += len(data)

    def _trim(self) -> None:
        """Take away what a write that failed has left."""
        assert self._file is not None
        if self._is_torn:
            os.ftruncate(self._file.fileno(), self._length)
            os.lseek(self._file.fileno(), self._length, os.SEEK_SET)
            self._is_torn = False

    def _seal(self) -> None:
        assert self._file is not None
        try:
            self._write(END_OF_STREAM)
        except StorageBlockedError:
            return  # it stays open: the batch is safe, and the next append will say it
        self._file.close()
        self._file = None
