"""The journal: every record of a run, in order, in Arrow segments under `journal/`.

Tokens are columns (trajectory_id, chunk_index, start, token_ids, logprobs, spans, generator,
finish), readable without this code; their sparse streams, where there are any, and the fields of
all other kinds are one msgpack map in `body` (msgpack and not JSON, because it keeps NaN). `offset`
counts records from 0. Token diagnostics of UpdateCommitted are not here but in
`storage.journal.diagnostics`, so a replayed one has none. Each segment's schema has its format.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.messages.control import JournalEnd
from headrace.protocol.records.record_types import (
    RECORD_FORMAT,
    AnyRecord,
    ChunkArrived,
    Record,
    Snapshot,
    UpdateCommitted,
)
from headrace.protocol.token_spans import Span, Streams
from storage.journal.record_batches import SegmentWalk
from storage.journal.segments import (
    SegmentWriter,
    check_format,
    read_batches,
    segment_metadata,
    segment_paths,
)

_SPAN = pa.struct([("version", pa.int64()), ("start", pa.int32()), ("end", pa.int32())])
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("at", pa.float64(), nullable=False),
        pa.field("trajectory_id", pa.int64()),
        pa.field("lease_id", pa.int64()),
        pa.field("chunk_index", pa.int32()),
        pa.field("generator", pa.string()),
        pa.field("start", pa.int32()),
        pa.field("token_ids", pa.list_(pa.int32())),
        pa.field("logprobs", pa.list_(pa.float32())),
        pa.field("spans", pa.list_(_SPAN)),
        pa.field("finish", pa.string()),
        pa.field("body", pa.binary()),
    ]
)
_CHUNK = ("lease_id", "chunk_index", "generator", "start", "finish")
"""Plain columns of chunks alone, as their fields are named."""


def _array_to_bytes(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    raise TypeError(f"cannot journal {type(value).__name__}")


def _bytes_to_array(kind: Any, value: bytes) -> Any:
    return np.frombuffer(value, dtype=kind.__args__[1].__args__[0])


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_array_to_bytes)
_DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(
    AnyRecord, dec_hook=_bytes_to_array
)
_STREAMS = msgspec.msgpack.Decoder(Streams)


SNAPSHOT_GROWTH = 8
"""Write a snapshot once the journal has grown by this multiple of the last snapshot's size."""


class Journal:
    """The writing end; opening repairs a torn tail."""

    def __init__(self, folder: Path, *, run_id: str, segment_mib: float) -> None:
        self._folder = folder
        check_format(folder, RECORD_FORMAT)  # what cannot be read must not be written on
        schema = SCHEMA.with_metadata({"run_id": run_id, "format": str(RECORD_FORMAT)})
        segment_bytes = int(segment_mib * 2**20)
        self._writer = SegmentWriter(folder, schema, segment_bytes=segment_bytes)
        self._behind, self._snapshot = _bytes_behind_snapshot(folder)
        """Bytes of the journal behind the last snapshot, and of that snapshot itself."""

    @property
    def next_offset(self) -> int:
        """Offset that the next appended record will have."""
        return self._writer.end.rows

    @property
    def end(self) -> JournalEnd:
        """The journal's length and the digest of its last batch."""
        return JournalEnd(*self._writer.end)

    @property
    def wants_snapshot(self) -> bool:
        """True if the next batch begins a segment and a snapshot is worth its bytes."""
        return not self._writer.is_open and self._behind > SNAPSHOT_GROWTH * self._snapshot

    def append(self, records: Sequence[Record]) -> None:
        """Put records on disk in one batch; StorageBlockedError leaves none of them there."""
        if not records:
            return
        batch = encode(records, self.next_offset)
        self._writer.append(batch)
        self._behind += batch.nbytes
        for record in records:
            if isinstance(record, Snapshot):
                self._behind, self._snapshot = 0, len(record.state)

    def close(self) -> None:
        """Seal the open segment."""
        self._writer.close()


def read_journal(
    folder: Path, first_offset: int = 0, *, only: Sequence[type[Record]] = ()
) -> Iterator[list[tuple[int, Record]]]:
    """Lists of (offset, record) in order, one per batch, from `first_offset` on. `only`: others
    than of these kinds may be left out, which is faster. UserError: another format."""
    kinds = pa.array([kind.__name__ for kind in only], pa.string())
    check_format(folder, RECORD_FORMAT)
    for batch in read_batches(folder, first_offset):
        if only:
            batch = batch.filter(pc.is_in(batch.column("kind"), value_set=kinds))
        records = [pair for pair in decode(batch) if pair[0] >= first_offset]
        if records:
            yield records


