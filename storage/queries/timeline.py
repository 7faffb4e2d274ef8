"""When each part worked: bars for a Gantt chart, and the weights' way to the generators."""

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select

from storage.reader import RunReader, open_run
from storage.tables import Evaluation, Projection, Trajectory, Update, VersionLoad, WeightVersion

if TYPE_CHECKING:
    import pandas as pd

Bar = tuple[str, str, float, float, str]
"""(lane, kind, start, end, label)"""
_JOIN_S = 0.25


def timeline(
    run_dir: Path, *, since: float | None = None, until: float | None = None
) -> "pd.DataFrame":
    """Columns lane, kind, start, end, label, ordered by start: generation (a generator had at least
    one trajectory running), update (batch taken to committed), weight_load, evaluation. Times are
    seconds since the epoch; `since` and `until` cut the view."""
    import pandas as pd

    reader = open_run(run_dir)
    (last,) = reader.rows(select(Projection.last_at).where(Projection.run == reader.key))[0]
    first, end = since or 0.0, until or (last or 0.0)
    bars = [
        *_generation(reader, first, end),
        *_updates(reader, first, end),
        *_loads(reader, first, end),
        *_evaluations(reader, first, end),
    ]
    bars.sort(key=lambda bar: bar[2])
    return pd.DataFrame(bars, columns=["lane", "kind", "start", "end", "label"])


def weight_versions(run_dir: Path) -> "pd.DataFrame":
    """One row a load: version, lineage, update, published_at, generator, loaded_at, gap_s, load_s
    (generator and the rest are empty for a version nobody loaded)."""
    reader = open_run(run_dir)
    query = (
        select(
            WeightVersion.version,
            WeightVersion.lineage,
            WeightVersion.update,
            WeightVersion.published_at,
            VersionLoad.generator,
            VersionLoad.at.label("loaded_at"),
            VersionLoad.gap_s,
            VersionLoad.load_s,
        )
        .join(
            VersionLoad,
            (VersionLoad.run == WeightVersion.run) & (VersionLoad.version == WeightVersion.version),
            isouter=True,
        )
        .where(WeightVersion.run == reader.key)
        .order_by(WeightVersion.version, VersionLoad.offset)
    )
    return reader.frame(query)


def _generation(reader: RunReader, first: float, end: float) -> list[Bar]:
    """Union of the lives of each generator's trajectories, small gaps closed."""
    query = (
        select(Trajectory.generator, Trajectory.first_token_at, Trajectory.finished_at)
        .where(
            Trajectory.run == reader.key,
            Trajectory.first_token_at <= end,
            Trajectory.generator.is_not(None),
        )
        .where((Trajectory.finished_at >= first) | Trajectory.finished_at.is_(None))
        .order_by(Trajectory.first_token_at)
    )
    open_bars: dict[str, tuple[float, float]] = {}
    bars: list[Bar] = []
    for generator, begun, finished in reader.rows(query):
        start, stop = max(begun, first), min(finished or end, end)
        low, high = open_bars.get(generator, (start, stop))
        if start > high + _JOIN_S:
            bars.append((generator, "generation", low, high, ""))
            low, high = start, stop
        open_bars[generator] = (low, max(high, stop))
    bars.extend((name, "generation", low, high, "") for name, (low, high) in open_bars.items())
    return bars


def _updates(reader: RunReader, first: float, end: float) -> list[Bar]:
    query = select(
        Update.update, Update.version, Update.state, Update.taken_at, Update.committed_at
    ).where(Update.run == reader.key, Update.taken_at <= end)
    return [
        ("learner", "update", max(taken, first), min(committed or end, end), f"update {number}")
        for number, _, state, taken, committed in reader.rows(query)
        if state != "returned" and (committed or end) >= first
    ]


def _loads(reader: RunReader, first: float, end: float) -> list[Bar]:
    query = select(
        VersionLoad.generator, VersionLoad.version, VersionLoad.at, VersionLoad.load_s
    ).where(VersionLoad.run == reader.key, VersionLoad.at >= first, VersionLoad.at <= end)
    return [
        (generator, "weight_load", max(at - load_s, first), at, f"version {version}")
        for generator, version, at, load_s in reader.rows(query)
    ]


def _evaluations(reader: RunReader, first: float, end: float) -> list[Bar]:
    query = select(Evaluation.label, Evaluation.update, Evaluation.at, Evaluation.seconds).where(
        Evaluation.run == reader.key, Evaluation.at >= first, Evaluation.at <= end
    )
    return [
        ("evaluation", "evaluation", max(at - seconds, first), at, f"{label} (update {update})")
        for label, update, at, seconds in reader.rows(query)
    ]
