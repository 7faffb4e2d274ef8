"""Activity of generators and learner over a span of time, stretch by stretch.

In: a run and a span. Out: for each lane and stretch the share of it that each kind of activity
took. Every second of a lane is of one kind, so shares add up, whatever is summed:

- starting, evaluation, ending: the run's phase; there is nothing to train then
- working: the learner has a batch; a generator samples
- loading: a generator stands still for new weights
- held: a generator has unfinished trajectories, and none of them may go on
- waiting: the learner has no batch; a generator has no trajectory

The waiting time of all generators is what they reported (`idle/generator`). For each generator the
time without a trajectory is known; the rest is spread evenly over the others as held.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import Integer, cast, func, select

from storage.database.reader import RunReader, open_run, read_config
from storage.database.tables import (
    Event,
    Metric,
    Process,
    Projection,
    Run,
    Trajectory,
    Update,
    VersionLoad,
    Window,
)
from storage.queries.answers import near_chunks
from storage.queries.metrics import newest_before, same_update

if TYPE_CHECKING:
    import pandas as pd

Seconds = npt.NDArray[np.float64]
"""One number per stretch."""
TRAINING = ("working", "loading", "held", "waiting")
"""Kinds of activity while the run trains."""
IDLE = ("held", "waiting")
_PHASES = {"starting": "starting", "evaluating": "evaluation", "training": "training"}
_LEAST_STRETCH_S = 2.0
"""Generators report about once a second."""
_SKEW_S = 60.0
"""Seconds by which clocks of two hosts differ at most."""
LEARNER, _SAMPLED = "learner", "idle/generator"


class TimeSpan(NamedTuple):
    """A stretch of time, seconds since the epoch."""

    start: float
    end: float


def activity(
    run_dir: Path, *, since: float | None = None, until: float | None = None, stretches: int = 240
) -> "pd.DataFrame":
    """Activity as columns lane, kind, start, end (seconds since the epoch), share.

    Shares of 0 are left out. The span is cut into at most this many stretches, none shorter than
    two seconds in the lanes of generators; neighbours of one kind alone are one row."""
    import pandas as pd

    reader = open_run(run_dir)
    span = _span(reader, since, until)
    rows: list[tuple[str, str, float, float, float]] = []
    if span.end > span.start:
        width = (span.end - span.start) / stretches
        fine = _edges(span, width)
        coarse = _edges(span, max(width, _LEAST_STRETCH_S))
        for name, kinds in _generators(reader, span, coarse).items():
            rows += _rows(name, coarse, kinds)
        rows += _rows(LEARNER, fine, _learner(reader, span, fine))
    return pd.DataFrame(rows, columns=["lane", "kind", "start", "end", "share"])


def lives(run_dir: Path, *, newest: int, since: float | None = None) -> "pd.DataFrame":
    """Stages of the newest training answers that were begun, alive after `since`.

    Columns trajectory_id, stage, start, end (seconds since the epoch), version (the weights that
    sampled last, or that the update trained). A stage that goes on ends with the newest record.

    - waiting: for a generator, or scored and for an update
    - generating: from its first tokens to its last
    - environment: from a turn's last tokens to what its environment answered
    - scoring: until its reward came; what failed or was aborted gets none
    - training: its windows' updates
    """
    import pandas as pd

    reader = open_run(run_dir)
    now = _span(reader, None, None).end
    t = Trajectory
    columns = (t.trajectory_id, t.issued_at, t.first_token_at, t.finished_at, t.rewarded_at)
    query = select(*columns, t.max_version, t.status, t.first_offset, t.last_offset).where(
        t.run == reader.key, t.purpose == "train", t.first_token_at.is_not(None)
    )
    newest_first = query.order_by(t.trajectory_id.desc()).limit(newest)
    updates: dict[int, list[tuple[float, float, int]]] = {}
    found = reader.rows(newest_first)
    weights = func.coalesce(Update.version, Window.max_version)
    trained = (
        select(Window.trajectory_id, Update.taken_at, Update.committed_at, weights)
        .outerjoin(Update, same_update(Window))
        .where(Window.run == reader.key, Window.trajectory_id.in_([row[0] for row in found]))
        .where((Window.state != "dropped") | Update.update.is_not(None))
        .distinct()
        .order_by(Update.taken_at.nulls_last())
    )
    for key, begun, done, trained_as in reader.rows(trained):
        updates.setdefault(key, []).append((begun or now, done or now, trained_as))
    rows: list[tuple[int, str, float, float, int | None]] = []
    steps = _steps(reader, found) if read_config(run_dir).get("environment") else {}
    for key, issued, first, finished, rewarded, version, status, *_ in found:
        stages = [("waiting", issued, first)]
        for begun, done in steps.get(key, ()):
            stages += [("generating", first, begun), ("environment", begun, done)]
            first = done
        stages.append(("generating", first, finished or now))
        if finished and status not in ("failed", "aborted"):  # these get no score
            stages.append(("scoring", finished, rewarded or now))
        at = rewarded
        for begun, done, trained_as in updates.get(key, ()):
            if at is not None and at < begun:
                stages.append(("waiting", at, begun))
            rows.append((key, "training", begun, done, trained_as))
            at = None if at is None else max(at, done)
        rows += [(key, stage, start, end, version) for stage, start, end in stages]
    frame = pd.DataFrame(rows, columns=["trajectory_id", "stage", "start", "end", "version"])
    frame = frame[frame["end"] > frame["start"]]
    return frame if since is None else frame[frame["end"] > since]


def _steps(reader: RunReader, found: Sequence[Any]) -> dict[int, list[TimeSpan]]:
    """By trajectory, spans of its environment's turns; none where they lie far apart."""
    places = {row.trajectory_id: (row.first_offset, row.last_offset) for row in found}
    steps: dict[int, list[TimeSpan]] = {}
    before: dict[int, float] = {}
    names = ("trajectory_id", "at", "lease_id")
    for chunks in near_chunks(reader, places):
        for key, at, lease in zip(*(chunks.column(n).to_pylist() for n in names), strict=True):
            if lease < 0 and key in before:  # what no generator was asked for
                steps.setdefault(key, []).append(TimeSpan(before[key], at))
            before[key] = at
    return steps