def snapshots(folder: Path) -> Iterator[tuple[int, Snapshot]]:
    """Snapshots with their offsets, newest first: those in the first batches of segments. Damaged
    ones are skipped: a reader reaches their records from an older one."""
    for path in reversed(segment_paths(folder)):
        for offset, record in _first_batch(path):
            if isinstance(record, Snapshot):
                yield offset, record


def _first_batch(path: Path) -> list[tuple[int, Record]]:
    """The records of a segment's first batch, if there is a snapshot among them."""
    first = next(iter(SegmentWalk(path)), None)
    if first is None or Snapshot.__name__ not in first.batch.column("kind").to_pylist():
        return []
    return list(decode(first.batch))


def _bytes_behind_snapshot(folder: Path) -> tuple[int, int]:
    """About how many bytes stand behind the last snapshot, and how many are its own."""
    behind = 0
    for path in reversed(segment_paths(folder)):
        behind += path.stat().st_size
        for _, record in _first_batch(path):
            if isinstance(record, Snapshot):
                return behind - len(record.state), len(record.state)
    return behind, 0


def run_id_of(run_dir: Path) -> str:
    """A run's id as its journal has it; without a journal, the name of its folder."""
    for path in segment_paths(run_dir / "journal"):
        if run_id := segment_metadata(path).get(b"run_id"):
            return run_id.decode()
    return run_dir.resolve().name


def encode(records: Sequence[Record], first_offset: int) -> pa.RecordBatch:
    """Records as one batch whose offsets begin at `first_offset`."""
    chunks = [r if isinstance(r, ChunkArrived) else None for r in records]
    spans = [span for chunk in chunks if chunk for span in chunk.spans]
    borders = np.cumsum([0, *(len(chunk.spans) if chunk else 0 for chunk in chunks)])
    span_values = pa.StructArray.from_arrays(
        [pa.array([getattr(span, f.name) for span in spans], type=f.type) for f in _SPAN],
        fields=list(_SPAN),
    )
    columns = {
        "offset": np.arange(first_offset, first_offset + len(records)),
        "kind": [type(record).__name__ for record in records],
        "at": [record.at for record in records],
        "trajectory_id": [getattr(record, "trajectory_id", None) for record in records],
        **{name: [chunk and getattr(chunk, name) for chunk in chunks] for name in _CHUNK},
        "token_ids": [chunk.token_ids if chunk else () for chunk in chunks],
        "logprobs": [chunk.logprobs if chunk else () for chunk in chunks],
        "spans": pa.ListArray.from_arrays(pa.array(borders, type=pa.int32()), span_values),
        "body": [_body(record) for record in records],
    }
    arrays = [
        value if isinstance(value := columns[f.name], pa.Array) else pa.array(value, type=f.type)
        for f in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def decode(batch: pa.RecordBatch) -> Iterator[tuple[int, Record]]:
    """(offset, record) pairs of a batch; token arrays are read-only views of it."""
    column = {name: batch.column(name) for name in batch.schema.names}
    plain = {
        name: values.to_pylist()
        for name, values in column.items()
        if name not in ("token_ids", "logprobs", "spans")
    }
    tokens = column["token_ids"].values.to_numpy()
    logprobs = column["logprobs"].values.to_numpy()
    borders = list(pairwise(column["token_ids"].offsets.to_pylist()))
    span_borders = list(pairwise(column["spans"].offsets.to_pylist()))
    fields = column["spans"].values.flatten()
    spans = [Span(*row) for row in zip(*(f.to_pylist() for f in fields), strict=True)]
    for row, kind in enumerate(plain["kind"]):
        offset = plain["offset"][row]
        if kind != ChunkArrived.__name__:
            record, at = _DECODER.decode(plain["body"][row]), plain["at"][row]
            # Without a time of its own it would have that of reading.
            if record.at != at and not (math.isnan(record.at) and math.isnan(at)):
                raise msgspec.ValidationError(f"record {offset} lacks the `at` of its row")
            yield offset, record
            continue
        body = plain["body"][row]
        first, last = borders[row]
        span_first, span_last = span_borders[row]
        yield (
            offset,
            ChunkArrived(
                at=plain["at"][row],
                trajectory_id=plain["trajectory_id"][row],
                **{name: plain[name][row] for name in _CHUNK},
                token_ids=tokens[first:last],
                logprobs=logprobs[first:last],
                spans=spans[span_first:span_last],
                streams=None if body is None else _STREAMS.decode(body),
            ),
        )


def _body(record: Record) -> bytes | None:
    if isinstance(record, ChunkArrived):
        return None if record.streams is None else _ENCODER.encode(record.streams)
    if isinstance(record, UpdateCommitted) and record.diagnostics:
        record = msgspec.structs.replace(record, diagnostics=[])
    return _ENCODER.encode(record)
