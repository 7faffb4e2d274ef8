"""Writing of rows to SQL: bulk inserts, upserts, values that every database takes."""

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Connection, Dialect, bindparam, insert, update
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql.dml import UpdateBase

from headrace.protocol.records.record_types import MetricsSampled, UpdateCommitted
from storage.database.tables import Base, Event, Metric, MetricArray

PlacedRecord = tuple[int, Any]
"""(journal offset, record)"""
SqlRow = dict[str, Any]


def upsert(
    connection: Connection,
    table: type[Base],
    rows: list[SqlRow],
    *,
    keep: bool = False,
    add: tuple[str, ...] = (),
) -> None:
    """Insert rows; replace those whose primary key exists, or `keep` them, or `add` to columns."""
    if not rows:
        return
    on_server = connection.dialect.name == "postgresql"
    statement = (postgresql_insert if on_server else sqlite_insert)(table)
    keys = [column.name for column in table.__table__.primary_key]
    if keep:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    else:
        old = table.__table__.c
        new = {
            name: old[name] + statement.excluded[name] if name in add else statement.excluded[name]
            for name in rows[0]
            if name not in keys
        }
        statement = statement.on_conflict_do_update(index_elements=keys, set_=new)
    connection.execute(statement, rows)


def insert_rows(connection: Connection, run: int, table: type[Base], rows: list[SqlRow]) -> None:
    """Insert rows of a run, which have the same columns."""
    if rows:
        parameters = ({f"b_{name}": value for name, value in row.items()} for row in rows)
        _inserting(table, tuple(rows[0])).run(connection, ({"b_run": run, **p} for p in parameters))


@functools.cache
def _inserting(table: type[Base], names: tuple[str, ...]) -> "PreparedStatement":
    types = table.__table__.c
    values = {name: bindparam(f"b_{name}", type_=types[name].type) for name in ("run", *names)}
    return PreparedStatement(insert(table).values(values))


def upsert_rows(
    connection: Connection, run: int, table: type[Base], rows: list[SqlRow], **how: Any
) -> None:
    """`upsert` rows of a run."""
    upsert(connection, table, [{"run": run, **row} for row in rows], **how)


def insert_records(
    connection: Connection,
    run: int,
    table: type[Base],
    names: tuple[str, ...],
    records: list[PlacedRecord],
) -> None:
    """Insert one row per record: its offset and the named fields."""
    rows = [
        {"offset": offset, **{name: _plain(getattr(record, name)) for name in names}}
        for offset, record in records
    ]
    insert_rows(connection, run, table, rows)


class PreparedStatement:
    """A statement compiled once per dialect and executed with many rows.

    It has a bind parameter for each value. The driver gets the rows as they are but for type
    conversions: SQLAlchemy's processing of each row would be most of a row's cost."""

    def __init__(self, statement: UpdateBase) -> None:
        self._statement = statement
        self._compiled: dict[str, _CompiledStatement] = {}

    def run(self, connection: Connection, rows: Iterable[SqlRow]) -> None:
        """Execute with `rows`, parameters by name."""
        dialect = connection.dialect
        compiled = self._compiled.get(dialect.name)
        if compiled is None:
            compiled = self._compiled[dialect.name] = _compile(self._statement, dialect)
        parameters: list[Any] = [{**compiled.constants, **row} for row in rows]
        for name, convert in compiled.converters:
            for row in parameters:
                row[name] = convert(row[name])
        if compiled.in_order is not None:
            parameters = list(map(compiled.in_order, parameters))
        connection.exec_driver_sql(compiled.text, parameters)


class _CompiledStatement(NamedTuple):
    """A statement for one dialect. `in_order` picks a row's parameters, None where the driver takes
    them by name; `converters`: what the types of some of them do to a value."""

    text: str
    constants: SqlRow
    in_order: Callable[[SqlRow], tuple[Any, ...]] | None
    converters: Sequence[tuple[str, Callable[[Any], Any]]]


def _compile(statement: UpdateBase, dialect: Dialect) -> _CompiledStatement:
    made = statement.compile(dialect=dialect)
    converters = [
        (name, convert)
        for name, parameter in made.binds.items()
        if (convert := parameter.type.dialect_impl(dialect).bind_processor(dialect))
    ]
    in_order = itemgetter(*made.positiontup) if made.positiontup else None
    return _CompiledStatement(str(made), made.params, in_order, converters)


def update_rows(
    connection: Connection, run: int, key: InstrumentedAttribute[int], rows: dict[int, SqlRow]
) -> None:
    """Set the named columns of the rows that `key` finds, a statement per set of columns."""
    shapes: dict[tuple[str, ...], list[SqlRow]] = defaultdict(list)
    # In the order of the key: two writers would not deadlock, and SQLite walks its pages once.
    for value in sorted(rows):
        row = rows[value]
        names = tuple(sorted(row))
        shapes[names].append(
            {"b_run": run, "b_key": value, **{f"b_{name}": row[name] for name in names}}
        )
    for names, parameters in shapes.items():
        _setting(key, names).run(connection, parameters)


@functools.cache
def _setting(key: InstrumentedAttribute[int], names: tuple[str, ...]) -> PreparedStatement:
    table = key.class_.__table__
    values = {name: bindparam(f"b_{name}", type_=table.c[name].type) for name in names}
    mine = (table.c.run == bindparam("b_run"), table.c[key.key] == bindparam("b_key"))
    return PreparedStatement(update(table).where(*mine).values(values))


def add_event(
    connection: Connection, run: int, offset: int, at: float, level: str, kind: str, text: str
) -> None:
    """Insert one line of the run's history."""
    row = {"offset": offset, "at": at, "level": level, "kind": kind, "text": clean_text(text)}
    insert_rows(connection, run, Event, [row])


def add_metrics(
    connection: Connection, run: int, records: list[tuple[int, UpdateCommitted | MetricsSampled]]
) -> None:
    """Insert all metrics of some records; those of samples have no lineage."""
    numbers: list[SqlRow] = []
    arrays: list[SqlRow] = []
    for offset, r in records:
        shared = {
            "offset": offset,
            "update": r.update,
            "lineage": r.lineage if isinstance(r, UpdateCommitted) else None,
            "wall_time": r.at,
        }
        for name, value in r.metrics.items():
            if isinstance(value, list):
                arrays.append({**shared, "name": name, "values": [finite(item) for item in value]})
            else:
                numbers.append({**shared, "name": name, "value": finite(value)})
    insert_rows(connection, run, Metric, numbers)
    insert_rows(connection, run, MetricArray, arrays)


def finite(value: float | None) -> float | None:
    """SQL has no NaN that every database agrees on."""
    return value if value is not None and math.isfinite(value) else None


def clean_text(value: str | None) -> str | None:
    """PostgreSQL has no NUL in text."""
    return value.replace("\x00", "\ufffd") if value else value


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return finite(value)
    return clean_text(value) if isinstance(value, str) else value
