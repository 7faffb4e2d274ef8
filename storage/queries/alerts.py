"""Metrics that left their healthy bands, from the updates of a run."""

from collections import defaultdict
from pathlib import Path

from sqlalchemy import func, select

from headrace.metrics.health_ranges import Alert, alerts, band_of
from storage.database.reader import RunReader, open_run
from storage.database.tables import Metric, Update
from storage.queries.metrics import names_of

MAX_UPDATES = 2000
"""Number of examined newest updates: a page must not read all of a long run."""


def band_alerts(run_dir: Path, *, updates: int = MAX_UPDATES) -> list[Alert]:
    """Alerts about health ranges in the newest updates of the surviving lineage."""
    return alerts_of(open_run(run_dir), updates)


def alerts_of(reader: RunReader, updates: int = MAX_UPDATES) -> list[Alert]:
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
