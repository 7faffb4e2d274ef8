"""Per-token diagnostics of trained windows, in Arrow segments under `diagnostics/`.

One row a window: what the learner saw at the update's start (logprobs, values, advantages, one per
trained position from `start` on; lam is the lambda in force). Rows are written before the journal's
UpdateCommitted. A crash between the two leaves rows of an update that was never committed, and the
same update may come again: readers ask for a committed (lineage, update) and the last row counts.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.protocol.messages import TokenDiagnostics
from headrace.protocol.records import UpdateCommitted
from storage.segments import BatchPlace, SegmentWriter, locate_batches, read_batch

SCHEMA = pa.schema(
    [
        pa.field("lineage", pa.int32(), nullable=False),
        pa.field("update", pa.int64(), nullable=False),
        pa.field("window_id", pa.int64(), nullable=False),
        pa.field("trajectory_id", pa.int64(), nullable=False),
        pa.field("start", pa.int32(), nullable=False),
        pa.field("lam", pa.float64(), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("values", pa.list_(pa.float32()), nullable=False),
        pa.field("advantages", pa.list_(pa.float32()), nullable=False),
    ]
)
_PLAIN = ("lineage", "update", "window_id", "trajectory_id", "start", "lam")
_ARRAYS = ("logprobs", "values", "advantages")
_CACHED_BATCHES = 64
WindowKey = tuple[int, int, int]
"""(lineage, update, window_id)"""


class DiagnosticsWriter:
    """The writing end; opening repairs a torn tail."""

    def __init__(self, folder: Path, *, segment_mib: float) -> None:
        self._writer = SegmentWriter(folder, SCHEMA, segment_bytes=int(segment_mib * 2**20))

    def append(self, commits: Iterable[UpdateCommitted]) -> None:
        """Write the diagnostics of these commits; StorageFullError as in `segments`."""
        rows = [(commit, row) for commit in commits for row in commit.diagnostics]
        if rows:
            self._writer.append(_encode(rows))

    def close(self) -> None:
        """Seal the open segment."""
        self._writer.close()


class DiagnosticsReader:
    """Reads by (lineage, update): an index of batches, and the batches last used."""

    def __init__(self, folder: Path) -> None:
        self._places: dict[tuple[int, int], list[BatchPlace]] = {}
        self._batches: OrderedDict[BatchPlace, dict[WindowKey, TokenDiagnostics]] = OrderedDict()
        for place, batch in locate_batches(folder):
            keys = zip(*(batch.column(c).to_pylist() for c in ("lineage", "update")), strict=True)
            for key in set(keys):
                self._places.setdefault(key, []).append(place)

    def read(self, keys: Iterable[WindowKey]) -> dict[WindowKey, TokenDiagnostics]:
        """Diagnostics of the windows asked for; those that were not recorded are missing."""
        found: dict[WindowKey, TokenDiagnostics] = {}
        wanted = set(keys)
        for place in sorted({p for key in wanted for p in self._places.get(key[:2], [])}):
            rows = self._rows(place)
            found.update({key: rows[key] for key in wanted if key in rows})
        return found

    def _rows(self, place: BatchPlace) -> dict[WindowKey, TokenDiagnostics]:
        if place not in self._batches:
            self._batches[place] = _decode(read_batch(place, SCHEMA))
            if len(self._batches) > _CACHED_BATCHES:
                self._batches.popitem(last=False)
        self._batches.move_to_end(place)
        return self._batches[place]


def _decode(batch: pa.RecordBatch) -> dict[WindowKey, TokenDiagnostics]:
    """Rows by key; arrays are read-only views of the batch."""
    plain = [batch.column(name).to_pylist() for name in _PLAIN]
    borders = {name: batch.column(name).offsets.to_numpy() for name in _ARRAYS}
    values = {name: batch.column(name).values.to_numpy() for name in _ARRAYS}
    found: dict[WindowKey, TokenDiagnostics] = {}
    for row, (lineage, update, window_id, trajectory_id, start, lam) in enumerate(
        zip(*plain, strict=True)
    ):
        arrays = {
            name: values[name][borders[name][row] : borders[name][row + 1]] for name in _ARRAYS
        }
        found[lineage, update, window_id] = TokenDiagnostics(
            window_id=window_id, trajectory_id=trajectory_id, start=start, lam=lam, **arrays
        )
    return found


def _encode(rows: Sequence[tuple[UpdateCommitted, TokenDiagnostics]]) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "lineage": [commit.lineage for commit, _ in rows],
        "update": [commit.update for commit, _ in rows],
    }
    for name in _PLAIN[2:]:
        columns[name] = [getattr(row, name) for _, row in rows]
    arrays = [pa.array(values, type=SCHEMA.field(name).type) for name, values in columns.items()]
    for name in _ARRAYS:
        parts = [getattr(row, name) for _, row in rows]
        borders = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        values = np.concatenate(parts, dtype=np.float32)
        arrays.append(
            pa.ListArray.from_arrays(pa.array(borders, type=pa.int32()), pa.array(values))
        )
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