def idle_of(frame: "pd.DataFrame") -> dict[str, float]:
    """The idle (held or waiting) share of each lane's training time, where it has some."""
    seconds = (frame["end"] - frame["start"]) * frame["share"]
    training = seconds[frame["kind"].isin(TRAINING)].groupby(frame["lane"]).sum()
    idle = seconds[frame["kind"].isin(IDLE)].groupby(frame["lane"]).sum()
    return {
        str(lane): float(idle.get(lane, 0.0) / whole)
        for lane, whole in training.items()
        if whole > 0
    }


# -- lanes -----------------------------------------------------------------------------------------


def _learner(reader: RunReader, span: TimeSpan, edges: Seconds) -> dict[str, Seconds]:
    phases = _phases(reader, span)
    updates = reader.rows(
        select(Update.taken_at, Update.committed_at).where(
            Update.run == reader.key,
            Update.state != "returned",
            Update.taken_at <= span.end,
            (Update.committed_at >= span.start) | Update.committed_at.is_(None),
        )
    )
    busy = _covered([(begun, done or span.end) for begun, done in updates], edges)
    kinds = {name: _covered(spans, edges) for name, spans in phases.items()}
    training = kinds.pop("training")
    working = np.minimum(busy, training)
    return {"working": working, "waiting": training - working, **kinds}


def _generators(reader: RunReader, span: TimeSpan, edges: Seconds) -> dict[str, dict[str, Seconds]]:
    phases = _phases(reader, span)
    idle = _idle_share(reader, edges)
    lives = _lives(reader, span)
    loads = _loads(reader, edges)
    whole = absent = able = none = np.zeros(len(edges) - 1)
    # Of each generator: free to sample, loading, without a trajectory, and the other phases.
    found: dict[str, tuple[Seconds, Seconds, Seconds, dict[str, Seconds]]] = {}
    for name, begun, ended in _names(reader, span):
        there = {
            kind: _covered([(max(first, begun), min(last, ended)) for first, last in pieces], edges)
            for kind, pieces in phases.items()
        }
        training = there.pop("training")
        present = np.minimum(_covered(lives.get(name, []), edges), training)
        loading = np.minimum(loads.get(name, none), present)
        free, without = present - loading, training - present
        whole, absent, able = whole + training, absent + without, able + free
        found[name] = free, loading, without, there
    # Of what they waited for together, what is not explained by having no trajectory was held.
    held = np.clip(idle * whole - absent, 0.0, able)
    part = np.divide(held, able, out=np.zeros_like(held), where=able > 0)
    return {
        name: {
            "working": free - free * part,
            "loading": loading,
            "held": free * part,
            "waiting": without,
            **there,
        }
        for name, (free, loading, without, there) in found.items()
    }


