"""Exports: what a run holds as files that any program opens.

In: a run's folder, a kind of rows, a format. Out: one file, or a folder for `datasets`. Promises:
all of it is one moment of the run, though it be going on; rows stream in bounded memory; what
cannot be written is a UserError before anything is done; the file appears under its name only when
it is whole, and one that exists is an error unless forced; nothing is left of an export that
failed. A value of each column is among the first rows, columns without any value are left out.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

import pyarrow as pa

from headrace.errors import UserError
from storage.database.filters import Filter, parse
from storage.database.reader import RunReader, open_run
from storage.exports.columns import ColumnNames, type_name
from storage.exports.leading_rows import LeadingRows
from storage.exports.metrics import MetricRows
from storage.exports.packed_rows import ExportRows, RowBuffer
from storage.exports.query_rows import ScoreRows, WindowRows
from storage.exports.tokens import TokenRows
from storage.exports.training_answers import PreferenceRows, SftRows
from storage.exports.trajectories import TrajectoryRows
from storage.exports.writers import DATASET_FILES, DATASETS, FORMATS, open_writer, row_groups

EXPORT_FORMAT = 3
"""In the metadata of Parquet and Arrow files, as `format`; JSONL and CSV have no place for it."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MakeRows = Callable[[RunReader, Filter | None, ColumnNames], ExportRows]
KINDS: dict[str, dict[str, MakeRows]] = {
    "trajectories": {"native": TrajectoryRows},
    "tokens": {"native": TokenRows},
    "metrics": {"native": MetricRows},
    "windows": {"native": WindowRows},
    "scores": {"native": ScoreRows},
    "preferences": {name: partial(PreferenceRows, layout=name) for name in ("native", "trl")},
    "sft": {name: partial(SftRows, layout=name) for name in ("native", "trl", "verl", "turns")},
}
"""Kinds of rows, and the schemas in which each can be had."""


class ExportProgress(NamedTuple):
    """Progress of an export: the share of its work, 0 to 1, and the rows so far."""

    share: float
    rows: int


ProgressCallback = Callable[[ExportProgress], None]


@dataclass(frozen=True)
class ExportSummary:
    """The written export. `left_out`: columns that no row has a value in."""

    path: Path
    rows: int
    num_bytes: int
    left_out: tuple[str, ...]


def export(
    run_dir: Path,
    kind: str,
    fmt: str | None,
    out: Path,
    where: str | None = None,
    force: bool = False,
    columns: ColumnNames = None,
    schema: str = "native",
    watch: ProgressCallback | None = None,
    csv_safe: bool = False,
) -> ExportSummary:
    """Write an export.

    `fmt` None: by the ending of `out`; `columns` None: all of them; `csv_safe`: no text of a CSV is
    a spreadsheet's formula. UserError: unknown kind, schema, format or column, an unfit filter, an
    existing or unwritable target.
    """
    folder = fmt == DATASETS
    check_target(out, folder=folder, force=force)
    if kind not in KINDS:
        raise UserError(f"cannot export {kind}; there are: {', '.join(KINDS)}")
    if schema not in KINDS[kind]:
        known = ", ".join(KINDS[kind])
        raise UserError(f"{kind} cannot be had in the schema {schema!r}; there is: {known}")
    fmt = fmt or out.suffix.removeprefix(".")
    if fmt not in FORMATS:
        raise UserError(f"unknown format {fmt or out.name!r}; there are: {', '.join(FORMATS)}")
    if csv_safe and fmt != "csv":
        raise UserError(f"--csv-safe is for csv, not for {fmt}")
    condition = parse(where) if where else None
    say = watch or (lambda _: None)
    with part_of(out, folder=folder) as part, open_run(run_dir).moment() as reader:
        rows = KINDS[kind][schema](reader, condition, columns)
        about = {
            "format": EXPORT_FORMAT, "kind": kind, "schema": schema, "run_id": reader.run_id,
            "where": where,
        }  # fmt: skip
        with RowBuffer(part.with_suffix(".rows"), rows.schema) as spool:
            leading = LeadingRows(rows.schema, by_text=fmt == "csv")
            count = _gather(rows, leading, spool, say)
            kept = _described(rows.schema, leading.empty, about)
            words = spool.dictionaries()
            with closing(open_writer(fmt, part, kept, words, csv_safe=csv_safe)) as writer:
                written = 0
                others = leading.others(spool.parts(), kept.names)
                for batch in row_groups(chain(leading.rows(kept.names), others)):
                    writer.write(batch.replace_schema_metadata(kept.metadata))
                    written += batch.num_rows
                    say(ExportProgress(0.5 + written / count / 2, count))
        num_bytes = sum(path.stat().st_size for path in (part.iterdir() if folder else (part,)))
    say(ExportProgress(1.0, count))
    return ExportSummary(out, count, num_bytes, tuple(leading.empty))


