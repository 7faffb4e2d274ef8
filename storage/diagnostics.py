"""Per-token diagnostics of trained windows, in Arrow segments under `diagnostics/`.

One row a window: what the learner saw at the update's start (logprobs, values, advantages, one per
trained position from `start` on; lam is the lambda in force). Rows are written before the journal's
UpdateCommitted. A crash between the two leaves rows of an update that was never committed, and the
same update may come again: readers ask for a committed (lineage, update) and the last row counts.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.messages import TokenDiagnostics
from headrace.protocol.records import UpdateCommitted
from storage.segments import SegmentWriter, read_batches

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
_ARRAYS = ("logprobs", "values", "advantages")
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


def read_diagnostics(folder: Path, keys: set[WindowKey]) -> dict[WindowKey, TokenDiagnostics]:
    """Diagnostics of the windows asked for; those that were not recorded are missing."""
    found: dict[WindowKey, TokenDiagnostics] = {}
    if not keys:
        return found
    windows = pa.array(sorted({window for _, _, window in keys}), type=pa.int64())
    for batch in read_batches(folder):
        chosen = batch.filter(pc.is_in(batch.column("window_id"), value_set=windows))
        for row in chosen.to_pylist():
            key = (row["lineage"], row["update"], row["window_id"])
            if key in keys:
                arrays = {name: np.array(row[name], dtype=np.float32) for name in _ARRAYS}
                plain = {name: row[name] for name in ("window_id", "trajectory_id", "start", "lam")}
                found[key] = TokenDiagnostics(**plain, **arrays)
    return found


def _encode(rows: Sequence[tuple[UpdateCommitted, TokenDiagnostics]]) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "lineage": [commit.lineage for commit, _ in rows],
        "update": [commit.update for commit, _ in rows],
    }
    for name in ("window_id", "trajectory_id", "start", "lam"):
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
