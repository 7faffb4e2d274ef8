"""Files of each format, written in batches.

In: a path, a schema, batches of it. Out: a Parquet, JSONL, CSV or Arrow file, or a folder for
`datasets`. Promise: readers get the schema's types; in Parquet and Arrow also its metadata.
"""

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from storage.exports.text import csv_header, csv_lines, json_lines

DATASETS = "datasets"
"""A folder that `datasets.load_from_disk` opens."""
DATASET_FILES = ("data-00000-of-00001.arrow", "dataset_info.json", "state.json")
"""The files in it."""
FORMATS = ("parquet", "jsonl", "csv", "arrow", DATASETS)
Dictionaries = Mapping[str, pa.Array]
"""All values of each dictionary column."""
_BATCH_ROWS = 1 << 15
_BATCH_BYTES = 1 << 23
_TEXT_BYTES = 1 << 22
"""As Arrow; as text rows are several times larger."""


class Writer(Protocol):
    """A file that is being written."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""

    def close(self) -> None:
        """No more rows will come."""


def open_writer(
    fmt: str, path: Path, schema: pa.Schema, dictionaries: Dictionaries, *, csv_safe: bool = False
) -> Writer:
    """A new file of a format; `csv_safe` as in `csv_lines`."""
    if fmt == "parquet":
        return _parquet_writer(path, schema)
    if fmt == "arrow":
        return _ArrowWriter(path, schema, dictionaries)
    if fmt == DATASETS:
        return _DatasetWriter(path, schema)
    return _TextWriter(path, schema, fmt, csv_safe)


def row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are worth a row group each."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        rows = sum(each.num_rows for each in waiting)
        if rows >= _BATCH_ROWS or sum(each.nbytes for each in waiting) >= _BATCH_BYTES:
            yield _as_one(waiting)
            waiting = []
    if waiting:
        yield _as_one(waiting)


def _as_one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
    (batch,) = table.to_batches()
    return batch


def _parquet_writer(path: Path, schema: pa.Schema) -> Writer:
    # Numbers of single tokens hardly repeat: looking for repetitions only takes time.
    repeating = [_path(field) for field in schema if _innermost(field.type) != pa.float32()]
    # By least and largest value readers skip row groups: of numbers, where these are in order.
    numbers = [f.name for f in schema if pa.types.is_integer(f.type) or f.type == pa.float64()]
    return pa.parquet.ParquetWriter(
        path, schema, compression="zstd", use_dictionary=repeating, write_statistics=numbers
    )


def _path(field: pa.Field) -> str:
    """Parquet's name of the column."""
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name


def _innermost(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_list(kind) else kind


class _ArrowWriter:
    """An Arrow file has one dictionary per column, complete from the first batch on."""

    def __init__(self, path: Path, schema: pa.Schema, dictionaries: Dictionaries) -> None:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._file = pa.ipc.new_file(str(path), schema, options=options)
        self._dictionaries = dictionaries
        self._schema = schema

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [
            _recoded(column, self._dictionaries[field.name])
            if pa.types.is_dictionary(field.type)
            else column
            for field, column in zip(self._schema, batch.columns, strict=True)
        ]
        self._file.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._file.close()


def _recoded(column: pa.DictionaryArray, dictionary: pa.Array) -> pa.DictionaryArray:
    places = pc.index_in(column.dictionary, value_set=dictionary)
    return pa.DictionaryArray.from_arrays(places.take(column.indices), dictionary)


class _DatasetWriter:
    """A folder for `datasets`: an uncompressed Arrow stream without dictionaries, which it maps
    into memory, and two small files that describe it."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        plain = [
            field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
            for field in schema
        ]
        self._schema = pa.schema(plain, metadata=schema.metadata)
        data, info, state = DATASET_FILES
        self._file = pa.ipc.new_stream(str(folder / data), self._schema)
        told = {name.decode(): text.decode() for name, text in (schema.metadata or {}).items()}
        about = f"Headrace export: {told.get('kind')} of run {told.get('run_id')}"
        (folder / info).write_text(json.dumps({"description": about}), encoding="utf-8")
        settings: dict[str, Any] = {
            "_data_files": [{"filename": data}],
            "_fingerprint": secrets.token_hex(8),
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": "train",
        }
        (folder / state).write_text(json.dumps(settings), encoding="utf-8")

    def write(self, batch: pa.RecordBatch) -> None:
        for part in _parts(batch, _BATCH_BYTES):
            self._file.write_batch(part.cast(self._schema))

    def close(self) -> None:
        self._file.close()


class _TextWriter:
    def __init__(self, path: Path, schema: pa.Schema, fmt: str, csv_safe: bool) -> None:
        self._file = path.open("wb")
        self._lines = partial(csv_lines, safe=csv_safe) if fmt == "csv" else json_lines
        if fmt == "csv":
            self._file.write(csv_header(schema.names).encode())

    def write(self, batch: pa.RecordBatch) -> None:
        for part in _parts(batch, _TEXT_BYTES):
            self._file.write(_bytes_of(self._lines(part)))

    def close(self) -> None:
        self._file.close()


def _parts(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """A batch in parts of about `most` bytes, its words counted in each row that has them."""
    size = batch.nbytes
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            lengths = pc.binary_length(column.dictionary).take(column.indices)
            size += pc.sum(lengths).as_py() or 0
    rows = max(1, batch.num_rows * most // max(size, 1))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


def _bytes_of(lines: pa.StringArray) -> memoryview:
    """All texts one after the other, without a copy."""
    _, offsets, data = lines.buffers()
    borders = memoryview(offsets).cast("i")
    first, last = borders[lines.offset], borders[lines.offset + len(lines)]
    return memoryview(data)[first:last]
