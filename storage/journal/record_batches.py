"""Frames: the batches in a segment's file, and checks of their bytes.

A frame is one Arrow message with a batch. Its custom metadata hold the length and CRC32 of its
body; `digest`, the SHA-256 of all its bytes with zeros where the digest stands (in a file's first
frame from the file's first byte on, schema included); and `after`, the digest of the frame before
it, in this file or the last one. A digest so names everything that was written before it. In:
a segment's file. Out: its frames up to the first one that is not whole, and what follows.
"""

import contextlib
import hashlib
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa

from headrace.errors import UserError

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
FIRST_ROW, DIGESTS = b"first_row", b"digests"
SegmentEnding = Literal["sealed", "open", "torn", "damaged"]
_SHA256 = b"sha256:"
_BLANK = _SHA256 + b"0" * 64
_CONTINUATION = b"\xff\xff\xff\xff"
UNREADABLE = (
    pa.ArrowException, OSError, EOFError, StopIteration, KeyError, TypeError, ValueError
)  # fmt: skip


class DamagedError(UserError):
    """Bytes that were written are gone or changed: what follows them is unusable."""


class Frame(NamedTuple):
    """A sound batch, from `position` to `end` in its file."""

    path: Path
    position: int
    end: int
    batch: pa.RecordBatch
    after: str
    digest: str


class FrameStart(NamedTuple):
    """Position of a frame that is not its file's first one, and the file's rows before it."""

    position: int
    rows: int


# -- writing ---------------------------------------------------------------------------------------


def stamps(batch: pa.RecordBatch, after: str) -> dict[str, str]:
    """Custom metadata of a batch that follows the frame with digest `after`. `stamped` fills in the
    digest."""
    message = memoryview(batch.serialize())
    body = message[8 + int.from_bytes(message[4:8], "little") :]
    crc = str(zlib.crc32(body))
    return {"length": str(len(body)), "crc32": crc, "after": after, "digest": _BLANK.decode()}


def stamped(frame: bytes) -> tuple[bytes, str]:
    """A frame with its digest in place, and the digest. A file's first frame includes its
    schema."""
    digest = hashlib.sha256(frame).hexdigest()
    return frame.replace(_BLANK, _SHA256 + digest.encode(), 1), digest


# -- reading ---------------------------------------------------------------------------------------


