"""The journal: every record of a run, in order, in Arrow segments under `journal/`.

Tokens are columns (trajectory_id, chunk_index, start, token_ids, logprobs, spans, generator,
finish), readable without this code; the fields of all other kinds are one msgpack map in `body`
(msgpack and not JSON, because it keeps NaN). `offset` counts records from 0. Token diagnostics of
UpdateCommitted are not here but in `storage.diagnostics`, so a replayed one has none.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.protocol.records import AnyRecord, ChunkArrived, Record, UpdateCommitted
from headrace.protocol.streams import Span
from storage.segments import SegmentWriter, read_batches, segment_metadata, segment_paths

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


class Journal:
    """The writing end. Opening repairs a torn tail; `next_offset` is the next record's offset."""

    def __init__(self, folder: Path, *, run_id: str, segment_mib: float) -> None:
        self._folder = folder
        schema = SCHEMA.with_metadata({"run_id": run_id})
        self._writer = SegmentWriter(folder, schema, segment_bytes=int(segment_mib * 2**20))

    @property
    def next_offset(self) -> int:
        """Offset that the next appended record will have."""
        return self._writer.rows

    def append(self, records: Sequence[Record]) -> None:
        """Put records on disk in one batch; StorageFullError leaves none of them there."""
        if records:
            self._writer.append(encode(records, self.next_offset))

    def close(self) -> None:
        """Seal the open segment."""
        self._writer.close()


def read_journal(folder: Path, first_offset: int = 0) -> Iterator[list[tuple[int, Record]]]:
    """(offset, record) pairs in order, one list a batch, from `first_offset` on."""
    for batch in read_batches(folder, first_offset):
        skip = max(0, first_offset - batch.column("offset")[0].as_py())
        yield list(decode(batch))[skip:]


def run_id_of(run_dir: Path) -> str:
    """A run's id as its journal has it; without a journal, the name of its folder."""
    for path in segment_paths(run_dir / "journal"):
        if run_id := segment_metadata(path).get(b"run_id"):
            return run_id.decode()
    return run_dir.resolve().name


def encode(records: Sequence[Record], first_offset: int) -> pa.RecordBatch:
    """Records as one batch whose offsets begin at `first_offset`."""
    chunks = [r if isinstance(r, ChunkArrived) else None for r in records]
    bodies = [None if chunk else _ENCODER.encode(_lean(r)) for r, chunk in _zip(records, chunks)]
    spans = [span for chunk in chunks if chunk for span in chunk.spans]
    span_values = pa.StructArray.from_arrays(
        [pa.array([getattr(span, f.name) for span in spans], type=f.type) for f in _SPAN],
        fields=list(_SPAN),
    )
    columns = {
        "offset": np.arange(first_offset, first_offset + len(records)),
        "kind": [type(record).__name__ for record in records],
        "at": [record.at for record in records],
        "trajectory_id": [getattr(record, "trajectory_id", None) for record in records],
        "lease_id": [chunk and chunk.lease_id for chunk in chunks],
        "chunk_index": [chunk and chunk.chunk_index for chunk in chunks],
        "generator": [chunk and chunk.generator for chunk in chunks],
        "start": [chunk and chunk.start for chunk in chunks],
        "token_ids": _lists([c.token_ids if c else None for c in chunks], np.dtype(np.int32)),
        "logprobs": _lists([c.logprobs if c else None for c in chunks], np.dtype(np.float32)),
        "spans": pa.ListArray.from_arrays(
            _borders([len(chunk.spans) if chunk else 0 for chunk in chunks]), span_values
        ),
        "finish": [chunk and chunk.finish for chunk in chunks],
        "body": bodies,
    }
    arrays = [
        value if isinstance(value, pa.Array) else pa.array(value, type=SCHEMA.field(name).type)
        for name, value in columns.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def decode(batch: pa.RecordBatch) -> Iterator[tuple[int, Record]]:
    """(offset, record) pairs of a batch; token arrays are read-only views of it."""
    column = {name: batch.column(name) for name in SCHEMA.names}
    plain = {
        name: column[name].to_pylist()
        for name in SCHEMA.names
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
            yield offset, _DECODER.decode(plain["body"][row])
            continue
        first, last = borders[row]
        span_first, span_last = span_borders[row]
        yield (
            offset,
            ChunkArrived(
                at=plain["at"][row],
                trajectory_id=plain["trajectory_id"][row],
                lease_id=plain["lease_id"][row],
                chunk_index=plain["chunk_index"][row],
                generator=plain["generator"][row],
                start=plain["start"][row],
                token_ids=tokens[first:last],
                logprobs=logprobs[first:last],
                spans=spans[span_first:span_last],
                finish=plain["finish"][row],
            ),
        )


def _zip(
    records: Sequence[Record], chunks: list[ChunkArrived | None]
) -> Iterator[tuple[Record, ChunkArrived | None]]:
    return zip(records, chunks, strict=True)


def _lean(record: Record) -> Record:
    if isinstance(record, UpdateCommitted) and record.diagnostics:
        return msgspec.structs.replace(record, diagnostics=[])
    return record


def _borders(lengths: list[int]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), type=pa.int32())


def _lists(arrays: list[Any], dtype: np.dtype[Any]) -> pa.ListArray:
    present = [array for array in arrays if array is not None]
    values = np.concatenate(present, dtype=dtype) if present else np.zeros(0, dtype)
    return pa.ListArray.from_arrays(
        _borders([0 if array is None else len(array) for array in arrays]), pa.array(values)
    )
