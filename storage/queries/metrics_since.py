"""A run's metrics since a given position, for export to another program.

In: a run's folder, a position. Out: figures by step, and the position behind them. Promises: a
figure comes once for each position; an update that a rollback undid comes again under its number
once the surviving lineage has trained it.
"""

from pathlib import Path
from typing import NamedTuple

from sqlalchemy import and_, or_, select

from storage.database.reader import open_run
from storage.database.tables import Evaluation, Metric, Update


class MetricsPosition(NamedTuple):
    """Progress of an export: the last update, and the last evaluation's journal offset."""

    lineage: int = 0
    update: int = 0
    evaluation: int = -1


class UpdateMetrics(NamedTuple):
    """Finite numbers of one update, at `at` seconds since the epoch; no arrays. `position` is
    behind them."""

    update: int
    at: float
    metrics: dict[str, float]
    position: MetricsPosition


_EVALUATED = ("accuracy", "response_length", "truncated")


def metrics_since(
    run_dir: Path, position: MetricsPosition, *, most: int = 200
) -> list[UpdateMetrics]:
    """Metrics of at most `most` updates behind a position, then evaluations as `eval/NAME`."""
    reader = open_run(run_dir)
    with reader.moment() as now:
        behind = or_(
            Update.lineage > position.lineage,
            and_(Update.lineage == position.lineage, Update.update > position.update),
        )
        updates = now.rows(
            select(Update.lineage, Update.update, Update.committed_at)
            .where(Update.run == now.key, Update.committed_at.is_not(None), behind)
            .order_by(Update.lineage, Update.update)
            .limit(most)
        )
        found = []
        for lineage, update, at in updates:
            rows = now.rows(
                select(Metric.name, Metric.value).where(
                    Metric.run == now.key, Metric.lineage == lineage, Metric.update == update,
                    Metric.value.is_not(None),
                )
            )  # fmt: skip
            position = MetricsPosition(lineage, update, position.evaluation)
            found.append(UpdateMetrics(update, at, dict(map(tuple, rows)), position))
        evaluations = now.rows(
            select(Evaluation)
            .where(Evaluation.run == now.key, Evaluation.offset > position.evaluation)
            .order_by(Evaluation.offset)
        )
        for row in evaluations:
            measured = {name: getattr(row, name) for name in _EVALUATED}
            metrics = {f"eval/{name}": x for name, x in measured.items() if x is not None}
            position = position._replace(evaluation=row.offset)
            found.append(UpdateMetrics(row.update, row.at, metrics, position))
    return found