class SegmentWalk:
    """The whole frames of a segment, in order.

    Attributes:
        first_row: how many rows stand in the segments before this one; -1: its schema is not whole.
        end: length of the file up to the end of the last frame seen (its schema, before the first).
        rows: of the frames seen. digest: of the last frame seen.
    """

    def __init__(self, path: Path, start: FrameStart | None = None) -> None:
        """`start`: the first frame to see, where others before it are not to be looked at."""
        self.path, self._start = path, start
        self.first_row, self.end, self.rows, self.digest = -1, 0, 0, ""

    def __iter__(self) -> Iterator[Frame]:
        with pa.OSFile(str(self.path)) as source, self.path.open("rb") as file:
            try:
                reader = pa.ipc.open_stream(source)
                metadata = reader.schema.metadata or {}
                self.first_row = int(metadata[FIRST_ROW])
                self.end, start = source.tell(), 0
                if self._start is not None:
                    start = self.end = self._start.position
                    self.rows = self._start.rows
                    source.seek(start)
                while True:
                    batch, extra = reader.read_next_batch_with_custom_metadata()
                    position, end = self.end, source.tell()
                    file.seek(start)
                    if not _is_whole(file.read(end - start), extra):
                        return
                    frame = Frame(self.path, position, end, batch, *_chain(extra))
                    start = self.end = end
                    self.rows, self.digest = self.rows + batch.num_rows, frame.digest
                    yield frame
            except UNREADABLE:
                return

    def done(self) -> "SegmentWalk":
        """This walk with all frames seen."""
        for _ in self:
            pass
        return self

    def ending(self) -> SegmentEnding:
        """Classify what follows the frames read.

        sealed: the seal of a file that is not written any more; open: nothing. torn: what a write
        leaves that was cut off by a crash, which was never acknowledged. damaged: anything else;
        whole frames follow, or the file was sealed."""
        rest = self._rest()
        if rest == END_OF_STREAM:
            return "sealed"
        if not rest:
            return "open"
        is_sealed = rest.endswith(END_OF_STREAM)
        return "damaged" if is_sealed or next(_spans(rest), None) is not None else "torn"

    def salvage(self, changed: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All batches that are whole by themselves, also behind damage.

        None where the schema is unreadable. `changed` takes the other readable ones."""
        yield from (frame.batch for frame in self)
        if self.first_row < 0:
            return
        with pa.OSFile(str(self.path)) as source:
            schema = pa.ipc.open_stream(source).schema
        rest, behind = self._rest(), 0
        for position, end in [*_spans(rest), (len(rest), len(rest))]:
            with contextlib.suppress(*UNREADABLE):
                batch, extra = _parse(schema, rest[position:end])
                if _is_whole(rest[position:end], extra):
                    changed += _readable(schema, rest[behind:position])
                    yield batch
                    behind = end
        changed += _readable(schema, rest[behind:])

    def _rest(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.end)
            return file.read()


def read_frame(path: Path, position: int) -> Frame:
    """The frame at a position that a walk gave, checked again."""
    with pa.OSFile(str(path)) as source, path.open("rb") as file:
        try:
            schema = pa.ipc.open_stream(source).schema
            start = 0 if source.tell() == position else position
            source.seek(position)
            pa.ipc.read_message(source)
            end = source.tell()
            file.seek(start)
            data = file.read(end - start)
            batch, extra = _parse(schema, data[position - start :])
            if not _is_whole(data, extra):
                raise ValueError("other bytes")
        except UNREADABLE as error:
            raise damage_error(path, position) from error
    return Frame(path, position, end, batch, *_chain(extra))


def damage_error(path: Path, position: int, text: str = "") -> DamagedError:
    """The message to a user about damage in a journal or in diagnostics."""
    found = text or "these are not the bytes that were written"
    return DamagedError(
        f"{path} is damaged at byte {position:,}: {found}. Put the file back from a copy, or run "
        f"`headrace audit {path.parent.parent} --repair`: it cuts there and says what is lost"
    )


def _is_whole(data: bytes, extra: Mapping[bytes, bytes]) -> bool:
    """Return whether a frame's bytes are those that were written."""
    length = int(extra[b"length"])
    body = memoryview(data)[len(data) - length :]
    if len(body) < length or zlib.crc32(body) != int(extra[b"crc32"]):
        return False
    place = data.index(extra[b"digest"])
    behind = place + len(_BLANK)
    digest = hashlib.sha256(data[:place] + _BLANK)
    digest.update(memoryview(data)[behind:])
    return data[place:behind] == _SHA256 + digest.hexdigest().encode()


def _chain(extra: Mapping[bytes, bytes]) -> tuple[str, str]:
    return extra[b"after"].decode(), extra[b"digest"].removeprefix(_SHA256).decode()


def _parse(schema: pa.Schema, frame: bytes) -> tuple[pa.RecordBatch, Mapping[bytes, bytes]]:
    """The batch of a frame, and its custom metadata: a frame behind a schema is a stream."""
    stream = pa.BufferReader(schema.serialize().to_pybytes() + frame)
    batch, extra = pa.ipc.open_stream(stream).read_next_batch_with_custom_metadata()
    return batch, extra


def _readable(schema: pa.Schema, frames: bytes) -> Iterator[pa.RecordBatch]:
    """The batches of changed frames, up to the first that is malformed."""
    with contextlib.suppress(*UNREADABLE):
        for batch in pa.ipc.open_stream(schema.serialize().to_pybytes() + frames):
            batch.validate(full=True)
            yield batch


def _spans(data: bytes) -> Iterator[tuple[int, int]]:
    """(start, end) of each sound frame in bytes: its body has the CRC32 in its metadata."""
    buffer = pa.py_buffer(data)
    place = data.find(_CONTINUATION)
    while place >= 0:
        size = _frame_size(buffer.slice(place)) if place % 8 == 0 else 0
        if size:
            yield place, place + size
        place = data.find(_CONTINUATION, place + (size or 1))


def _frame_size(data: pa.Buffer) -> int:
    """Length of the frame that bytes begin with; 0 where they begin with none."""
    source = pa.BufferReader(data)
    try:
        message = pa.ipc.read_message(source)
        crc = str(zlib.crc32(message.body or b"")).encode()
        known = message.type == "record batch" and crc in message.metadata.to_pybytes()
        return int(source.tell()) if known else 0
    except UNREADABLE:
        return 0
