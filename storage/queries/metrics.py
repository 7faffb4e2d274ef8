"""Metrics as series, as arrays over updates, as latest values, and as alerts; those since a
position, for export to another program.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sqlalchemy import CTE, ColumnElement, Integer, ScalarSelect, and_, cast, func, or_, select
from sqlalchemy.orm import aliased

from headrace.metrics.health_ranges import Alert, alerts, band_of
from headrace.metrics.registry import METRICS
from storage.database.reader import RunReader, open_run
from storage.database.tables import (
    AnySelect,
    Evaluation,
    Event,
    Metric,
    MetricArray,
    Update,
    Window,
)

if TYPE_CHECKING:
    import pandas as pd

Axis = Literal["update", "train_time", "wall", "tokens", "cpu"]
CPU = "perf/cpu_s"
"""The metric that is the axis `cpu`."""


def metric_names(run_dir: Path) -> list[str]:
    """Names of all metrics a run has, sorted."""
    return names_of(open_run(run_dir))


def names_of(reader: RunReader) -> list[str]:
    """`metric_names` of a run that is open."""
    names = _names(reader.key)
    found = reader.rows(select(names.c.name).where(names.c.name.is_not(None)))
    return sorted(name for (name,) in found)


def metric_series(
    run_dir: Path,
    names: Sequence[str],
    x: Axis = "update",
    *,
    samples: bool = False,
    points: int | None = None,
) -> "pd.DataFrame":
    """Metrics as columns x, name, value in order of x, and update where x is another axis.

    Rows are the updates of the surviving lineage, over `cpu` those whose CPU seconds are known;
    `samples` are the gauges between updates instead (x update or wall only).

    `points` bounds the rows of one name: where there are more, the least and the largest of each
    stretch stay, at their own x, and so do the first and the last of all; a further column `mean`
    then has the mean of the stretch, from all its finite values.
    """
    reader = open_run(run_dir)
    return _samples(reader, names, x, points) if samples else _updates(reader, names, x, points)


def metric_arrays(run_dir: Path, name: str, *, points: int | None = None) -> "pd.DataFrame":
    """An array metric over the surviving updates, in order: update, bin (its name), value. `points`
    bounds the updates: of more, some are left out."""
    import pandas as pd

    reader = open_run(run_dir)
    query = (
        select(MetricArray.update)
        .join(Update, same_update(MetricArray))
        .where(Update.run == reader.key, Update.abandoned.is_(False), MetricArray.name == name)
        .order_by(Update.update)
    )
    if points:
        known = [update for (update,) in reader.rows(query)]
        step = -(-max(len(known), 1) // points)
        query = query.where(MetricArray.update.in_(known[step - 1 :: step]))
    rows = reader.rows(query.add_columns(MetricArray.values))
    bins = METRICS[name].bins
    return pd.DataFrame(
        [
            (update, label, value)
            for update, values in rows
            for label, value in zip(bins, values, strict=True)
        ],
        columns=["update", "bin", "value"],
    )


def _updates(
    reader: RunReader, names: Sequence[str], x: Axis, points: int | None
) -> "pd.DataFrame":
    used = aliased(Metric)
    axes: dict[str, Any] = {
        "update": Update.update,
        "train_time": Update.train_time_s,
        "wall": Update.committed_at - reader.started_at(),
        "tokens": Update.trained_tokens,
        "cpu": used.value,
    }
    mine = (Update.run == reader.key, Update.abandoned.is_(False))
    ends = select(func.min(Update.update), func.max(Update.update)).where(*mine)
    first, last = reader.rows(ends.where(Update.committed_at.is_not(None)))[0]
    query = (
        select(axes[x].label("x"), Metric.name, Metric.value)
        .select_from(Metric)
        .join(Update, same_update())
        .where(Metric.run == reader.key, Metric.name.in_(names), *mine)
        .order_by(Update.update, Metric.name)
    )
    if x != "update":
        query = query.add_columns(Update.update)
    if x == "cpu":
        at = and_(used.offset == Metric.offset, used.name == CPU, used.value.is_not(None))
        query = query.join(used, and_(used.run == Metric.run, at))
    if points and (last or 0) > points:
        bucket = (Update.update - 1) // -(-last // _stretches(points))
        kept = Update.update.in_([first, last])
        query = _thinned(query, axes[x], bucket, kept, *[Update.update] * (x != "update"))
    return reader.frame(query)


def _samples(
    reader: RunReader, names: Sequence[str], x: Axis, points: int | None
) -> "pd.DataFrame":
    start = reader.started_at()
    axis: Any = Metric.update if x == "update" else Metric.wall_time - start
    mine = (Metric.run == reader.key, Metric.name.in_(names), Metric.lineage.is_(None))
    query = select(axis.label("x"), Metric.name, Metric.value).where(*mine).order_by(Metric.offset)
    if points:
        each = (
            select(
                func.count().label("rows"),
                func.min(Metric.wall_time).label("first"),
                func.max(Metric.wall_time).label("last"),
            )
            .where(*mine)
            .group_by(Metric.name)
            .subquery()
        )
        rows, first, last = reader.rows(
            select(func.max(each.c.rows), func.min(each.c.first), func.max(each.c.last))
        )[0]
        if (rows or 0) > points:
            width = (last - start) / _stretches(points)
            bucket = cast((Metric.wall_time - start) / width, Integer)
            query = _thinned(query, axis, bucket, Metric.wall_time.in_([first, last]))
    return reader.frame(query)


def _stretches(points: int) -> int:
    """Number of stretches of a line: of each two rows stay, and the first and last of all."""
    return max(1, (points - 2) // 2)


def _thinned(
    query: AnySelect,
    axis: ColumnElement[Any],
    bucket: ColumnElement[Any],
    is_end: ColumnElement[bool],
    *others: Any,
) -> AnySelect:
    """The query with the least and largest value of each name and bucket, and rows that are
    `is_end`; `others` are further columns."""
    group = (Metric.name, bucket)
    rows = (
        query.with_only_columns(
            axis.label("x"),
            Metric.name,
            Metric.value,
            func.avg(Metric.value).over(partition_by=group).label("mean"),
            func.row_number()
            .over(partition_by=group, order_by=(Metric.value, axis))
            .label("from_least"),
            func.row_number()
            .over(partition_by=group, order_by=(Metric.value.desc(), axis))
            .label("from_largest"),
            is_end.label("is_end"),
            *others,
        )
        .where(Metric.value.is_not(None))
        .order_by(None)
        .subquery()
    )
    kept = or_(rows.c.from_least == 1, rows.c.from_largest == 1, rows.c.is_end)
    columns = [rows.c.x, rows.c.name, rows.c.value, rows.c.mean]
    columns += [rows.c[other.name] for other in others]
    return select(*columns).where(kept).order_by(rows.c.x, rows.c.name)


def latest_metrics(run_dir: Path, prefix: str = "") -> dict[str, float | None]:
    """The newest value of each metric whose name begins with `prefix`; none of undone updates."""
    return latest_values(open_run(run_dir), prefix)


def newest_value(reader: RunReader, name: str) -> float | None:
    """The newest value of one metric, not of an undone update; None without any."""
    value: float | None = reader.value(
        _newest(reader, Metric, name).with_only_columns(Metric.value)
    )
    return value


def latest_values(reader: RunReader, prefix: str = "") -> dict[str, float | None]:
    """`latest_metrics` of a run that is open."""
    names = _names(reader.key)
    newest = _newest(reader, aliased(Metric), names.c.name).correlate(names).scalar_subquery()
    query = (
        select(Metric.name, Metric.value)
        .select_from(names)
        .join(Metric, and_(Metric.name == names.c.name, Metric.offset == newest))
        .where(Metric.run == reader.key, names.c.name.startswith(prefix, autoescape=True))
    )
    return {name: value for name, value in reader.rows(query)}


def _newest(reader: RunReader, metric: type[Metric], name: Any) -> AnySelect:
    """The offset of a metric's newest row that is not of an undone update."""
    undone = select(Update.run).where(same_update(metric), Update.abandoned.is_(True))
    mine = (metric.run == reader.key, metric.name == name, ~undone.exists())
    return select(metric.offset).where(*mine).order_by(metric.offset.desc()).limit(1)


