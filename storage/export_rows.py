"""The rows of each kind of export, as Arrow batches of one schema.

Conditions on trajectories and metrics go into SQL; conditions on tokens are applied to the rows of
the trajectories that are left. Responses are put together in one pass over the journal.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlalchemy import and_, select

from headrace.metrics import METRICS, pattern_of
from headrace.protocol.diagnostics import TOKEN_COLUMNS
from storage.diagnostics import DiagnosticsReader
from storage.filters import Filter, Junction, check_columns, columns_of, to_arrow, to_sql
from storage.reader import RunReader
from storage.responses import EMPTY, Response, Wanted, read_responses
from storage.tables import AnySelect, Metric, MetricArray, Prompt, Trajectory, Update, Window
from storage.texts import text_decoder
from storage.tokens import MARKS, REASONS, SOURCES, TokenTable, token_table
from storage.trajectory_rows import COLUMNS, joined

_PAGE_TRAJECTORIES = 256
_PAGE_TOKENS = 1 << 17
_SQL_ROWS = 5000


class Rows(Protocol):
    """A kind's rows."""

    schema: pa.Schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows in batches of bounded size."""


def _arrow_type(column: Any) -> pa.DataType:
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    return kinds[column.type.python_type]


_SCALARS = [
    pa.field("run_id", pa.string()),
    *(pa.field(name, _arrow_type(column)) for name, column in COLUMNS.items()),
    pa.field("reward_parts", pa.string()),
    pa.field("rewards", pa.string()),
]
_NAMES = {"sources": SOURCES, "marks": MARKS, "mask_reasons": REASONS}
"""Fields of TokenTable that are codes, and what they stand for."""
_PER_TOKEN = {
    "token_ids": ("token_id", pa.int32()),
    "logprobs": ("logprob", pa.float32()),
    "versions": ("version", pa.int64()),
    "sources": ("source", pa.string()),
    "turns": ("turn", pa.int32()),
    "marks": ("mark", pa.string()),
    "loss_weights": ("loss_weight", pa.float32()),
    "window_index": ("window_index", pa.int32()),
    "trained_at_update": ("trained_at_update", pa.int64()),
    "loss_mask": ("loss_mask", pa.uint8()),
    "mask_reasons": ("mask_reason", pa.string()),
    **{column.name: (column.singular, pa.float32()) for column in TOKEN_COLUMNS},
}
"""Columns of tokens: the name of one token's, and its type."""


def _tokens_of(table: TokenTable, name: str) -> npt.NDArray[Any]:
    """A column of `_PER_TOKEN`, with codes not yet replaced by names."""
    if name in table.figures:
        return table.figures[name]
    values: npt.NDArray[Any] = getattr(table, name)
    return values


def _flat_column(tables: list[TokenTable], name: str) -> pa.Array:
    """A column of `_PER_TOKEN` with the tokens of all tables one after the other."""
    values = np.concatenate([_tokens_of(table, name) for table in tables])
    if name not in _NAMES:
        return pa.array(values, type=_PER_TOKEN[name][1])
    codes = pa.array(values, mask=values < 0)
    return pa.DictionaryArray.from_arrays(codes, pa.array(_NAMES[name])).dictionary_decode()


