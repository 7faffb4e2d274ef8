"""Questions to a run in SQL, answered by DuckDB.

In: a run's folder, one SELECT. Out: the answer's columns and rows. The tables are the kinds of
exports, handed over as Arrow batches while DuckDB reads them, so that it needs no driver of the
run's database, and columns that a query does not touch are not made. Promises: a query sees one
moment of the run; it reaches no file, no network and no setting; at its limits of time and memory
it ends with an error.
"""

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import UserError
from storage.database.reader import RunReader, open_run
from storage.exports.job import KINDS, MakeRows

if TYPE_CHECKING:
    import duckdb

TABLES: dict[str, MakeRows] = {
    name: KINDS[name]["native"]
    for name in ("trajectories", "tokens", "metrics", "windows", "scores")
}
_ROWS = 1000
_AGAIN_S = 0.05
_ALONE: dict[str, Any] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    "temp_directory": "",
    # The batches come from one connection to the run's database, which one thread can use.
    "threads": 1,
}


@dataclass(frozen=True)
class QueryResult:
    """The columns' names and the rows, which are read while they are iterated."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


@contextmanager
def ask(
    run_dir: Path, query: str, *, seconds: float = 60.0, memory_mib: int = 1024
) -> Iterator[QueryResult]:
    """Run one SELECT; rows can be read within the block.

    UserError: no SELECT, a mistake in it, something that it may not do, a limit."""
    import duckdb  # only who asks pays for it

    with open_run(run_dir).moment() as reader, closing(_connection(memory_mib)) as connection:
        late, done = threading.Event(), threading.Event()
        watch = threading.Thread(target=_watch, args=(connection, seconds, late, done), daemon=True)
        watch.start()
        try:
            statements = connection.extract_statements(query)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise UserError("query: write one SELECT")
            tables = [_Table(reader, make) for make in TABLES.values()]
            for name, table in zip(TABLES, tables, strict=True):
                connection.register(name, table)
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            words = query + _plan(connection, query)
            for table in tables:
                table.needs(words)
            connection.execute(query)
            names = tuple(column[0] for column in connection.description or ())
            yield QueryResult(names, _rows(connection))
        except duckdb.OutOfMemoryException as error:
            raise UserError(
                f"the query needs more than {memory_mib} MiB of memory; `headrace sql --memory` "
                "allows more"
            ) from error
        except duckdb.Error as error:
            if late.is_set():
                raise UserError(
                    f"the query took longer than {seconds:g} s; `headrace sql --seconds` allows "
                    "more"
                ) from error
            raise UserError(f"query: {_line(error)}") from error
        finally:
            done.set()
            watch.join()


def _connection(memory_mib: int) -> "duckdb.DuckDBPyConnection":
    import duckdb

    settings = {**_ALONE, "memory_limit": f"{memory_mib}MiB"}
    try:
        return duckdb.connect(":memory:", config=settings)
    except duckdb.Error as error:
        raise UserError(f"a memory limit of {memory_mib} MiB: {_line(error)}") from error


def _watch(
    connection: "duckdb.DuckDBPyConnection",
    seconds: float,
    late: threading.Event,
    done: threading.Event,
) -> None:
    """Interrupt the query after a time, repeatedly until it ends: one interrupted between two steps
    goes on."""
    if done.wait(seconds):
        return
    late.set()
    while not done.wait(_AGAIN_S):
        connection.interrupt()


def _plan(connection: "duckdb.DuckDBPyConnection", query: str) -> str:
    """DuckDB's plan of the query; it names every column that is read."""
    found = connection.execute(f"EXPLAIN (FORMAT json) {query}").fetchall()
    return " ".join(str(text) for row in found for text in row)


def _rows(connection: "duckdb.DuckDBPyConnection") -> Iterator[tuple[Any, ...]]:
    while rows := connection.fetchmany(_ROWS):
        yield from rows


def _line(error: "duckdb.Error") -> str:
    """An error without the excerpt of the query, which is what the user sees anyway."""
    lines = str(error).split("\n\nLINE ")[0].splitlines()
    return " ".join(line.strip() for line in lines if line.strip())


class _Table:
    """A kind of rows that DuckDB reads as a table; each read makes the rows again.

    Columns that the query does not need are null, and there, so that an error about a name lists
    the right ones."""

    def __init__(self, reader: RunReader, make: MakeRows) -> None:
        self._reader = reader
        self._make = make
        self._schema: pa.Schema = make(reader, None, None).schema
        self._needed: Sequence[str] = self._schema.names

    def needs(self, text: str) -> None:
        """Make only columns that a text names; one at least."""
        words = {word.lower() for word in re.findall(r"\w+", text)}
        self._needed = [name for name in self._schema.names if name in words] or [
            self._schema.names[0]
        ]

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self._schema, self._batches())
        return reader.__arrow_c_stream__()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for part in self._make(self._reader, None, self._needed).parts():
            columns = [
                part.rows.column(field.name)
                if field.name in self._needed
                else pa.nulls(part.rows.num_rows, field.type)
                for field in self._schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)