def _names(run: int) -> CTE:
    """Distinct names and a final null, each by one step in the primary key: a scan would read every
    value."""
    names = (
        select(func.min(Metric.name).label("name"))
        .where(Metric.run == run)
        .cte("names", recursive=True)
    )
    following = (
        select(func.min(Metric.name))
        .where(Metric.run == run, Metric.name > names.c.name)
        .correlate(names)
        .scalar_subquery()
    )
    return names.union_all(select(following).where(names.c.name.is_not(None)))


def newest_before(row: type[Evaluation | Event], name: str, column: Any) -> ScalarSelect[Any]:
    """Return a column of the newest metric of a name before each row."""
    mine = Metric.run == row.run, Metric.name == name, Metric.offset < row.offset
    newest = select(column).where(*mine).order_by(Metric.offset.desc()).limit(1)
    return newest.correlate(row).scalar_subquery()


def same_update(table: type[Metric | MetricArray | Window] = Metric) -> ColumnElement[bool]:
    """Join metrics or windows to their updates. The sum keeps SQLite from reading all metrics of
    each update."""
    return and_(
        Update.run == table.run,
        Update.lineage == table.lineage,
        Update.update == table.update + 0,
    )


# -- since a position ------------------------------------------------------------------------------


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
    """Metrics of at most `most` updates behind a position, then evaluations as `eval/NAME`.

    A figure comes once for each position; an update that a rollback undid comes again under its
    number once the surviving lineage has trained it."""
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


# -- alerts ----------------------------------------------------------------------------------------


MAX_ALERT_UPDATES = 2000
"""Number of examined newest updates: a page must not read all of a long run."""


def band_alerts(run_dir: Path, *, updates: int = MAX_ALERT_UPDATES) -> list[Alert]:
    """Alerts about health ranges in the newest updates of the surviving lineage."""
    return alerts_of(open_run(run_dir), updates)


def alerts_of(reader: RunReader, updates: int = MAX_ALERT_UPDATES) -> list[Alert]:
    """`band_alerts` of a run that is open."""
    names = [name for name in names_of(reader) if band_of(name) is not None]
    mine = (Update.run == reader.key, Update.abandoned.is_(False))
    last = reader.value(select(func.max(Update.update)).where(*mine)) or 0
    newest = (*mine, Update.update > last - updates)
    # Rows of a name lie in the order of offsets, so that the old ones are not read.
    offset = reader.value(select(func.min(Update.offset)).where(*newest))
    if offset is None or not names:
        return []
    # Joined here: a database that began with the updates would look for metrics once for each.
    kept = set(reader.tuples(select(Update.lineage, Update.update).where(*newest)))
    query = select(Metric.name, Metric.lineage, Metric.update, Metric.value).where(
        Metric.run == reader.key,
        Metric.name.in_(names),
        Metric.offset >= offset,
        Metric.lineage.is_not(None),
    )
    rows = [row for row in reader.tuples(query) if row[1:3] in kept]
    series = defaultdict[str, list[tuple[int, float | None]]](list)
    for name, _, update, value in sorted(rows, key=lambda row: row[2]):
        series[name].append((update, value))
    return alerts(series)
