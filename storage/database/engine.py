"""Engines: SQLite in the run folder by default, PostgreSQL by URL; and the migrations.

SQLite runs in WAL mode with one writer (the coordinator) and any number of read-only readers. The
WAL is not fsynced at each commit (synchronous NORMAL): the journal is, and SQL is rebuilt from it.
`alembic_version` in the database says which version its tables are of.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, OperationalError, ProgrammingError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateTable

from headrace.config.sections.process import mask_password
from headrace.errors import FormatError, UserError, first_line
from storage.database.tables import Base

SQLITE_NAME = "headrace.sqlite"
DATABASE_VERSION = "0011"
"""The newest migration."""
_BUSY_TIMEOUT_S = 30
_LOCKED_TIMEOUT_S = 5
"""Seconds that a writer of SQLite waits for a writer of another program."""
SERVER_OPTIONS: dict[str, int | str] = {
    "client_encoding": "utf8",
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}
"""Options of connections: text in UTF-8 (of a database without an encoding psycopg makes bytes),
and seconds (milliseconds in tcp_user_timeout) after which an unreachable server counts as gone,
instead of minutes. The URL's own options take precedence."""


class DatabaseAwayError(UserError):
    """A database does not answer, or takes nothing now."""


def open_writer(run_dir: Path, url: str | None, *, statement_s: float = 0) -> Engine:
    """The coordinator's engine, with tables.

    UserError: no such database, or one of another schema; DatabaseAwayError: it does not answer.
    `statement_s`: seconds after which a server gives up a statement; 0: never."""
    if url is None:
        return open_file(run_dir / SQLITE_NAME)
    engine = _server_engine(url, pool_pre_ping=True)
    event.listen(engine, "connect", partial(_write_session, f"{statement_s:.0f}s"))
    engine.dispose()  # the connection that was made before
    check_schema(engine)
    upgrade(engine)
    return engine


def open_file(path: Path) -> Engine:
    """A writing engine for a SQLite file, with tables. UserError: tables of another schema."""
    if path.exists():
        check_schema(read_file(path))
    place = URL.create("sqlite", database=str(path))
    engine = create_engine(place, connect_args={"timeout": _LOCKED_TIMEOUT_S})
    event.listen(engine, "connect", _write_pragmas)
    upgrade(engine)
    return engine


def open_reader(run_dir: Path, url: str | None) -> Engine:
    """A read-only engine. UserError: no SQLite file, or tables of another schema.

    Connections are not kept, so that a reader never holds an old view of the database open."""
    path = (run_dir / SQLITE_NAME).resolve()
    if url is not None:
        readonly = {"postgresql_readonly": True}
        engine = _server_engine(url, execution_options=readonly, poolclass=NullPool)
        event.listen(engine, "handle_error", partial(_away, mask_password(url)))
    elif path.exists():
        engine = read_file(path)
    else:
        raise UserError(f"{run_dir} has no {SQLITE_NAME}: it is not a run folder, or just starting")
    check_schema(engine)
    return engine


def check_schema(engine: Engine) -> None:
    """UserError where there are tables of another schema."""
    try:
        with engine.connect() as connection:
            found = connection.execute(text("select version_num from alembic_version")).scalar()
    except (OperationalError, ProgrammingError):
        return  # there are no tables yet, or their readers report it
    if found not in (None, DATABASE_VERSION):
        where = mask_password(engine.url.render_as_string(hide_password=False))
        raise FormatError(
            where if engine.url.host else engine.url.database, found, DATABASE_VERSION
        )


def read_file(path: Path) -> Engine:
    """An engine for a SQLite file that cannot write."""
    place = URL.create("sqlite", database=str(path))
    return create_engine(place, creator=partial(_connect_reader, path), poolclass=NullPool)


