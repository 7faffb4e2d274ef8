"""Batches kept on disk between being made and being written.

What the first rows of a file must be, and which columns it has, is known when all rows have been
seen. Making them is the larger part of the work, so they wait in a file beside the target, and are
not made twice.
"""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pyarrow as pa


class Spool:
    """A file of batches; gone when the block ends."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self._words: dict[str, list[pa.Array]] = {
            field.name: [] for field in schema if pa.types.is_dictionary(field.type)
        }

    def __enter__(self) -> "Spool":
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._file = pa.ipc.new_stream(str(self._path), self._schema, options=options)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._path.unlink(missing_ok=True)

    def add(self, batch: pa.RecordBatch) -> None:
        """One more batch."""
        self._file.write_batch(batch)
        for name, known in self._words.items():
            known.append(batch.column(name).dictionary)
            if len(known) > 64:
                self._words[name] = [pa.concat_arrays(known).unique()]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All batches in order; none can be added any more."""
        self._file.close()
        with pa.OSFile(str(self._path)) as file:
            yield from pa.ipc.open_stream(file)

    def dictionaries(self) -> dict[str, pa.Array]:
        """All values of each dictionary column."""
        return {
            name: pa.concat_arrays([pa.array([], pa.string()), *known]).unique()
            for name, known in self._words.items()
        }
