"""Rows kept between being made and being written.

What the first rows of a file must be, and which columns it has, is known when all rows have been
seen. Making them is the larger part of the work, so they wait and are not made twice: few of them
in memory, more in two files beside the target, what neighbours share in one of them.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from storage.exports.packed_rows import PackedRows

IN_MEMORY = 96 << 20
"""Bytes of rows that need no files."""


class RowBuffer:
    """Batches of rows; gone when the block ends. `schema`: of the rows."""

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
