"""The export `windows`: one row per complete window."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from sqlalchemy import Text, cast, select

from storage.database.filters import Filter, to_sql
from storage.database.reader import RunReader
from storage.database.tables import Trajectory, Window
from storage.exports.columns import WORD, chosen_fields, field
from storage.exports.pages import RowsOfQuery

_FIELDS = [
    field("run_id", WORD, "id of the run"),
    field("trajectory_id", pa.int64(), "id of the response in its run"),
    field("purpose", WORD, "train or eval"),
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
COLUMNS: dict[str, Any] = {
    name: Trajectory.purpose if name == "purpose" else getattr(Window, name)
    for name in (field.name for field in _FIELDS)
    if name not in ("run_id", "masked")
}
"""Columns that a filter may name."""


class WindowRows(RowsOfQuery):
    """Rows of the export `windows`."""

    def __init__(
        self, reader: RunReader, where: Filter | None, columns: Sequence[str] | None
    ) -> None:
        schema = chosen_fields(_FIELDS, columns)
        readable = {**COLUMNS, "masked": cast(Window.masked, Text)}
        names = [name for name in schema.names if name != "run_id"]
        chosen = select(Window.window_id, *(readable[name].label(name) for name in names))
        query = chosen.join(
            Trajectory,
            (Trajectory.run == Window.run) & (Trajectory.trajectory_id == Window.trajectory_id),
        ).where(Window.run == reader.key)
        if where is not None:
            query = query.where(to_sql(where, COLUMNS))
        ordered = query.order_by(Window.window_id)
        super().__init__(reader, schema, ["window_id", *names], ordered)
