"""Per-token diagnostics of trained windows, in Arrow segments under `diagnostics/`.

One row a window: what the learner saw at the update's start, an array for each name of
`headrace.protocol.diagnostics.TOKEN_COLUMNS` with a value for each position from `start` on (null:
nothing was reported); lam is the lambda in force. Rows are written before the journal's
UpdateCommitted. A crash between the two leaves rows of an update that was never committed, and the
same update may come again: readers ask for a committed (lineage, update) and the last row counts.
Each segment's schema says its format and which columns it has.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import UserError
from headrace.protocol.diagnostics import COLUMN_NAMES, TokenDiagnostics
from headrace.protocol.records import UpdateCommitted
from storage import version1
from storage.segments import (
    BatchPlace,
    SegmentWriter,
    locate_batches,
    read_batch,
    segment_format,
    segment_paths,
)

DIAGNOSTICS_FORMAT = 2
SCHEMA = pa.schema(
    [
        pa.field("lineage", pa.int32(), nullable=False),
        pa.field("update", pa.int64(), nullable=False),
        pa.field("window_id", pa.int64(), nullable=False),
        pa.field("trajectory_id", pa.int64(), nullable=False),
        pa.field("start", pa.int32(), nullable=False),
        pa.field("lam", pa.float64(), nullable=False),
        *(pa.field(name, pa.list_(pa.float32())) for name in COLUMN_NAMES),
    ],
    metadata={"format": str(DIAGNOSTICS_FORMAT)},
)
_PLAIN = ("lineage", "update", "window_id", "trajectory_id", "start", "lam")
_CACHED_BATCHES = 64
WindowKey = tuple[int, int, int]
"""(lineage, update, window_id)"""


class DiagnosticsWriter:
    """The writing end; opening repairs a torn tail."""

    def __init__(self, folder: Path, *, segment_mib: float) -> None:
        self._writer = SegmentWriter(folder, SCHEMA, segment_bytes=int(segment_mib * 2**20))

    def append(self, commits: Iterable[UpdateCommitted]) -> None:
        """Write the diagnostics of these commits; StorageBlockedError as in `segments`."""
        rows = [(commit, row) for commit in commits for row in commit.diagnostics]
        if rows:
            self._writer.append(_encode(rows))

    def close(self) -> None:
        """Seal the open segment."""
        self._writer.close()


class DiagnosticsReader:
    """Reads by (lineage, update): an index of batches, and the batches last used. UserError: the
    run is of a newer version of this program."""

    def __init__(self, folder: Path) -> None:
        self._places: dict[tuple[int, int], list[BatchPlace]] = {}
        self._batches: OrderedDict[BatchPlace, dict[WindowKey, TokenDiagnostics]] = OrderedDict()
        self._renamed = {path: _names_in(path) for path in segment_paths(folder)}
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
            renamed = self._renamed.get(place.path, {})
            self._batches[place] = _decode(read_batch(place), renamed)
            if len(self._batches) > _CACHED_BATCHES:
                self._batches.popitem(last=False)
        self._batches.move_to_end(place)
        return self._batches[place]


def _names_in(path: Path) -> dict[str, str]:
    """Today's names of the columns that a segment calls otherwise."""
    number = segment_format(path) or DIAGNOSTICS_FORMAT
    if number > DIAGNOSTICS_FORMAT:
        raise UserError(
            f"{path} has format {number}, and this version of Headrace reads token diagnostics up "
            f"to {DIAGNOSTICS_FORMAT}: use the version that wrote it"
        )
    return version1.DIAGNOSTIC_NAMES if number == 1 else {}


def _decode(batch: pa.RecordBatch, renamed: dict[str, str]) -> dict[WindowKey, TokenDiagnostics]:
    """Rows by key; arrays are read-only views of the batch. Columns that the file does not have, or
    that nobody knows any more, are left out."""
    plain = [batch.column(name).to_pylist() for name in _PLAIN]
    arrays = {
        renamed.get(name, name): batch.column(name)
        for name in batch.schema.names
        if renamed.get(name, name) in COLUMN_NAMES
    }
    borders = {name: array.offsets.to_numpy() for name, array in arrays.items()}
    values = {name: array.values.to_numpy() for name, array in arrays.items()}
    known = {name: array.is_valid().to_pylist() for name, array in arrays.items()}
    found: dict[WindowKey, TokenDiagnostics] = {}
    for row, (lineage, update, window_id, trajectory_id, start, lam) in enumerate(
        zip(*plain, strict=True)
    ):
        columns = {
            name: values[name][borders[name][row] : borders[name][row + 1]]
            for name in arrays
            if known[name][row]
        }
        found[lineage, update, window_id] = TokenDiagnostics(
            window_id=window_id, trajectory_id=trajectory_id, start=start, lam=lam, columns=columns
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
    for name in COLUMN_NAMES:
        parts = [row.columns.get(name) for _, row in rows]
        lengths = [0 if part is None else len(part) for part in parts]
        borders = pa.array(np.concatenate([[0], np.cumsum(lengths)]), type=pa.int32())
        present = [part for part in parts if part is not None]
        values = np.concatenate([np.zeros(0, np.float32), *present], dtype=np.float32)
        missing = pa.array([part is None for part in parts]) if len(present) < len(rows) else None
        arrays.append(pa.ListArray.from_arrays(borders, pa.array(values), mask=missing))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
