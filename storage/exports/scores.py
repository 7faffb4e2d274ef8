"""The export `scores`: one row per prompt with its answers' rewards (Data scaling, section 3.2)."""

from collections.abc import Sequence

import pyarrow as pa
from sqlalchemy import Float, Integer, case, cast, func, select

from storage.database.filters import Filter, to_sql
from storage.database.reader import RunReader
from storage.database.tables import Group, Trajectory
from storage.database.trajectory_rows import joined
from storage.exports.columns import WORD, chosen_fields, field
from storage.exports.pages import RowsOfQuery

_FIELDS = [
    field("run_id", WORD, "id of the run"),
    field("purpose", WORD, "train or eval"),
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


class ScoreRows(RowsOfQuery):
    """Rows of the export `scores`."""

    def __init__(
        self, reader: RunReader, where: Filter | None, columns: Sequence[str] | None
    ) -> None:
        reward = Trajectory.reward
        mean, squares = (func.avg(each, type_=Float) for each in (reward, reward * reward))
        variance = squares - mean * mean
        prompts = joined(
            select(
                Trajectory.purpose,
                Group.prompt_id,
                func.min(Group.domain).label("domain"),
                func.min(Trajectory.reward_source).label("reward_source"),
                func.count().label("samples"),
                func.count(reward).label("scored"),
                mean.label("mean"),
                # SQLite has no standard deviation. Of equal rewards the difference may be below 0.
                func.sqrt(case((variance < 0, 0.0), else_=variance), type_=Float).label("std"),
                func.min(reward).label("lowest"),
                func.max(reward).label("best"),
                func.avg(cast(cast(Trajectory.correct, Integer), Float), type_=Float).label(
                    "solved"
                ),
            ),
            reader.key,
        )
        made = prompts.group_by(Trajectory.purpose, Group.prompt_id).subquery()
        query = select(*made.c).order_by(made.c.purpose, made.c.prompt_id)
        if where is not None:
            query = query.where(to_sql(where, dict(made.c)))
        super().__init__(reader, chosen_fields(_FIELDS, columns), made.c.keys(), query)
