"""Exports: trajectories, tokens and metrics as files.

In: a run's folder. Out: one Parquet, JSONL, CSV or Arrow file. Rows stream in bounded memory; the
file appears under its name only when it is whole, and a target that exists is an error unless
forced. `trajectories` is one row a response (texts, token lists, reward, versions), `tokens` one
row a response token, `metrics` one row a number.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from headrace.errors import StorageBlockedError, UserError
from storage.export_rows import KINDS, Rows
from storage.filters import parse
from storage.reader import open_run

EXPORT_FORMAT = 2
"""In the metadata of Parquet and Arrow files, as `format` beside `kind` and `run_id`. JSONL and CSV
have no place for it. 1: what files without it have."""
ExportKind = Literal["trajectories", "tokens", "metrics"]
FORMATS = ("parquet", "jsonl", "csv", "arrow")
Progress = Callable[[int], None]


@dataclass(frozen=True)
class ExportSummary:
    """What was written."""

    path: Path
    rows: int
    num_bytes: int


class _Writer(Protocol):
    def write(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> None: ...


def export(
    run_dir: Path,
    kind: str,
    fmt: str | None,
    out: Path,
    where: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> ExportSummary:
    """Write an export; `fmt` None: by the ending of `out`. `progress` is told the rows so far.

    UserError: unknown kind or format, a filter that does not fit, a target that exists.
    """
    if kind not in KINDS:
        raise UserError(f"cannot export {kind}; there are: {', '.join(KINDS)}")
    fmt = fmt or out.suffix.removeprefix(".")
    if fmt not in FORMATS:
        raise UserError(f"unknown format {fmt or out.name!r}; there are: {', '.join(FORMATS)}")
    if out.exists() and not force:
        raise UserError(f"{out} exists; --force replaces it")
    if not out.parent.is_dir():
        raise UserError(f"{out.parent} is not a folder")
    reader = open_run(run_dir)
    rows = KINDS[kind](reader, parse(where) if where else None)
    metadata = {"format": str(EXPORT_FORMAT), "kind": kind, "run_id": reader.run_id}
    count = 0
    with _part_of(out) as part:
        writer = _writer(fmt, part, rows.schema.with_metadata(metadata))
        try:
            for batch in _batches(rows):
                writer.write(batch)
                count += batch.num_rows
                if progress is not None:
                    progress(count)
        finally:
            writer.close()
    return ExportSummary(out, count, out.stat().st_size)


def _batches(rows: Rows) -> Iterator[pa.RecordBatch]:
    for batch in rows.batches():
        if batch.num_rows:
            yield batch


@contextmanager
def _part_of(out: Path) -> Iterator[Path]:
    """A temporary name beside the target; the file gets the target's name when it is whole, else it
    is removed."""
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(out)
    except OSError as error:
        if error.errno in (28, 122):
            raise StorageBlockedError(f"room for {out}") from error
        raise
    finally:
        part.unlink(missing_ok=True)


def _writer(fmt: str, path: Path, schema: pa.Schema) -> _Writer:
    if fmt == "parquet":
        return _ParquetWriter(path, schema)
    if fmt == "jsonl":
        return _JsonWriter(path)
    if fmt == "csv":
        return _CsvWriter(path, schema)
    return pa.ipc.new_file(str(path), schema)


class _ParquetWriter:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._writer = pa.parquet.ParquetWriter(path, schema, compression="zstd")

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _JsonWriter:
    """One JSON object a line. NaN and infinities, which JSON does not have, become null."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            self._file.write(json.dumps(_jsonable(row), ensure_ascii=False, allow_nan=False) + "\n")

    def close(self) -> None:
        self._file.close()


class _CsvWriter:
    """Flat columns as they are, lists as JSON text."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._nested = {f.name for f in schema if pa.types.is_nested(f.type)}
        flat = [pa.field(f.name, pa.string()) if f.name in self._nested else f for f in schema]
        self._writer = pa.csv.CSVWriter(str(path), pa.schema(flat))
        self._schema = pa.schema(flat)

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [
            pa.array([json.dumps(_jsonable(v)) for v in column.to_pylist()])
            if name in self._nested
            else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def _jsonable(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    return value