def _connect_reader(path: Path) -> sqlite3.Connection:
    # A folder nobody can write to has no place for the WAL's index. The one of a writer that is
    # there, or was killed, will do; without one the file is whole, and is read as it is.
    beside = (path.with_name(f"{path.name}{ending}") for ending in ("-wal", "-shm"))
    has_place = os.access(path.parent, os.W_OK) or all(file.exists() for file in beside)
    file = f"file:{quote(str(path))}?{'mode=ro' if has_place else 'immutable=1'}"
    return sqlite3.connect(file, timeout=_BUSY_TIMEOUT_S, check_same_thread=False, uri=True)


def upgrade(engine: Engine) -> None:
    """Create the tables of a new database, or run all migrations that it lacks, or nothing."""
    from alembic import command  # only a writer pays for it
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "storage:migrations")  # of a path it would expand a %
    with engine.connect() as connection, _one_transaction(connection):
        if connection.dialect.name == "postgresql":  # runs that begin a database together
            connection.execute(text("select pg_advisory_xact_lock(1198605665)"))
        config.attributes["connection"] = connection
        if inspect(connection).has_table("alembic_version"):
            command.upgrade(config, "head")
        else:
            _make_tables(connection)
            command.stamp(config, "head")


def _make_tables(connection: Connection) -> None:
    """Tables, and their indices in an order that is always the same, those of some rows last: of
    two that serve a query alike SQLite takes the one that was made later."""
    for table in Base.metadata.sorted_tables:
        connection.execute(CreateTable(table))
        for index in sorted(
            table.indexes, key=lambda i: (i.dialect_options["sqlite"]["where"] is not None, i.name)
        ):
            index.create(connection)


@contextmanager
def _one_transaction(connection: Connection) -> Iterator[None]:
    """Let migrations happen as a whole or not at all. PostgreSQL does that by itself; for SQLite,
    Python's driver begins a transaction before rows are changed, and not before tables are."""
    if connection.dialect.name != "sqlite":
        yield
        return
    driver: Any = connection.connection.dbapi_connection
    usual, driver.isolation_level = driver.isolation_level, None
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield
    finally:
        connection.rollback()  # what Alembic did not commit
        driver.isolation_level = usual


def _server_engine(url: str, **options: Any) -> Engine:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:  # the latter: its port is no number
        raise UserError("storage.database is not a database URL") from error
    if parsed.get_backend_name() != "postgresql":
        raise UserError(
            f"storage.database: {parsed.get_backend_name()} is not supported; leave it out for "
            "SQLite or give postgresql+psycopg://user@host/name"
        )
    chosen = {name: value for name, value in SERVER_OPTIONS.items() if name not in parsed.query}
    engine = create_engine(
        parsed.set(drivername="postgresql+psycopg"), connect_args=chosen, **options
    )
    try:
        engine.connect().close()
    except (OperationalError, ProgrammingError) as error:  # the latter: an option of no such name
        where = mask_password(url)
        reason = first_line(error.orig)
        raise DatabaseAwayError(f"cannot reach {where}: {reason}") from error
    return engine


def _away(where: str, context: Any) -> DatabaseAwayError | None:
    """The error of a reader whose server goes away or takes no further connection."""
    error = context.sqlalchemy_exception
    is_away = isinstance(error, OperationalError)
    return DatabaseAwayError(f"cannot read {where}: {first_line(error.orig)}") if is_away else None


def _write_session(statement_timeout: str, connection: Any, _: Any) -> None:
    """Set keepalives, so that the transaction of a writer whose host is gone is rolled back."""
    for name in ("idle", "interval", "count"):
        connection.execute(f"set tcp_keepalives_{name} = {SERVER_OPTIONS[f'keepalives_{name}']}")
    connection.execute(f"set statement_timeout = '{statement_timeout}'")
    connection.commit()


def _write_pragmas(connection: Any, _: Any) -> None:
    # The WAL grows for as long as an export or an audit reads, and would keep its size after it.
    wal_kept = f"journal_size_limit={256 << 20}"
    for pragma in ("journal_mode=WAL", wal_kept, "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")