def _gather(rows: ExportRows, leading: LeadingRows, spool: RowBuffer, say: ProgressCallback) -> int:
    """Make all rows and look at them; returns how many there are."""
    total, done, count = rows.total(), 0, 0
    for made in rows.parts():
        done += made.done
        count += made.rows.num_rows
        if made.rows.num_rows:
            leading.look(made.rows)
            spool.add(made.rows)
        say(ExportProgress(done / max(total, 1) / 2, count))
    return count


def _described(schema: pa.Schema, empty: Sequence[str], about: dict[str, object]) -> pa.Schema:
    """The columns with values, and metadata for a reader of the file.

    The columns' types and meanings are repeated as JSON, for readers that ignore those of Arrow
    fields."""
    kept = pa.schema([field for field in schema if field.name not in empty])
    if not kept.names:
        raise UserError(f"there is no value in {', '.join(empty)}: nothing to export")
    columns = {
        field.name: {"type": type_name(field.type), "meaning": field.metadata[b"meaning"].decode()}
        for field in kept
    }
    return kept.with_metadata(
        {
            **{name: str(value) for name, value in about.items() if value is not None},
            "left_out": json.dumps(list(empty)),
            "columns": json.dumps(columns),
        }
    )


# -- the target: a file, or a folder for `datasets`, complete or absent ----------------------------


def check_target(out: Path, *, folder: bool, force: bool) -> None:
    """UserError where the target cannot be, or exists and is not to be replaced."""
    try:
        if out.is_dir() and not folder:
            hint = f"name a file in it, such as {out / 'export.parquet'}"
            raise UserError(f"{out} is a folder; {hint}")
        if folder and out.is_file():
            raise UserError(f"{out} is a file, and a dataset is a folder; name another one")
        if out.exists() and not out.is_dir() and not out.is_file():
            raise UserError(f"{out} is not a regular file")
        if out.is_dir() and force and not is_dataset(out) and any(out.iterdir()):
            raise UserError(f"{out} holds other things than a dataset; name another folder")
        if out.exists() and not force:
            raise UserError(f"{out} exists; --force replaces it")
        if not out.parent.is_dir():
            raise UserError(f"{out.parent} is not a folder")
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}") from error


def is_dataset(folder: Path) -> bool:
    """Return whether a folder holds the files of an exported dataset alone."""
    return {path.name for path in folder.iterdir()} == set(DATASET_FILES)


@contextmanager
def part_of(out: Path, *, folder: bool) -> Iterator[Path]:
    """A file or folder in a private one beside the target, renamed to it if the block succeeds."""
    try:
        hidden = Path(mkdtemp(dir=out.parent, prefix=f".{out.name}.", suffix=".part"))
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}") from error
    part = hidden / "part"
    try:
        if folder:
            part.mkdir()
        yield part
        for path in part.iterdir() if folder else (part,):
            with path.open("rb") as file:
                os.fsync(file.fileno())
        if out.is_dir():
            shutil.rmtree(out)
        part.replace(out)
    except OSError as error:
        if error.errno in _FULL:
            raise UserError(f"cannot write {out}: {os.strerror(error.errno)}") from error
        raise
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
