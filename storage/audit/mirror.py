"""Is SQL what the journal makes of it? Every row, projected again and compared.

Comes in: a run's folder, a reader that sees one moment of its database, and how far that follows
the journal. Goes out: findings for a database whose structure is damaged, and for every row that is
missing, too many or has another value. The journal is projected into a file of its own that is
gone afterwards; `metric_info` is the code's and not the journal's, and is not looked at.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, Table, Text, collate, create_engine, select
from sqlalchemy.exc import SQLAlchemyError

from headrace.errors import UserError
from storage import projection
from storage.audit.findings import Findings
from storage.audit.reading import UNREADABLE, Records
from storage.database.reader import RunReader, open_run
from storage.database.tables import Base, Run

TOGETHER = 4096
"""So many records are projected in one transaction."""
_AT_ONCE = 10_000
_MOST_FAULTS = 5
_AnyRow = Row[Any]


def _check_structure(connection: Connection, findings: Findings) -> bool:
    """Let SQLite look at every page, index and constraint of its file; whether all is whole."""
    if connection.dialect.name != "sqlite":
        return True
    found = 0
    for (text,) in connection.exec_driver_sql(f"PRAGMA integrity_check({_MOST_FAULTS})"):
        if text != "ok":
            found += 1
            findings.add("sql", "database", f"its file is damaged: {' '.join(text.split())}")
    return not found


@contextmanager
def moment(run_dir: Path, findings: Findings) -> Iterator[RunReader | None]:
    """A reader that sees the database as it is now, whatever is written meanwhile; None where it
    cannot be read, which is a finding."""
    try:
        reader = open_run(run_dir)
    except (UserError, SQLAlchemyError, *UNREADABLE) as error:
        findings.add("sql", "database", f"cannot be read: {error}".splitlines()[0])
        yield None
        return
    with reader.moment() as now:
        assert now.connection is not None
        try:
            is_whole = _check_structure(now.connection, findings)
        except SQLAlchemyError as error:
            findings.add("sql", "database", f"cannot be read: {error}".splitlines()[0])
            is_whole = False
        yield now if is_whole else None


def check_rows(
    run_dir: Path, config: Mapping[str, Any], now: RunReader, end: int, findings: Findings
) -> None:
    """Compare all rows of a run with those that its first `end` records make."""
    theirs = now.connection
    assert theirs is not None
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        engine = create_engine(f"sqlite:///{folder}/again.sqlite")
        try:
            with engine.begin() as ours:
                ours.exec_driver_sql("PRAGMA synchronous = OFF")  # nobody wants it after a crash
                Base.metadata.create_all(ours)
                run = projection.register(ours, now.run_id, config)
                records = iter(journaled := Records(run_dir / "journal", end))
                while reads := list(islice(records, TOGETHER)):
                    projection.apply(ours, run, reads)
                if journaled.reached < end:
                    return  # it has been told why
                for table in Base.metadata.sorted_tables:
                    if "run" in table.c or table is Run.__table__:
                        _compare(table, (ours, run), (theirs, now.key), findings)
        except (SQLAlchemyError, *UNREADABLE) as error:
            text = f"cannot be compared with the journal: {error}".splitlines()[0]
            findings.add("sql", "database", text)
        finally:
            engine.dispose()


def _compare(
    table: Table, ours: tuple[Connection, int], theirs: tuple[Connection, int], findings: Findings
) -> None:
    keys = [column.name for column in table.primary_key if column.name not in ("run", "id")]
    # A resume may change resolved.json; `config` is the one that the run began with.
    rest = [c.name for c in table.c if c.name not in ("run", "id", "config", *keys)]
    names = [*keys, *rest]
    for mine, other in _pairs(_rows(table, names, keys, ours), _rows(table, names, keys, theirs),
                              len(keys)):  # fmt: skip
        either = mine or other
        assert either is not None
        where = " ".join([table.name, ", ".join(str(value) for value in either[: len(keys)])])
        if mine is None:
            findings.add("sql", where.strip(), "the journal makes no such row")
        elif other is None:
            findings.add("sql", where.strip(), "the row is missing")
        else:
            for name, wanted, found in zip(names, mine, other, strict=True):
                if found != wanted and repr(found) != repr(wanted):  # NaN is no other NaN
                    text = f"{name} is {found!r:.80} and the journal says {wanted!r:.80}"
                    findings.add("sql", where.strip(), text)


def _rows(
    table: Table, names: list[str], keys: list[str], of: tuple[Connection, int]
) -> Iterator[_AnyRow]:
    connection, run = of
    is_text = connection.dialect.name == "postgresql"  # there each database has an order of its own
    order = [
        collate(table.c[name], "C") if is_text and isinstance(table.c[name].type, Text)
        else table.c[name] for name in keys
    ]  # fmt: skip
    owner = table.c.run if "run" in table.c else table.c.id
    query = select(*(table.c[name] for name in names)).where(owner == run).order_by(*order)
    yield from connection.execute(query.execution_options(yield_per=_AT_ONCE))


def _pairs(
    left: Iterator[_AnyRow], right: Iterator[_AnyRow], width: int
) -> Iterator[tuple[_AnyRow | None, _AnyRow | None]]:
    """Rows of two sorted sides whose first `width` values are equal; None for one without a
    partner."""
    mine, other = next(left, None), next(right, None)
    while mine is not None or other is not None:
        is_mine = other is None or (mine is not None and mine[:width] <= other[:width])
        is_other = mine is None or (other is not None and other[:width] <= mine[:width])
        yield (mine if is_mine else None), (other if is_other else None)
        mine = next(left, None) if is_mine else mine
        other = next(right, None) if is_other else other
