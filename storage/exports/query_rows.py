"""Exports whose rows a query has as they are: `windows` and `scores`."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from sqlalchemy import Float, Integer, Text, case, cast, func, select

from storage.database.filters import Filter, to_sql
from storage.database.reader import RunReader
from storage.database.tables import AnySelect, Group, Trajectory, Window
from storage.database.trajectory_rows import joined
from storage.exports.columns import WORD, ColumnNames, chosen_fields, field
from storage.exports.packed_rows import ExportPart, from_columns
from storage.exports.pages import SQL_ROWS

_WINDOW_FIELDS = [
    field("run_id", WORD, "id of the run"),
    field("trajectory_id", pa.int64(), "id of the response in its run"),
    field("purpose", WORD, "train, eval or along"),
    field("index", pa.int64(), "number of the window in its response, from 0"),
    field("start", pa.int64(), "position of its first token"),
    field("end", pa.int64(), "position behind its last token"),
    field("tokens", pa.int64(), "tokens in it that the policy sampled"),
    field("final", pa.bool_(), "whether the answer ends with it"),
    field("state", WORD, "closed, ready, taken, trained or dropped"),
    field("at", pa.float64(), "since when it is in this state, seconds since the epoch"),
    field("reason", WORD, "why all of it was dropped"),
    field("lines", WORD, "what had become of its lines: scored, late or failed"),
    field("masked", pa.string(), "what its update leaves out, JSON: [reason, start, end, tokens]"),
    field("masked_tokens", pa.int64(), "tokens that its update leaves out"),
    field("min_version", pa.int64(), "oldest weight version that sampled a token of it"),
    field("max_version", pa.int64(), "newest weight version that sampled a token of it"),
    field("update", pa.int64(), "the update that has it; null: none"),
    field("lineage", pa.int64(), "lineage of that update"),
    field("version", pa.int64(), "newest weight version when the update took it"),
]
_WINDOW_COLUMNS: dict[str, Any] = {
    name: Trajectory.purpose if name == "purpose" else getattr(Window, name)
    for name in (field.name for field in _WINDOW_FIELDS)
    if name not in ("run_id", "masked")
}
"""Columns that a filter may name."""
_SCORE_FIELDS = [
    field("run_id", WORD, "id of the run"),
    field("purpose", WORD, "train, eval or along"),
    field("prompt_id", pa.string(), "id of the prompt, from the dataset's row"),
    field("domain", WORD, "that of a mixture which the prompt is from, else empty"),
    field("reward_source", WORD, "which source of rewards scored its answers"),
    field("samples", pa.int64(), "its answers"),
    field("scored", pa.int64(), "those of them that have a reward"),
    field("mean", pa.float64(), "mean reward"),
    field("std", pa.float64(), "standard deviation of the rewards, of a population"),
    field("lowest", pa.float64(), "lowest reward"),
    field("best", pa.float64(), "highest reward"),
    field("solved", pa.float64(), "share of the answers that are right"),
]


class RowsOfQuery:
    """Rows that a query has, by the names of its columns."""

    def __init__(
        self, reader: RunReader, schema: pa.Schema, names: Sequence[str], query: AnySelect
    ) -> None:
        self.schema = schema
        self._reader, self._names, self._query = reader, names, query

    def total(self) -> int:
        """Number of rows."""
        return self._reader.count(self._query)

    def parts(self) -> Iterator[ExportPart]:
        """Rows in batches of bounded size."""
        for found in self._reader.columns(self._query, SQL_ROWS):
            columns = dict(zip(self._names, found, strict=True))
            columns["run_id"] = (self._reader.run_id,) * len(found[0])
            yield ExportPart(len(found[0]), from_columns(self.schema, columns))


class WindowRows(RowsOfQuery):
    """Rows of the export `windows`: one per complete window."""

    def __init__(self, reader: RunReader, where: Filter | None, columns: ColumnNames) -> None:
        schema = chosen_fields(_WINDOW_FIELDS, columns)
        readable = {**_WINDOW_COLUMNS, "masked": cast(Window.masked, Text)}
        names = [name for name in schema.names if name != "run_id"]
        chosen = select(Window.window_id, *(readable[name].label(name) for name in names))
        query = chosen.join(
            Trajectory,
            (Trajectory.run == Window.run) & (Trajectory.trajectory_id == Window.trajectory_id),
        ).where(Window.run == reader.key)
        if where is not None:
            query = query.where(to_sql(where, _WINDOW_COLUMNS))
        ordered = query.order_by(Window.window_id)
        super().__init__(reader, schema, ["window_id", *names], ordered)


class ScoreRows(RowsOfQuery):
    """Rows of the export `scores`: one per prompt with its answers' rewards.

    Source: Data scaling, section 3.2."""

    def __init__(self, reader: RunReader, where: Filter | None, columns: ColumnNames) -> None:
        t, reward = Trajectory, Trajectory.reward
        mean, squares = (func.avg(each, type_=Float) for each in (reward, reward * reward))
        variance = squares - mean * mean
        prompts = joined(
            select(
                t.purpose,
                Group.prompt_id,
                func.min(Group.domain).label("domain"),
                func.min(t.reward_source).label("reward_source"),
                func.count().label("samples"),
                func.count(reward).label("scored"),
                mean.label("mean"),
                # SQLite has no standard deviation. Of equal rewards the difference may be below 0.
                func.sqrt(case((variance < 0, 0.0), else_=variance), type_=Float).label("std"),
                func.min(reward).label("lowest"),
                func.max(reward).label("best"),
                func.avg(cast(cast(t.correct, Integer), Float), type_=Float).label("solved"),
            ),
            reader.key,
        )
        made = prompts.group_by(t.purpose, Group.prompt_id).subquery()
        query = select(*made.c).order_by(made.c.purpose, made.c.prompt_id)
        if where is not None:
            query = query.where(to_sql(where, dict(made.c)))
        super().__init__(reader, chosen_fields(_SCORE_FIELDS, columns), made.c.keys(), query)