# -- what is written down --------------------------------------------------------------------------


def _span(reader: RunReader, since: float | None, until: float | None) -> TimeSpan:
    """The span that is asked for, within the run's life."""
    query = (
        select(Run.started_at, Projection.last_at)
        .join(Projection, Projection.run == Run.id)
        .where(Run.id == reader.key)
    )
    started, last = reader.rows(query)[0]
    begin, end = started or 0.0, last or started or 0.0
    return TimeSpan(max(begin, since or begin), min(end, end if until is None else until))


def _phases(reader: RunReader, span: TimeSpan) -> dict[str, list[TimeSpan]]:
    """The spans of each of the run's phases, under today's names.

    One that a crash broke off ends with the last sample; then the run is ending until it starts."""
    events = reader.tuples(
        select(Event.at, Event.text, newest_before(Event, _SAMPLED, Metric.wall_time))
        .where(Event.run == reader.key, Event.kind == "phase")
        .order_by(Event.offset)
    )
    found: dict[str, list[TimeSpan]] = {name: [] for name in (*_PHASES.values(), "ending")}
    for (at, text, _), (end, following, seen) in pairwise([*events, (span.end, "", None)]):
        kind = _PHASES.get(text.partition(":")[0], "ending")
        goes_on = following != "starting" or kind == "starting"
        last = end if goes_on else max(at, min(end, seen or end))
        found[kind].append(TimeSpan(at, last))
        found["ending"].append(TimeSpan(last, end))
    return found


def _names(reader: RunReader, span: TimeSpan) -> list[tuple[str, float, float]]:
    """Generators, and from when to when each was there."""
    rows = reader.rows(
        select(Process.name, Process.state, Process.first_seen_at, Process.changed_at)
        .where(Process.run == reader.key, Process.role == "generator")
        .order_by(Process.name)
    )
    return [
        (name, begun, changed if state in ("gone", "lost") else span.end)
        for name, state, begun, changed in rows
    ]


def _lives(reader: RunReader, span: TimeSpan) -> dict[str, list[TimeSpan]]:
    """Spans in which each generator had an unfinished trajectory. Trajectories that begin in the
    same thousandth of the span are one, so that a long run has no more rows than a short one."""
    width = max((span.end - span.start) / 1000, 1e-3)
    begun = Trajectory.first_token_at
    place = cast((begun - span.start) / width, Integer)
    mine = (Trajectory.run == reader.key, Trajectory.generator.is_not(None), begun <= span.end)
    ended = Trajectory.finished_at
    each = (
        select(Trajectory.generator, func.min(begun), func.max(func.coalesce(ended, span.end)))
        .where(*mine)
        .group_by(Trajectory.generator, place)
    )
    # Of a part of the run, the two kinds have each their place in the index of ends.
    whole = span.start <= reader.started_at()
    queries = [each] if whole else [each.where(ended >= span.start), each.where(ended.is_(None))]
    found: dict[str, list[TimeSpan]] = {}
    for name, first, last in chain.from_iterable(map(reader.rows, queries)):
        found.setdefault(name, []).append(TimeSpan(first, last))
    return found


def _written_before(reader: RunReader, at: float) -> int:
    """Offset of a record before a moment; 0: unknown. Records before it need not be read."""
    query = select(func.max(Update.offset)).where(
        Update.run == reader.key, Update.committed_at <= at - _SKEW_S
    )
    return int(reader.value(query) or 0)


