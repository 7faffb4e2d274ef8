"""The export `metrics`: one row per value.

Those of updates (`source` update) and gauges between them (sample) come first, then those of
metrics that are arrays, one row per non-empty bin.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from sqlalchemy import and_, select

from headrace.metrics.registry import METRICS, pattern_of
from storage.database.filters import Filter, to_arrow, to_sql
from storage.database.reader import RunReader
from storage.database.tables import AnySelect, Metric, MetricArray, Update
from storage.exports.columns import WORD, ColumnNames, array_of, chosen_fields, field
from storage.exports.packed_rows import ExportPart, plain
from storage.exports.pages import SQL_ROWS

_FIELDS = [
    field("run_id", WORD, "id of the run"),
    field("name", WORD, "name of the metric"),
    field("bin", WORD, "what the number of an array is of; null for a single number"),
    field("update", pa.int64(), "update"),
    field("lineage", pa.int64(), "lineage of the update; null for a gauge between updates"),
    field("value", pa.float64(), "the number; null where it was not finite"),
    field("wall_time", pa.float64(), "seconds since the epoch"),
    field("train_time_s", pa.float64(), "training seconds up to the update's commit"),
    field("trained_tokens", pa.int64(), "tokens trained up to the update's commit"),
    field("abandoned", pa.bool_(), "whether a later lineage went back behind the update"),
    field("source", WORD, "update, or sample: a gauge between updates"),
    field("unit", WORD, "unit of the number; an empty text is a plain number"),
]
COLUMNS = {
    "name": Metric.name,
    "update": Metric.update,
    "lineage": Metric.lineage,
    "value": Metric.value,
    "wall_time": Metric.wall_time,
    "train_time_s": Update.train_time_s,
    "trained_tokens": Update.trained_tokens,
    "abandoned": Update.abandoned,
}
"""Columns that a filter may name."""


class MetricRows:
    """Rows of the export `metrics`."""

    def __init__(self, reader: RunReader, where: Filter | None, columns: ColumnNames) -> None:
        self.schema = chosen_fields(_FIELDS, columns)
        self._reader = reader
        single = _joined(select(*(c.label(name) for name, c in COLUMNS.items())), Metric)
        self._single = single.where(Metric.run == reader.key).order_by(Metric.offset, Metric.name)
        if where is not None:
            self._single = self._single.where(to_sql(where, COLUMNS))
        self._arrays = _array_query(reader.key)
        self._expression = None if where is None else to_arrow(where, pa.schema(_FIELDS))

    def total(self) -> int:
        """Numbers, and arrays."""
        return self._reader.count(self._single) + self._reader.count(self._arrays)

    def parts(self) -> Iterator[ExportPart]:
        """Rows in batches of bounded size."""
        for found in self._reader.columns(self._single, SQL_ROWS):
            columns = dict(zip(COLUMNS, found, strict=True))
            count = len(columns["name"])
            columns["bin"] = (None,) * count
            yield ExportPart(count, plain(self._batch(columns).select(self.schema.names)))
        for rows in self._reader.stream(self._arrays, SQL_ROWS):
            batch = self._batch(_by_bin(rows))
            if self._expression is not None:
                batch = batch.filter(self._expression)
            yield ExportPart(len(rows), plain(batch.select(self.schema.names)))

    def _batch(self, columns: dict[str, Sequence[Any]]) -> pa.RecordBatch:
        names = columns["name"]
        columns["run_id"] = (self._reader.run_id,) * len(names)
        columns["source"] = [
            "sample" if lineage is None else "update" for lineage in columns["lineage"]
        ]
        infos = {name: METRICS.get(pattern_of(name)) for name in set(names)}
        columns["unit"] = [info.unit if (info := infos[name]) else "" for name in names]
        arrays = [array_of(field, columns[field.name]) for field in _FIELDS]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(_FIELDS))


def _array_query(run: int) -> AnySelect:
    own = ("name", "update", "lineage", "wall_time")
    others = (column for name, column in COLUMNS.items() if name not in (*own, "value"))
    columns = (*(getattr(MetricArray, name) for name in own), MetricArray.values, *others)
    query = _joined(select(*columns), MetricArray, isouter=False).where(MetricArray.run == run)
    return query.order_by(MetricArray.offset, MetricArray.name)


def _joined(query: AnySelect, table: Any, *, isouter: bool = True) -> AnySelect:
    same = (Update.run == table.run, Update.lineage == table.lineage, Update.update == table.update)
    return query.join(Update, and_(*same), isouter=isouter)


def _by_bin(rows: Sequence[Any]) -> dict[str, Sequence[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, "bin")}
    for row in rows:
        labels = zip(METRICS[row.name].bins, row.values, strict=True)
        known = [(label, value) for label, value in labels if value is not None]
        columns["bin"] += [label for label, _ in known]
        columns["value"] += [value for _, value in known]
        for name in COLUMNS:
            if name != "value":
                columns[name] += [row._mapping[name]] * len(known)
    return dict(columns)
