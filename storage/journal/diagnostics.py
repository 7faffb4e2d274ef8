"""Per-token diagnostics of trained windows, in Arrow segments under `diagnostics/`.

One row per window: the learner's figures at the update's start, an array for each name of
`headrace.protocol.messages.diagnostics.TOKEN_COLUMNS` with a value for each position from `start`
on (null: nothing was reported); lam is the lambda in force. Rows are written before the journal's
UpdateCommitted. A crash between the two leaves rows of an update that was never committed, and the
same update may come again: readers ask for a committed (lineage, update) and the last row counts.
Each segment's schema says its format and which columns it has.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.protocol.messages.diagnostics import COLUMN_NAMES, TokenDiagnostics
from headrace.protocol.records.record_types import UpdateCommitted
from headrace.protocol.token_spans import Float32
from storage.journal.record_batches import UNREADABLE, SegmentWalk, damage_error, read_frame
from storage.journal.segments import BatchPlace, SegmentWriter, check_format, segment_paths

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
_UPDATE = _PLAIN[:2]
_CACHED_BATCHES = 64
Int64 = npt.NDArray[np.int64]
WindowKey = tuple[int, int, int]
"""(lineage, update, window_id)"""


class WindowDiagnostics(NamedTuple):
    """Figures of some windows: their places in some order, and for each figure the number of values
    of each of these windows and all values in one array."""

    places: Int64
    figures: Mapping[str, tuple[Int64, Float32]]


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
    """Reads by (lineage, update), with an index and a cache. UserError: another format."""

    def __init__(self, folder: Path) -> None:
        folder = folder.resolve()
        self._batch = lru_cache(_CACHED_BATCHES)(_indexed)
        check_format(folder, DIAGNOSTICS_FORMAT)
        self._places: dict[tuple[int, int], list[BatchPlace]] = {}
        for place, updates in _located(folder):
            for key in updates:
                self._places.setdefault(key, []).append(place)

    def read(self, keys: Iterable[WindowKey]) -> dict[WindowKey, TokenDiagnostics]:
        """Diagnostics of the windows asked for; those that were not recorded are missing."""
        asked = list(keys)
        found: dict[WindowKey, TokenDiagnostics] = {}
        for rows, places in self._found(np.array(asked, np.int64).reshape(-1, 3)):
            found.update(zip((asked[place] for place in places), _decode(rows), strict=True))
        return found

    def read_columns(self, keys: Int64) -> Iterator[WindowDiagnostics]:
        """Read columns. `keys`: [N, 3]; their rows name the windows. Of a repeated window the last
        figures count."""
        for rows, places in self._found(keys):
            yield WindowDiagnostics(
                places, {name: _flat(rows.column(name)) for name in _figures(rows)}
            )

    def _found(self, keys: Int64) -> Iterator[tuple[pa.RecordBatch, Int64]]:
        """Rows of the windows asked for, in the order of writing, and the key of each."""
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        borders = np.flatnonzero(np.diff(keys[order, :2], axis=0).any(axis=1)) + 1
        wanted: dict[BatchPlace, list[Int64]] = {}
        for same in np.split(order, borders) if len(order) else ():
            for place in self._places.get(_update_of(keys[same[0]]), []):
                wanted.setdefault(place, []).append(same)
        for place in sorted(wanted):
            batch = self._batch(place)
            rows, places = zip(*(batch.find(keys, same) for same in wanted[place]), strict=True)
            if len(chosen := np.concatenate(rows)):
                yield batch.rows.take(pa.array(chosen)), np.concatenate(places)


LocatedBatch = tuple[BatchPlace, frozenset[tuple[int, int]]]
"""A batch's place, and of which (lineage, update) it has windows."""
_FolderIndex = dict[Path, tuple[tuple[int, int], list[LocatedBatch]]]
"""A folder's segments, each with its size and time when it was read, and its batches."""
_INDEXES: OrderedDict[Path, _FolderIndex] = OrderedDict()
_INDEXED_FOLDERS = 8
_INDEXING = threading.Lock()