def _loads(reader: RunReader, edges: Seconds) -> dict[str, Seconds]:
    """Seconds that each generator stood still for new weights, where each load ended."""
    query = select(VersionLoad.generator, VersionLoad.at, VersionLoad.gap_s).where(
        VersionLoad.run == reader.key,
        VersionLoad.offset >= _written_before(reader, edges[0]),
        VersionLoad.at >= edges[0],
        VersionLoad.at <= edges[-1],
    )
    found: dict[str, list[TimeSpan]] = {}
    for name, at, gap in reader.rows(query):
        found.setdefault(name, []).append(TimeSpan(at - gap, at))
    return {name: _covered(spans, edges) for name, spans in found.items()}


def _idle_share(reader: RunReader, edges: Seconds) -> Seconds:
    """Idle share of all generators' training time, per stretch.

    They report a share of all training so far; of two samples the difference counts."""
    mine = (
        Metric.run == reader.key,
        Metric.name == _SAMPLED,
        Metric.lineage.is_(None),
        Metric.value.is_not(None),
    )
    # From the last one before the first edge on: what came before that changes no difference.
    earlier = select(Metric.offset).where(*mine, Metric.offset < _written_before(reader, edges[0]))
    known = reader.value(earlier.order_by(Metric.offset.desc()).limit(1))
    query = (
        select(Metric.wall_time, Metric.value)
        .where(*mine, Metric.offset >= (known or 0))
        .order_by(Metric.offset)
    )
    found = np.fromiter(chain.from_iterable(reader.tuples(query)), dtype=np.float64)
    if not len(found):
        return np.zeros(len(edges) - 1)
    at, share = found.reshape(-1, 2).T
    phases = _phases(reader, TimeSpan(float(at[0]), float(at[-1])))
    begins = [piece.start for piece in phases["starting"]]
    trained = _clock(phases["training"], at)
    # A coordinator that takes over counts from 0.
    life = np.searchsorted(np.array(begins), at, side="right")
    before = _clock(phases["training"], np.array([0.0, *begins]))
    idle = share * (trained - before[life])
    steps = np.clip(np.diff(idle, prepend=0.0), 0.0, None)
    steps = np.where(np.diff(life, prepend=life[0]) > 0, idle, steps)
    total = np.interp(edges, at, np.cumsum(steps))
    training = np.diff(_clock(phases["training"], edges))
    waited = np.diff(total)
    return np.clip(np.divide(waited, training, out=np.zeros_like(waited), where=training > 0), 0, 1)


# -- time ------------------------------------------------------------------------------------------


def _edges(span: TimeSpan, width: float) -> Seconds:
    count = max(1, int(np.ceil((span.end - span.start) / width - 1e-9)))
    return np.linspace(span.start, span.end, count + 1)


def _clock(spans: Iterable[tuple[float, float]], at: Seconds) -> Seconds:
    """Seconds within any of the spans before each moment."""
    merged: list[list[float]] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    if not merged:
        return np.zeros(len(at))
    moments = np.array(merged).ravel()
    lengths = np.array([end - start for start, end in merged])
    passed = np.repeat(np.cumsum(lengths), 2)
    passed[::2] -= lengths
    return np.interp(at, moments, passed)


def _covered(spans: Iterable[tuple[float, float]], edges: Seconds) -> Seconds:
    """Seconds of each stretch within any of the spans."""
    return np.diff(_clock(spans, edges))


def _rows(
    lane: str, edges: Seconds, kinds: dict[str, Seconds]
) -> Sequence[tuple[str, str, float, float, float]]:
    widths = np.diff(edges)
    rows: list[tuple[str, str, float, float, float]] = []
    for i, width in enumerate(widths):
        start, end = float(edges[i]), float(edges[i + 1])
        for kind, seconds in kinds.items():
            share = float(seconds[i] / width)
            if share < 1e-6:
                continue
            before = rows[-1] if rows else None
            whole = share > 1 - 1e-6
            if whole and before and before[1] == kind and before[4] == 1.0 and before[3] == start:
                rows[-1] = (lane, kind, before[2], end, 1.0)
            else:
                rows.append((lane, kind, start, end, 1.0 if whole else share))
    return rows
