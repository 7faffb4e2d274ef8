"""Files of a dataset to records: JSON, JSONL (also .gz) and Parquet.

In: a path, or a glob such as `data/train-*.parquet`. Out: one dict per row, in the files' order,
with the number of the row from 1. A row that is a list of turns (ORZ) is the column
`conversations`. A missing or unreadable file is a UserError that names the file and the row.
"""

import glob
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import UserError

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")
TURN_KEYS = {"from", "value", "ground_truth"}
Record = dict[str, Any]


def find_files(path: str) -> list[Path]:
    """The files that `path` names, sorted; a glob may name several."""
    direct = Path(os.path.expanduser(path))
    if direct.is_file():
        files = [direct]
    elif direct.is_dir():
        inside = sorted(str(file) for file in direct.rglob("*") if file.name.endswith(SUFFIXES))
        known = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        hint = f"such as {inside[0]}" if inside else f"(it holds no {known})"
        raise UserError(f"dataset {path} is a folder: name one of its files {hint}, or a glob")
    else:
        files = [Path(file) for file in sorted(glob.glob(str(direct)))]
    if not files:
        raise UserError(f"dataset {path} does not exist: check the path, relative to {Path.cwd()}")
    for file in files:
        if not file.name.endswith(SUFFIXES):
            raise UserError(f"dataset {file}: expected a name ending in {', '.join(SUFFIXES)}")
    return files


def read_records(file: Path) -> Iterator[tuple[int, Record]]:
    """(number, record) in the file's order, from 1. JSONL counts lines and skips blank ones; a
    .json file is a list of rows, or lines."""
    if file.suffix == ".parquet":
        yield from _read_parquet(file)
        return
    packed, form = file.suffix == ".gz", "utf-8-sig"  # Windows writes a mark
    try:
        with gzip.open(file, "rt", encoding=form) if packed else file.open(encoding=form) as text:
            yield from _read_list(file, text) if _is_list(file, text) else _read_jsonl(file, text)
    except (OSError, zlib.error) as error:
        raise UserError(f"{file}: cannot be read ({error})") from error


def _is_list(file: Path, stream: TextIO) -> bool:
    """Return whether a .json file is one list of rows. Lines of lists (ORZ's rows) begin alike, and
    are recognized by the text after the first one."""
    if file.suffix != ".json":
        return False
    try:
        head = next(filter(str.strip, stream), "")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}, after row 0: cannot be read ({error})") from error
    stream.seek(0)
    return head.lstrip().startswith("[") and not _is_row(head)


def _is_row(line: str) -> bool:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(row, list) or not row:
        return False
    return all(isinstance(turn, dict) and turn.keys() <= TURN_KEYS for turn in row)


def _read_list(file: Path, stream: TextIO) -> Iterator[tuple[int, Record]]:
    try:
        rows = json.load(stream)
    except json.JSONDecodeError as error:
        raise UserError(f"{file}, line {error.lineno}: not JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: cannot be read ({error})") from error
    for number, row in enumerate(rows, start=1):
        yield number, _record(row, f"{file}, row {number}")


def _read_jsonl(file: Path, stream: TextIO) -> Iterator[tuple[int, Record]]:
    line = 0
    try:
        for line, text in enumerate(stream, start=1):
            if text.strip():
                yield line, _record(json.loads(text), f"{file}, row {line}")
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise UserError(f"{file}, after row {line}: cannot be read ({error})") from error
    except (ValueError, RecursionError) as error:  # also of a number of thousands of digits
        told = getattr(error, "msg", error)
        raise UserError(f"{file}, row {line}: not JSON ({told})") from error


def _record(row: object, where: str) -> Record:
    if isinstance(row, list) and row and all(isinstance(turn, dict) for turn in row):
        return {"conversations": row}
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected a JSON object")
    return row


def _read_parquet(file: Path) -> Iterator[tuple[int, Record]]:
    try:
        with pq.ParquetFile(file) as table:
            batches = table.iter_batches(batch_size=1024)
            records = chain.from_iterable(batch.to_pylist() for batch in batches)
            yield from enumerate(records, start=1)
    except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
        raise UserError(f"{file}: not a Parquet file that can be read ({error})") from error


def lacking(record: Record, what: str, where: str, names: Sequence[str] = ()) -> UserError:
    """Return the error of a row without `what`, which was looked for under `names`."""
    sought = f"looked for {', '.join(names)}; " if names else ""
    has = ", ".join(sorted(record)) or "nothing"
    return UserError(f"{where}: no {what} ({sought}the row has {has})")
