"""Runs opened for reading: the folder, the configuration and the rows in SQL.

What is of another format than this version's is refused, and nothing of it is touched.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.exc import DatabaseError, SQLAlchemyError

from headrace.errors import FormatError, UserError
from headrace.protocol.records.record_types import RECORD_FORMAT
from headrace.run_files.run_folder import is_reward_model, read_manifest
from storage.database.engine import DatabaseAwayError, open_reader
from storage.database.tables import AnySelect, Projection, Run
from storage.journal.diagnostics import DIAGNOSTICS_FORMAT
from storage.journal.segments import check_format
from storage.journal.store import run_id_of

if TYPE_CHECKING:
    import pandas as pd


_UNREACHABLE: dict[str | None, tuple[float, str]] = {}
"""Servers that did not answer: when, and the error."""
_RETRY_SERVER_S = 5.0
"""Seconds without another try: a list of runs waits once for all runs of a server."""
_FETCH_ROWS = 1 << 14
"""Rows that are fetched at once."""


@dataclass(frozen=True)
class RunReader:
    """Read access to one run. `key`: its `runs.id`; `connection`: that of a reader of one
    moment."""

    run_dir: Path
    run_id: str
    engine: Engine
    key: int
    connection: Connection | None = None

    @property
    def journal(self) -> Path:
        """Folder of the journal."""
        return self.run_dir / "journal"

    @property
    def diagnostics(self) -> Path:
        """Folder of the token diagnostics."""
        return self.run_dir / "diagnostics"

    def rows(self, query: AnySelect) -> Sequence[Any]:
        """All rows of a query."""
        with self._connected() as connection:
            return connection.execute(query).all()

    def value(self, query: AnySelect) -> Any:
        """The first column of a query's first row; None where there is none."""
        return next((row[0] for row in self.rows(query)), None)

    def count(self, query: AnySelect) -> int:
        """Number of a query's rows."""
        return int(self.value(select(func.count()).select_from(query.subquery())))

    def started_at(self) -> float:
        """Time of the run's first record; 0 before there is one."""
        return float(self.value(select(Run.started_at).where(Run.id == self.key)) or 0.0)

    def next_offset(self) -> int:
        """The first offset of the journal that SQL does not have."""
        return int(self.value(select(Projection.next_offset).where(Projection.run == self.key)))

    def stream(self, query: AnySelect, size: int) -> Iterator[Sequence[Any]]:
        """The rows of a query in batches, without holding all of them in memory."""
        with self._connected() as connection:
            result = connection.execute(query.execution_options(yield_per=size))
            yield from result.partitions(size)

    def tuples(self, query: AnySelect) -> Iterator[tuple[Any, ...]]:
        """Stream a query's rows as the driver has them, several times as fast as `rows`. Truth
        values may be 0 and 1, and JSON is the driver's."""
        for rows in self._fetched(query, _FETCH_ROWS):
            yield from rows

    def columns(self, query: AnySelect, size: int) -> Iterator[Sequence[Sequence[Any]]]:
        """Stream a query's columns in batches of rows; values may be as in `tuples`."""
        for rows in self._fetched(query, size):
            yield list(zip(*rows, strict=True))

    def _fetched(self, query: AnySelect, size: int) -> Iterator[Sequence[Any]]:
        if self.engine.dialect.name != "sqlite":
            yield from self.stream(query, size)  # a server makes all rows at once unless told
            return
        with self._connected() as connection:
            result = connection.execute(query)
            assert result.cursor is not None
            while rows := result.cursor.fetchmany(size):
                yield rows
            result.close()

    @contextmanager
    def moment(self) -> Iterator["RunReader"]:
        """A reader of one state of the database, whatever is written meanwhile."""
        with self.engine.connect() as connection:
            if self.engine.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN")  # the driver begins nothing for a SELECT
            else:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield replace(self, connection=connection)

    def _connected(self) -> AbstractContextManager[Connection]:
        return self.engine.connect() if self.connection is None else nullcontext(self.connection)

    def frame(self, query: AnySelect) -> "pd.DataFrame":
        """A query's rows as a frame with the query's column names."""
        import pandas as pd

        with self._connected() as connection:
            result = connection.execute(query)
            return pd.DataFrame(result.all(), columns=list(result.keys()))


def open_run(run_dir: Path) -> RunReader:
    """A run for reading; UserError where the folder holds none, or one of another format.
    DatabaseAwayError: its server does not answer."""
    config = read_config(run_dir)
    run_id, url = run_id_of(run_dir), config.get("storage", {}).get("database")
    since, trouble = _UNREACHABLE.get(url, (0.0, ""))
    if trouble and time.monotonic() - since < _RETRY_SERVER_S:
        raise DatabaseAwayError(trouble)
    known = select(Run.id, Projection.format).join(Projection).where(Run.run_id == run_id)
    began = time.monotonic()
    try:
        engine = _engine(run_dir.resolve(), url)
        with engine.connect() as connection:
            row = connection.execute(known).one_or_none()
    except (DatabaseError, UserError) as error:
        if isinstance(error, DatabaseError):
            error = UserError(f"the database of {run_dir} cannot be read: {error.orig}")
        if url is not None and time.monotonic() - began > _RETRY_SERVER_S / 5:
            _UNREACHABLE[url] = time.monotonic(), str(error)
        raise error
    if row is None:
        raise UserError(f"the database of {run_dir} does not know run {run_id}")
    if row.format != RECORD_FORMAT:
        raise FormatError(f"what the database holds of {run_dir}", row.format, RECORD_FORMAT)
    return RunReader(run_dir, run_id, engine, row.id)


def check_formats(run_dir: Path) -> None:
    """FormatError where the journal, diagnostics, a checkpoint or rows have another format. A
    reader that needs an unreadable part reports it."""
    _check_segments(run_dir)
    for path in sorted((run_dir / "checkpoints").glob("step_*")):
        with suppress(OSError, ValueError):
            read_manifest(path)
    try:
        open_run(run_dir)
    except FormatError:
        raise
    except (UserError, SQLAlchemyError, ValueError):
        pass


def read_config(run_dir: Path) -> dict[str, Any]:
    """The resolved configuration of a run as JSON."""
    path = run_dir / "resolved.json"
    if is_reward_model(run_dir):
        raise UserError(f"{run_dir.name} trained a reward model: it has no trajectories or updates")
    if not path.exists():
        raise UserError(f"{run_dir} is not a run folder: it has no resolved.json")
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} is not the configuration of a run")
    return values


@lru_cache(maxsize=128)
def _engine(run_dir: Path, url: str | None) -> Engine:
    _check_segments(run_dir)
    return open_reader(run_dir, url)


def _check_segments(run_dir: Path) -> None:
    check_format(run_dir / "journal", RECORD_FORMAT)
    check_format(run_dir / "diagnostics", DIAGNOSTICS_FORMAT)
