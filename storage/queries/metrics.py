"""Metrics as series and as latest values."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sqlalchemy import ColumnElement, and_, func, select

from headrace.metrics import METRICS, MetricInfo
from storage.reader import RunReader, open_run
from storage.tables import Metric, Run, Update

if TYPE_CHECKING:
    import pandas as pd

Axis = Literal["update", "train_time", "wall", "tokens"]


def metric_names(run_dir: Path) -> list[str]:
    """Names of all metrics a run has, sorted."""
    reader = open_run(run_dir)
    query = select(Metric.name).where(Metric.run == reader.key).distinct().order_by(Metric.name)
    return [name for (name,) in reader.rows(query)]


def metric_info() -> dict[str, MetricInfo]:
    """Unit, meaning and healthy range by name."""
    return dict(METRICS)


def metric_series(
    run_dir: Path, names: Sequence[str], x: Axis = "update", *, samples: bool = False
) -> "pd.DataFrame":
    """Columns x, name, value in order of x. Rows are the updates of the surviving lineage;
    `samples` are the gauges between updates instead (x update or wall only)."""
    reader = open_run(run_dir)
    if samples:
        axis = Metric.update if x == "update" else Metric.wall_time - _start(reader)
        query = (
            select(axis.label("x"), Metric.name, Metric.value)
            .where(Metric.run == reader.key, Metric.name.in_(names), Metric.lineage.is_(None))
            .order_by(Metric.offset)
        )
        return reader.frame(query)
    axes = {
        "update": Update.update,
        "train_time": Update.train_time_s,
        "wall": Update.committed_at - _start(reader),
        "tokens": Update.trained_tokens,
    }
    query = (
        select(axes[x].label("x"), Metric.name, Metric.value)
        .join(Update, _same_update())
        .where(Metric.run == reader.key, Metric.name.in_(names), Update.abandoned.is_(False))
        .order_by(Update.update, Metric.name)
    )
    return reader.frame(query)


def latest_metrics(run_dir: Path, prefix: str = "") -> dict[str, float | None]:
    """The newest value of each metric whose name begins with `prefix`."""
    return latest_values(open_run(run_dir), prefix)


def latest_values(reader: RunReader, prefix: str = "") -> dict[str, float | None]:
    """`latest_metrics` of a run that is open."""
    newest = (
        select(Metric.name, func.max(Metric.offset).label("offset"))
        .where(Metric.run == reader.key, Metric.name.startswith(prefix, autoescape=True))
        .group_by(Metric.name)
        .subquery()
    )
    query = select(Metric.name, Metric.value).join(
        newest,
        and_(
            Metric.run == reader.key,
            Metric.name == newest.c.name,
            Metric.offset == newest.c.offset,
        ),
    )
    return {name: value for name, value in reader.rows(query)}


def _start(reader: RunReader) -> float:
    (started_at,) = reader.rows(select(Run.started_at).where(Run.id == reader.key))[0]
    return float(started_at or 0.0)


def _same_update() -> ColumnElement[bool]:
    return and_(
        Update.run == Metric.run,
        Update.lineage == Metric.lineage,
        Update.update == Metric.update,
    )
