"""Rows of which neighbours may share values, which are stored once until they are needed.

In: columns with a value for each row, and columns with a value for several rows in succession: the
tokens of a response share what is known of it. Out: plain Arrow columns and batches of all rows.
Promise: a column is made only on demand.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage.exports.columns import array_of
from storage.journal.responses import Int64

IN_MEMORY = 96 << 20
"""Bytes of rows that need no files."""


class PackedRows(NamedTuple):
    """Rows with their columns, in any order. `own` has a value for each row; the i-th value of
    `shared` is that of `sizes[i]` rows, one after the other."""

    schema: pa.Schema
    own: pa.RecordBatch
    shared: pa.RecordBatch
    sizes: Int64

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.sizes.sum())

    @property
    def nbytes(self) -> int:
        """About how many bytes the rows have one by one."""
        shared = self.shared.nbytes * self.num_rows // max(len(self.sizes), 1)
        return int(self.own.nbytes + shared)

    def kept(self, name: str) -> pa.Array:
        """A column as it is kept."""
        where = self.shared if name in self.shared.schema.names else self.own
        return where.column(name)

    def spread(self, name: str, values: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
        """Something said of each value that is kept of a column, for each row."""
        return values.repeat(self.sizes) if name in self.shared.schema.names else values

    def column(self, name: str) -> pa.Array:
        """A column with a value for each row."""
        if name in self.shared.schema.names:
            return repeated(self.shared.column(name), self.sizes)
        return self.own.column(name)

    def batch(self, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """All rows; `names`: these columns alone, in this order."""
        chosen = self.schema if names is None else pa.schema(map(self.schema.field, names))
        return pa.RecordBatch.from_arrays([self.column(f.name) for f in chosen], schema=chosen)

    def row(self, number: int) -> pa.RecordBatch:
        """A row by its number, as a batch that does not hold the others in memory."""
        owner = int(np.searchsorted(self.sizes.cumsum(), number, side="right"))
        one = PackedRows(
            self.schema, _taken(self.own, [number]), _taken(self.shared, [owner]), np.ones(1, int)
        )
        return one.batch()

    def where(self, condition: pa.compute.Expression, names: Collection[str]) -> "PackedRows":
        """The rows for which a condition on some columns holds."""
        asked = self.batch([name for name in self.schema.names if name in names])
        numbered = asked.append_column("number of the row", pa.array(np.arange(self.num_rows)))
        rows = numbered.filter(condition).columns[-1].to_numpy()
        owners = np.searchsorted(self.sizes.cumsum(), rows, side="right")
        sizes = np.bincount(owners, minlength=len(self.sizes)).astype(np.int64)
        return self._replace(own=_taken(self.own, rows), sizes=sizes)

    def select(self, schema: pa.Schema) -> "PackedRows":
        """Some columns."""
        own, shared = (
            batch.select([name for name in batch.schema.names if name in schema.names])
            for batch in (self.own, self.shared)
        )
        return PackedRows(schema, own, shared, self.sizes)


def plain(batch: pa.RecordBatch) -> PackedRows:
    """Rows that share nothing."""
    nothing = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
    return PackedRows(batch.schema, batch, nothing, np.array([batch.num_rows]))


def from_columns(schema: pa.Schema, columns: Mapping[str, Sequence[Any]]) -> PackedRows:
    """Rows that share nothing, of a list for each of the schema's columns."""
    arrays = [array_of(field, columns[field.name]) for field in schema]
    return plain(pa.RecordBatch.from_arrays(arrays, schema=schema))


def from_rows(schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> PackedRows:
    """Rows that share nothing, one by one."""
    return from_columns(schema, {name: [row[name] for row in rows] for name in schema.names})


def repeated(values: pa.Array, sizes: Int64) -> pa.Array:
    """Repeat each value by its count."""
    kind = values.type
    if values.null_count == len(values):
        return pa.nulls(int(sizes.sum()), kind)
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(repeated(values.indices, sizes), values.dictionary)
    if not pa.types.is_primitive(kind) or kind == pa.bool_():
        whose = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        return values.take(pa.array(whose))
    # Several times as fast as to take.
    known = values if values.null_count == 0 else values.fill_null(0)
    missing = None
    if values.null_count:
        missing = values.is_null().to_numpy(zero_copy_only=False).repeat(sizes)
    return pa.array(known.to_numpy().repeat(sizes), type=kind, mask=missing)


def _taken(batch: pa.RecordBatch, rows: Sequence[int] | Int64) -> pa.RecordBatch:
    return batch.take(pa.array(rows, type=pa.int64())) if batch.num_columns else batch


class ExportPart(NamedTuple):
    """Rows, and the number `done` of the things in `ExportRows.total` that made them."""

    done: int
    rows: PackedRows


class ExportRows(Protocol):
    """A kind's rows. The schema's fields say what they mean."""

    schema: pa.Schema

    def total(self) -> int:
        """Number of things (trajectories, numbers, windows) that have to be read."""

    def parts(self) -> Iterator[ExportPart]:
        """Rows in batches of bounded size; a batch may have none."""


class RowBuffer:
    """Batches of rows of a schema, kept until the last is made; gone when the block ends.

    What the first rows of a file must be, and which columns it has, is known when all rows have
    been seen. Making them is the larger part of the work, so they wait and are not made twice: few
    of them in memory, more in two files beside the target, what neighbours share in one of them."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._paths = (path.with_suffix(".own"), path.with_suffix(".shared"))
        self._schema = schema
        self._files: list[pa.ipc.RecordBatchStreamWriter] = []
        self._waiting: list[PackedRows] = []
        self._size = 0
        self._words: dict[str, list[pa.Array]] = {
            field.name: [] for field in schema if pa.types.is_dictionary(field.type)
        }

    def __enter__(self) -> "RowBuffer":
        return self

    def __exit__(self, *error: object) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)

    def add(self, rows: PackedRows) -> None:
        """Some more rows."""
        for name, known in self._words.items():
            known.append(rows.kept(name).dictionary)
            if len(known) > 64:
                self._words[name] = [pa.concat_arrays(known).unique()]
        self._waiting.append(rows)
        self._size += rows.own.nbytes + rows.shared.nbytes
        if self._size > IN_MEMORY:
            for each in self._waiting:
                self._write(each)
            self._waiting = []

    def _write(self, rows: PackedRows) -> None:
        sizes = pa.array(rows.sizes, type=pa.int64())
        names = [*rows.shared.schema.names, "sizes"]
        batches = (rows.own, pa.RecordBatch.from_arrays([*rows.shared.columns, sizes], names))
        if not self._files:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._files = [
                pa.ipc.new_stream(str(path), batch.schema, options=options)
                for path, batch in zip(self._paths, batches, strict=True)
            ]
        for file, batch in zip(self._files, batches, strict=True):
            file.write_batch(batch)

    def parts(self) -> Iterator[PackedRows]:
        """All rows in order; none can be added any more."""
        for file in self._files:
            file.close()
        if not self._files:
            yield from self._waiting
            return
        with ExitStack() as stack:
            owned, shared = (
                pa.ipc.open_stream(stack.enter_context(pa.OSFile(str(path))))
                for path in self._paths
            )
            for own, sized in zip(owned, shared, strict=True):
                sizes = sized.column("sizes").to_numpy()
                yield PackedRows(self._schema, own, sized.select(sized.schema.names[:-1]), sizes)

    def dictionaries(self) -> dict[str, pa.Array]:
        """All values of each dictionary column."""
        return {
            name: pa.concat_arrays([pa.array([], pa.string()), *known]).unique()
            for name, known in self._words.items()
        }