class TrajectoryRows:
    """One row a trajectory: scalars, texts, and one list a field of TokenTable."""

    schema = pa.schema(
        [
            *_SCALARS,
            pa.field("response", pa.string()),
            pa.field("prompt_ids", pa.list_(pa.int32())),
            *(pa.field(name, pa.list_(kind)) for name, (_, kind) in _PER_TOKEN.items()),
        ]
    )

    def __init__(self, reader: RunReader, where: Filter | None) -> None:
        self._reader = reader
        self._condition = None if where is None else to_sql(where, COLUMNS)
        self._decoder = text_decoder(reader.run_dir)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows in batches of bounded size."""
        for rows, tables in _pages(self._reader, self._condition):
            columns = _scalar_columns(self._reader, rows)
            columns["response"] = [
                self._decoder.text(table.token_ids) if self._decoder else None for table in tables
            ]
            columns["prompt_ids"] = [np.frombuffer(row.prompt_ids, dtype="<i4") for row in rows]
            borders = np.cumsum([0, *(len(table.token_ids) for table in tables)], dtype=np.int32)
            for name in _PER_TOKEN:
                values = _flat_column(tables, name)
                columns[name] = pa.ListArray.from_arrays(pa.array(borders), values)
            yield _batch(columns, self.schema)


class TokenRows:
    """One row a response token: the trajectory's scalars without the prompt's text, the position,
    the token as text, and one column a field of TokenTable."""

    schema = pa.schema(
        [
            *(field for field in _SCALARS if field.name != "prompt"),
            pa.field("position", pa.int32()),
            pa.field("token", pa.string()),
            *(pa.field(name, kind) for name, kind in _PER_TOKEN.values()),
        ]
    )

    def __init__(self, reader: RunReader, where: Filter | None) -> None:
        self._reader = reader
        self._decoder = text_decoder(reader.run_dir)
        parts: tuple[Filter, ...] = () if where is None else (where,)
        if isinstance(where, Junction) and where.kind == "and":
            parts = where.parts
        for part in parts:
            check_columns(part, {name: None for name in self.schema.names})
        on_whole = [part for part in parts if columns_of(part) <= set(COLUMNS)]
        on_tokens = tuple(part for part in parts if part not in on_whole)
        self._condition = and_(*(to_sql(part, COLUMNS) for part in on_whole)) if on_whole else None
        self._expression = to_arrow(Junction("and", on_tokens), self.schema) if on_tokens else None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows in batches of bounded size."""
        for rows, tables in _pages(self._reader, self._condition):
            batch = self._flatten(rows, tables)
            yield batch if self._expression is None else batch.filter(self._expression)

    def _flatten(self, rows: Sequence[Any], tables: list[TokenTable]) -> pa.RecordBatch:
        sizes = [len(table.token_ids) for table in tables]
        which = np.repeat(np.arange(len(rows)), sizes)
        scalars = _scalar_columns(self._reader, rows)
        columns: dict[str, Any] = {
            field.name: pa.array(scalars[field.name], type=field.type).take(pa.array(which))
            for field in _SCALARS
            if field.name != "prompt"
        }
        columns["position"] = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
        for name, (column, _) in _PER_TOKEN.items():
            columns[column] = _flat_column(tables, name)
        ids = columns["token_id"].to_numpy()
        columns["token"] = self._decoder.pieces(ids) if self._decoder else [None] * len(ids)
        return _batch(columns, self.schema)


