"""Training trajectories by what pages filter and sort them by, in memory.

In: a run that is open, and conditions. Out: which trajectories match, how many, in an order. A
table of a million rows takes SQL seconds to count or to sort; a few columns of them take a few
hundredths of a second. What was read once is kept while the run writes nothing. Of a run that goes
on, rows are read again from the oldest one on that may still change: one that has not ended, or
waits for its reward. Bounded: the columns of a few runs, about 40 bytes a trajectory, and where
scorings were asked for another 100.
"""

import threading
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from itertools import islice
from operator import and_
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import select

from headrace.protocol.records.record_types import AuditArrived
from storage.database.reader import RunReader, read_config
from storage.database.tables import Trajectory
from storage.database.trajectory_rows import COLUMNS as COLUMNS_OF
from storage.exports.columns import array_of, scalar_field
from storage.journal.responses import Int64
from storage.journal.segment_index import SegmentIndex
from storage.journal.segments import read_batches

SCHEMA = pa.schema(
    [
        scalar_field(name, repeated=False)
        for name in ("trajectory_id", "group_id", "status", "length", "reward")
    ]
)
_ON_DEMAND = (
    "reward_source", "reward_status", "correct", "audit_status", "gap", "surprise", "rewarded_at",
)  # fmt: skip
"""Columns of which some take longer to read."""
WIDE = pa.schema([*SCHEMA, *(scalar_field(name, repeated=False) for name in _ON_DEMAND)])
COLUMNS = frozenset(WIDE.names)
"""Columns that a filter may name."""
ORDERED = frozenset(kind.name for kind in WIDE if kind.type in (pa.int64(), pa.float64()))
"""Columns that rows can be sorted by."""
MAX_RUNS = 4
_ROWS = 50_000
"""Read at a time."""
_CHUNKS = 32
"""Pieces of the table, one for each time that it was read on."""
_OPEN = ("issued", "running")
_WAITING = ("finished", "truncated")
_SEGMENT_INDEX = SegmentIndex()
_KNOWN = threading.Lock()


@dataclass
class _IndexedRun:
    """The rows of a run up to record `offset`, by id; from id `settled` on they may change."""

    schema: pa.Schema
    rows: pa.Table
    offset: int = -1
    settled: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@lru_cache(maxsize=MAX_RUNS)
def _indexed_run(run_dir: Path, run: int, is_wide: bool) -> _IndexedRun:
    """Rows read of a run; empty at first."""
    schema = WIDE if is_wide else SCHEMA
    return _IndexedRun(schema, schema.empty_table())


def matching(
    reader: RunReader,
    conditions: Iterable[pc.Expression],
    *,
    sort: str,
    descending: bool,
    limit: int,
    offset: int,
    asked: AbstractSet[str] = frozenset(),
    newest: int | None = None,
) -> tuple[list[int], int]:
    """(ids of some of the matching training trajectories, number of all that match).

    Sorted by a column and then by id, those without a value last. `asked`: the columns that
    conditions name; `newest`: of those that meet them, how many of the last scored."""
    wide = newest is not None or not {sort, *asked} <= set(SCHEMA.names)
    found = _rows(reader, wide)
    if every := list(conditions):
        found = found.filter(reduce(and_, every))  # each filter copies all columns
    if newest is not None and newest < found.num_rows:
        last = _ordered(found.column("rewarded_at"), newest, descending=True)[:newest]
        found = found.take(pa.array(np.sort(last)))
    first, end = offset, min(offset + limit, found.num_rows)
    if first >= end:
        return [], found.num_rows
    ids = found.column("trajectory_id")
    if sort == "trajectory_id":
        places: Any = np.arange(first, end)
        places = found.num_rows - 1 - places if descending else places
    else:
        places = _ordered(found.column(sort), end, descending=descending)[first:end]
    return ids.take(pa.array(places)).to_pylist(), found.num_rows


def is_of(ids: Iterable[int], column: str = "trajectory_id") -> pc.Expression:
    """The condition that a column has one of these numbers."""
    return pc.field(column).isin(pa.array(list(ids), pa.int64()))


def _ordered(column: pa.ChunkedArray, most: int, *, descending: bool) -> Int64:
    """Places of the `most` first values; of equal ones the first. Others are not sorted."""
    known = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    values = column.drop_null().to_numpy(zero_copy_only=False)
    keys = -values if descending else values
    chosen = np.arange(len(keys))
    if most < len(keys):
        chosen = np.flatnonzero(keys <= np.partition(keys, most - 1)[most - 1])
    order = chosen[np.argsort(keys[chosen], kind="stable")]
    if most <= len(known):
        return known[order]
    missing = np.setdiff1d(np.arange(len(column)), known, assume_unique=True)
    return np.concatenate([known[order], missing])


def _rows(reader: RunReader, is_wide: bool) -> pa.Table:
    """These columns of all training trajectories of a run, as they are now."""
    with _KNOWN:  # lru_cache alone would let two first visitors read a run twice
        known = _indexed_run(reader.run_dir.resolve(), reader.key, is_wide)
    with known.lock:
        offset = reader.next_offset()
        if offset < known.offset:  # the run was cut: nothing of it is certain
            known.rows, known.settled = known.schema.empty_table(), 0
        if offset != known.offset:
            _read_on(reader, known)
            known.offset = offset
        return known.rows


def _may_change(status: str, score: str | None) -> bool:
    """Return whether a trajectory has not ended, or waits for its reward."""
    return status in _OPEN or (status in _WAITING and score is None)


def _read_on(reader: RunReader, known: _IndexedRun) -> None:
    """Read all rows again that may have changed."""
    is_audited = read_config(reader.run_dir)["reward"]["audit"] is not None
    if is_audited and known.offset >= 0 and "audit_status" in known.schema.names:
        # An audit comes behind the reward, of whichever answer.
        for batch in read_batches(reader.journal, known.offset, _SEGMENT_INDEX):
            audits = batch.filter(pc.equal(batch.column("kind"), AuditArrived.__name__))
            known.settled = min([known.settled, *audits.column("trajectory_id").to_pylist()])
    ids = known.rows.column("trajectory_id").to_numpy()
    kept = int(np.searchsorted(ids, known.settled))
    t, schema = Trajectory, known.schema
    query = (
        select(*(COLUMNS_OF[name] for name in schema.names), t.reward_status)
        .where(t.run == reader.key, t.purpose == "train", t.trajectory_id >= known.settled)
        .order_by(t.trajectory_id)
    )
    tables = [known.rows.slice(0, kept)]
    first_open: int | None = None
    newest = int(ids[kept - 1]) if kept else -1
    found = reader.tuples(query)
    while rows := list(islice(found, _ROWS)):
        columns: Sequence[Any] = list(zip(*rows, strict=True))
        arrays = [array_of(kind, values) for values, kind in zip(columns, schema, strict=False)]
        tables.append(pa.Table.from_arrays(arrays, schema=schema))
        newest = columns[0][-1]
        if first_open is None:
            triples = zip(columns[0], columns[2], columns[-1], strict=True)
            first_open = next((key for key, *about in triples if _may_change(*about)), None)
    # A dictionary of its own for each piece would not do for what is asked of the column.
    known.rows = pa.concat_tables(tables).unify_dictionaries()
    if len(tables) > 2 or known.rows.column(0).num_chunks > _CHUNKS:
        known.rows = known.rows.combine_chunks()
    known.settled = newest + 1 if first_open is None else first_open
