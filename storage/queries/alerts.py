"""Metrics that left their healthy bands, from the updates of a run."""

from collections import defaultdict
from pathlib import Path

from sqlalchemy import func, select

from headrace.bands import Alert, alerts, band_of
from storage.queries.metrics import names_of, same_update
from storage.reader import RunReader, open_run
from storage.tables import Metric, Update

MOST_UPDATES = 2000
"""So many of the newest updates are looked at: a page must not read all of a long run."""


def band_alerts(run_dir: Path, *, updates: int = MOST_UPDATES) -> list[Alert]:
    """`headrace.bands.alerts` of the newest updates of the surviving lineage."""
    return alerts_of(open_run(run_dir), updates)


def alerts_of(reader: RunReader, updates: int = MOST_UPDATES) -> list[Alert]:
    """`band_alerts` of a run that is open."""
    names = [name for name in names_of(reader) if band_of(name) is not None]
    mine = (Update.run == reader.key, Update.abandoned.is_(False))
    (last,) = reader.rows(select(func.max(Update.update)).where(*mine))[0]
    first = (last or 0) - updates + 1
    newest = (*mine, Update.update >= first)
    # Rows of a name lie in the order of offsets, so that the old ones are not read.
    (offset,) = reader.rows(select(func.min(Update.offset)).where(*newest))[0]
    if offset is None or not names:
        return []
    query = (
        select(Metric.name, Update.update, Metric.value)
        .join(Update, same_update())
        .where(*newest, Metric.run == reader.key, Metric.name.in_(names), Metric.offset >= offset)
        .order_by(Update.update)
    )
    series = defaultdict[str, list[tuple[int, float | None]]](list)
    for name, update, value in reader.rows(query):
        series[name].append((update, value))
    return alerts(series)