class MetricRows:
    """One row a number: of updates (`source` update), and gauges between them (sample); then those
    of metrics that are arrays, one row a bin that is not empty."""

    schema = pa.schema(
        [
            pa.field("run_id", pa.string()),
            pa.field("name", pa.string()),
            pa.field("bin", pa.string()),
            pa.field("update", pa.int64()),
            pa.field("lineage", pa.int64()),
            pa.field("value", pa.float64()),
            pa.field("wall_time", pa.float64()),
            pa.field("train_time_s", pa.float64()),
            pa.field("trained_tokens", pa.int64()),
            pa.field("abandoned", pa.bool_()),
            pa.field("source", pa.string()),
            pa.field("unit", pa.string()),
        ]
    )
    columns = {  # noqa: RUF012
        "name": Metric.name,
        "update": Metric.update,
        "lineage": Metric.lineage,
        "value": Metric.value,
        "wall_time": Metric.wall_time,
        "train_time_s": Update.train_time_s,
        "trained_tokens": Update.trained_tokens,
        "abandoned": Update.abandoned,
    }

    def __init__(self, reader: RunReader, where: Filter | None) -> None:
        self._reader = reader
        query = (
            select(*(column.label(name) for name, column in self.columns.items()))
            .join(
                Update,
                (Update.run == Metric.run)
                & (Update.lineage == Metric.lineage)
                & (Update.update == Metric.update),
                isouter=True,
            )
            .where(Metric.run == reader.key)
            .order_by(Metric.offset, Metric.name)
        )
        self._query = query if where is None else query.where(to_sql(where, self.columns))
        self._expression = None if where is None else to_arrow(where, self.schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows in batches of bounded size."""
        for rows in _stream(self._reader, self._query):
            columns = {name: [getattr(row, name) for row in rows] for name in self.columns}
            columns["bin"] = [None] * len(rows)
            yield self._complete(columns)
        for rows in _stream(self._reader, self._array_query()):
            batch = self._complete(self._by_bin(rows))
            yield batch if self._expression is None else batch.filter(self._expression)

    def _array_query(self) -> AnySelect:
        own = ("name", "update", "lineage", "wall_time")
        return (
            select(
                *(getattr(MetricArray, name) for name in own),
                MetricArray.values,
                *(column for name, column in self.columns.items() if name not in (*own, "value")),
            )
            .join(
                Update,
                (Update.run == MetricArray.run)
                & (Update.lineage == MetricArray.lineage)
                & (Update.update == MetricArray.update),
            )
            .where(MetricArray.run == self._reader.key)
            .order_by(MetricArray.offset, MetricArray.name)
        )

    def _by_bin(self, rows: Sequence[Any]) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = {name: [] for name in (*self.columns, "bin")}
        for row in rows:
            for label, value in zip(METRICS[row.name].bins, row.values, strict=True):
                if value is not None:
                    known = {**row._mapping, "value": value, "bin": label}
                    for name, column in columns.items():
                        column.append(known[name])
        return columns

    def _complete(self, columns: dict[str, list[Any]]) -> pa.RecordBatch:
        names = columns["name"]
        columns["run_id"] = [self._reader.run_id] * len(names)
        columns["source"] = [
            "sample" if lineage is None else "update" for lineage in columns["lineage"]
        ]
        columns["unit"] = [_unit(name) for name in names]
        return _batch(columns, self.schema)


def _unit(name: str) -> str:
    info = METRICS.get(pattern_of(name))
    return info.unit if info else ""


KINDS: dict[str, Callable[[RunReader, Filter | None], Rows]] = {
    "trajectories": TrajectoryRows,
    "tokens": TokenRows,
    "metrics": MetricRows,
}


def _pages(reader: RunReader, condition: Any) -> Iterator[tuple[Sequence[Any], list[TokenTable]]]:
    """Rows of chosen trajectories with their tokens: those without tokens first, then in the order
    in which their last chunks were written."""
    query = joined(select(Trajectory.trajectory_id, Trajectory.last_offset), reader.key)
    if condition is not None:
        query = query.where(condition)
    seen = DiagnosticsReader(reader.diagnostics)
    silent = query.where(Trajectory.last_offset.is_(None)).order_by(Trajectory.trajectory_id)
    for rows in _stream(reader, silent):
        for first in range(0, len(rows), _PAGE_TRAJECTORIES):
            page = {row.trajectory_id: EMPTY for row in rows[first : first + _PAGE_TRAJECTORIES]}
            yield _load_page(reader, page, seen)
    page = {}
    tokens = 0
    for trajectory_id, response in read_responses(reader.journal, _wanted(reader, query)):
        page[trajectory_id] = response
        tokens += len(response.token_ids)
        if len(page) >= _PAGE_TRAJECTORIES or tokens >= _PAGE_TOKENS:
            yield _load_page(reader, page, seen)
            page, tokens = {}, 0
    if page:
        yield _load_page(reader, page, seen)


def _wanted(reader: RunReader, query: AnySelect) -> Wanted:
    spoken = query.where(Trajectory.last_offset.is_not(None)).order_by(Trajectory.trajectory_id)
    parts = [np.array([tuple(row) for row in rows]) for rows in _stream(reader, spoken)]
    table = np.concatenate([np.zeros((0, 2), np.int64), *parts])
    return Wanted(table[:, 0].copy(), table[:, 1].copy())


def _load_page(
    reader: RunReader, page: dict[int, Response], seen: DiagnosticsReader
) -> tuple[Sequence[Any], list[TokenTable]]:
    query = select(
        *(column.label(name) for name, column in COLUMNS.items()),
        Trajectory.reward_parts,
        Trajectory.rewards,
        Prompt.prompt_ids,
    )
    chosen = joined(query, reader.key).where(Trajectory.trajectory_id.in_(list(page)))
    by_id = {row.trajectory_id: row for row in reader.rows(chosen)}
    windows: dict[int, list[Any]] = {trajectory_id: [] for trajectory_id in page}
    every = select(*Window.__table__.columns).where(
        Window.run == reader.key, Window.trajectory_id.in_(list(page))
    )
    for window in reader.rows(every):
        windows[window.trajectory_id].append(window)
    diagnostics = seen.read(
        (w.lineage, w.update, w.window_id)
        for each in windows.values()
        for w in each
        if w.state == "trained"
    )
    rows = [by_id[trajectory_id] for trajectory_id in page]
    tables = [token_table(page[key], windows[key], diagnostics) for key in page]
    return rows, tables


def _scalar_columns(reader: RunReader, rows: Sequence[Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
    columns["run_id"] = [reader.run_id] * len(rows)
    columns["reward_parts"] = [json.dumps(row.reward_parts or {}) for row in rows]
    columns["rewards"] = [json.dumps(row.rewards or []) for row in rows]
    return columns


def _stream(reader: RunReader, query: AnySelect) -> Iterator[Sequence[Any]]:
    with reader.engine.connect() as connection:
        result = connection.execution_options(yield_per=_SQL_ROWS).execute(query)
        yield from result.partitions(_SQL_ROWS)


def _batch(columns: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        columns[field.name]
        if isinstance(columns[field.name], pa.Array)
        else pa.array(columns[field.name], type=field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