def _located(folder: Path) -> list[LocatedBatch]:
    """All batches of a folder, in order. Unchanged segments are not indexed again."""
    with _INDEXING:
        known, index = _INDEXES.pop(folder, {}), dict[Path, Any]()
        paths = segment_paths(folder)
        for path in paths:
            stamp = (about := path.stat()).st_size, about.st_mtime_ns
            index[path] = known.get(path, (None, []))
            if index[path][0] != stamp:
                index[path] = stamp, list(_batches_of(path, is_last=path == paths[-1]))
        _INDEXES[folder] = index
        if len(_INDEXES) > _INDEXED_FOLDERS:
            _INDEXES.popitem(last=False)
        return [located for _, batches in index.values() for located in batches]


def _batches_of(path: Path, *, is_last: bool) -> Iterator[LocatedBatch]:
    """The batches of a segment. Of each only its updates are read, and no bytes are checked before
    somebody asks for it: a long run has more figures than anybody waits for."""
    try:
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_stream(source)
            position = source.tell()
            for batch in reader:
                updates = zip(*(batch[name].to_pylist() for name in _UPDATE), strict=True)
                yield BatchPlace(path, position), frozenset(updates)
                position = source.tell()
            if source.tell() < source.size():  # Zeros end a stream for Arrow, whatever follows.
                raise EOFError
    except UNREADABLE:
        walk = SegmentWalk(path).done()
        # Its last write may go on, and may have come to its end meanwhile.
        if not is_last or (walk.ending() == "damaged" and SegmentWalk(path).done().end == walk.end):
            raise damage_error(path, walk.end) from None


class _IndexedBatch(NamedTuple):
    """A batch, and for each of its (lineage, update) the windows' ids, rising, and rows."""

    rows: pa.RecordBatch
    places: dict[tuple[int, int], tuple[Int64, Int64]]

    def find(self, keys: Int64, same: Int64) -> tuple[Int64, Int64]:
        """Find keys, all of one update: (rows, keys found). Of a window's rows the last one."""
        windows, rows = self.places[_update_of(keys[same[0]])]
        asked = keys[same, 2]
        at = np.searchsorted(windows, asked, side="right") - 1
        known = windows[at] == asked
        return rows[at[known]], same[known]


def _update_of(key: Int64) -> tuple[int, int]:
    return int(key[0]), int(key[1])


def _indexed(place: BatchPlace) -> _IndexedBatch:
    batch = read_frame(*place).batch
    keys = np.stack([batch.column(name).to_numpy().astype(np.int64) for name in _PLAIN[:3]])
    order = np.lexsort(keys[::-1])  # rows of one window stay in their order
    borders = np.flatnonzero(np.diff(keys[:2, order]).any(axis=0)) + 1
    places = {
        _update_of(keys[:, rows[0]]): (keys[2, rows], rows)
        for rows in np.split(order, borders)
        if len(rows)
    }
    return _IndexedBatch(batch, places)


def _figures(rows: pa.RecordBatch) -> list[str]:
    return [name for name in rows.schema.names if name in COLUMN_NAMES]


def _flat(column: pa.ListArray) -> tuple[Int64, Float32]:
    """The number of values of each row, and all values."""
    counts = column.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    return counts, column.flatten().to_numpy(zero_copy_only=False)


def _decode(rows: pa.RecordBatch) -> list[TokenDiagnostics]:
    """Rows as they are reported, without the figures that a row lacks."""
    plain = [rows.column(name).to_pylist() for name in _PLAIN[2:]]
    known = {name: rows.column(name).is_valid().to_pylist() for name in _figures(rows)}
    flat = {name: _flat(rows.column(name)) for name in known}
    parts = {
        name: np.split(values, np.cumsum(counts)[:-1]) for name, (counts, values) in flat.items()
    }
    return [
        TokenDiagnostics(
            window_id=window_id,
            trajectory_id=trajectory_id,
            start=start,
            lam=lam,
            columns={name: parts[name][row] for name in known if known[name][row]},
        )
        for row, (window_id, trajectory_id, start, lam) in enumerate(zip(*plain, strict=True))
    ]


def _encode(rows: Sequence[tuple[UpdateCommitted, TokenDiagnostics]]) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "lineage": [commit.lineage for commit, _ in rows],
        "update": [commit.update for commit, _ in rows],
    }
    for name in _PLAIN[2:]:
        columns[name] = [getattr(row, name) for _, row in rows]
    for name in COLUMN_NAMES:
        columns[name] = [row.columns.get(name) for _, row in rows]
    arrays = [pa.array(columns[field.name], type=field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
