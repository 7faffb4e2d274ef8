"""Runs under a root, and the state of each."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, func, select

from headrace.errors import UserError
from headrace.run_files.run_folder import (
    COORDINATOR_FILE,
    LIVE_STATE_FILE,
    LOCK,
    NOTES,
    RESOLVED,
    WRITER,
    is_evaluation,
    is_reward_model,
    is_running,
    run_folders,
)
from headrace.run_files.run_notes import RunNotes, read_notes
from storage.database.reader import RunReader, open_run, read_config
from storage.database.tables import Evaluation, Event, Projection, Run, Update
from storage.journal.segments import end_of
from storage.projection.history import FINAL_PHASES
from storage.queries.evaluations import is_undone
from storage.queries.metrics import newest_value
from storage.queries.processes import CoordinatorStatus, coordinator_status
from storage.queries.reward_models import reward_model_config, reward_model_summary

_SILENCE_S = 30.0
ENDED = (*FINAL_PHASES, "lost")
"""The statuses of a run that has ended."""
UNREADABLE = "unreadable"
"""The status of a folder that holds a run and cannot be read as one."""
_LONGEST_REASON = 300
_ASKED = {"interrupted": "interrupted by Ctrl-C or a signal", "stopped": "asked to stop"}
_SAME = ("run_id", "status", "started_at", "wall_s", "kind", "detail", "seed")
"""Fields of a line that a reward model's summary has under the same names."""


@dataclass(frozen=True)
class RunLine:
    """One run in a list of runs.

    Accuracies are held-out, of evaluations that no rollback undid; None: not evaluated; `accuracy`
    is the newest. `kind` is training, evaluation (of an untrained model: its accuracy is that
    before), or reward model, whose updates are optimizer steps. `detail`: why it ended, or is
    unreadable. `lineage`: how often training went back to a checkpoint. `notes`: those of people.
    `sql`: why SQL lacks some of the run, and the time of its figures; status and updates are then
    as the coordinator last wrote."""

    run_id: str
    run_dir: Path
    name: str
    status: str
    started_at: float | None
    wall_s: float = 0.0
    updates: int = 0
    trained_tokens: int = 0
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    reward: float | None = None
    kind: str = "training"
    detail: str = ""
    algorithm: str = ""
    mode: str = ""
    seed: int | None = None
    accuracy: float | None = None
    lineage: int = 0
    notes: RunNotes = field(default_factory=RunNotes)
    sql: str = ""


@dataclass(frozen=True)
class RunState:
    """The state of a run. `status` is its last phase, or `lost` where its coordinator is gone
    without having said how the run ended. `ended`: why it ended, in words; empty while it goes
    on. `sql`: as in RunLine; `updates` are then those that SQL need not have."""

    status: str
    detail: str
    name: str
    lineage: int
    started_at: float | None
    last_at: float | None
    ended: str = ""
    sql: str = ""
    updates: int = 0


def list_runs(root: Path) -> list[RunLine]:
    """Runs under a root, newest first.

    An unreadable run is a line with the reason in `detail`; folders without a run are left
    out. Ended runs are read again only when something was written to their folders."""
    lines = [_known_line(folder) for folder in run_folders(root)]
    return sorted(lines, key=lambda line: line.started_at or 0.0, reverse=True)


_ENDED: dict[Path, tuple[tuple[float, ...], RunLine]] = {}
"""Lines of ended runs, each with the times of its files when it was read."""
_MOST_ENDED = 10_000
_WRITTEN = (
    *("resolved.json", "headrace.sqlite", COORDINATOR_FILE, LIVE_STATE_FILE),
    *("supervisor.jsonl", "reward-model.json", "status.json", "journal", LOCK, WRITER, NOTES),
)
"""Files that every run writes; not the WAL, which readers create again, but empty."""
_WAL = "headrace.sqlite-wal"


def _known_line(run_dir: Path) -> RunLine:
    times = _times(run_dir)
    known = _ENDED.get(run_dir)
    if known is not None and known[0] == times:
        return known[1]
    line = any_line(run_dir)
    if line.status in ENDED and not line.sql:
        if len(_ENDED) >= _MOST_ENDED:
            _ENDED.clear()
        _ENDED[run_dir] = (times, line)
    return line


def _times(run_dir: Path) -> tuple[float, ...]:
    found = []
    for name in (*_WRITTEN, _WAL):
        try:
            about = (run_dir / name).stat()
            found.append(float(about.st_size) if name == _WAL else about.st_mtime)
        except OSError:
            found.append(0.0)
    return tuple(found)


def any_line(run_dir: Path) -> RunLine:
    """`run_line`, or a line with the error: an unreadable folder must not hide the others."""
    try:
        return run_line(run_dir)
    except Exception as error:
        return _unread_line(run_dir, error)


def run_line(run_dir: Path) -> RunLine:
    """The line of one run; UserError where the folder holds none."""
    if is_reward_model(run_dir):
        return _reward_model_line(run_dir)
    return _line(open_run(run_dir))


def run_config(run_dir: Path) -> dict[str, Any]:
    """The resolved configuration of a run."""
    return reward_model_config(run_dir) if is_reward_model(run_dir) else read_config(run_dir)


def run_state(reader: RunReader) -> RunState:
    """The present state of a run."""
    about = (Run.status, Run.detail, Run.name, Run.lineage, Run.started_at)
    query = (
        select(*about, Projection.last_at, Projection.next_offset)
        .join(Projection, Projection.run == Run.id)
        .where(Run.id == reader.key)
    )
    status, detail, name, lineage, started_at, last_at, known = reader.rows(query)[0]
    word = coordinator_status(reader.run_dir)
    sql = word.lag(known, last_at) if word is not None else ""
    if word is not None and sql and known < end_of(reader.run_dir / "journal").rows:
        status = _phase(reader.run_dir, word)
        return RunState(
            status, "", name, lineage, started_at, word.at, sql=sql, updates=word.updates
        )
    if status not in FINAL_PHASES and _is_gone(reader.run_dir, last_at):
        status, detail = "lost", f"the coordinator is gone, last seen while {status}"
    ended = _why_ended(reader, status, detail)
    return RunState(status, detail, name, lineage, started_at, last_at, ended)


def surviving(reader: RunReader) -> list[ColumnElement[bool]]:
    """Conditions for updates that ended, on a lineage that was not given up."""
    return [
        Update.run == reader.key,
        Update.state.in_(["committed", "skipped"]),
        Update.abandoned.is_(False),
    ]


def _why_ended(reader: RunReader, status: str, detail: str) -> str:
    """Return why a run ended: the condition reached, who asked for it, or the error."""
    if status in ("interrupted", "stopped"):
        return detail or _ASKED[status]
    if status not in FINAL_PHASES or detail:
        return detail
    # A coordinator says what it drains for when it begins to.
    query = (
        select(Event.text)
        .where(Event.run == reader.key, Event.kind == "phase", Event.text.startswith("draining: "))
        .order_by(Event.offset.desc())
        .limit(1)
    )
    return str(reader.value(query) or "").partition(": ")[2]


def _phase(run_dir: Path, word: CoordinatorStatus) -> str:
    """The phase that the coordinator wrote last, or `lost`."""
    if word.phase not in FINAL_PHASES and _is_gone(run_dir, word.at):
        return "lost"
    return word.phase


def _is_gone(run_dir: Path, last_at: float | None) -> bool:
    """Silent for long, and held by no process on this machine."""
    is_silent = last_at is not None and time.time() - last_at >= _SILENCE_S
    return is_silent and not is_running(run_dir)


def _unread_line(run_dir: Path, error: Exception) -> RunLine:
    """A line without figures. If a supervisor holds the folder, its database is still to come."""
    reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    reason = " ".join(reason.split())[:_LONGEST_REASON]
    with suppress(OSError, UserError):
        if line := line_of_folder(run_dir, reason):
            return line
    begun, held = 0.0, is_running(run_dir)
    with suppress(OSError):
        begun = run_dir.stat().st_ctime
    return RunLine(
        run_id=run_dir.name,
        run_dir=run_dir,
        name=run_dir.name,
        status="starting" if held else UNREADABLE,
        started_at=begun,
        detail="" if held else reason,
        notes=read_notes(run_dir),
    )


def line_of_folder(run_dir: Path, trouble: str) -> RunLine | None:
    """A run's line from its folder alone, where its server cannot be asked; `trouble` says why."""
    word, config = coordinator_status(run_dir), read_config(run_dir)
    if word is None or not word.records or config.get("storage", {}).get("database") is None:
        return None
    begun = (run_dir / RESOLVED).stat().st_ctime
    sql = f"{trouble}; status and updates are as the coordinator last said"
    return RunLine(
        run_id=run_dir.name,
        run_dir=run_dir,
        name=str(config.get("name")),
        status=_phase(run_dir, word),
        started_at=begun,
        wall_s=word.at - begun,
        updates=word.updates,
        **_chosen(run_dir, config),
        sql=f"{sql} {word.sql}".rstrip(),
    )


def _line(reader: RunReader) -> RunLine:
    state = run_state(reader)
    updates = reader.rows(
        select(func.max(Update.update), func.max(Update.trained_tokens)).where(*surviving(reader))
    )[0]
    evaluated = reader.rows(
        select(Evaluation.label, Evaluation.accuracy)
        .where(Evaluation.run == reader.key, ~is_undone())
        .order_by(Evaluation.offset)
    )
    accuracies: dict[str, float] = {label: accuracy for label, accuracy in evaluated}
    known = [accuracy for _, accuracy in evaluated if accuracy is not None]
    return RunLine(
        run_id=reader.run_id,
        run_dir=reader.run_dir,
        name=state.name,
        status=state.status,
        started_at=state.started_at,
        wall_s=(state.last_at or 0.0) - (state.started_at or 0.0),
        updates=max(updates[0] or 0, state.updates),
        trained_tokens=updates[1] or 0,
        accuracy_before=accuracies.get("before"),
        accuracy_after=accuracies.get("after"),
        reward=newest_value(reader, "reward/mean"),
        detail=state.ended,
        accuracy=known[-1] if known else None,
        lineage=state.lineage,
        sql=state.sql,
        **_chosen(reader.run_dir, read_config(reader.run_dir)),
    )


def _chosen(run_dir: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a line that people chose."""
    return {
        "kind": "evaluation" if is_evaluation(run_dir) else "training",
        "algorithm": str(config.get("algorithm", {}).get("name", "")),
        "mode": str(config.get("schedule", {}).get("mode", "")),
        "seed": config.get("seed"),
        "notes": read_notes(run_dir),
    }


def _reward_model_line(run_dir: Path) -> RunLine:
    run_dir = run_dir.resolve()
    row = reward_model_summary(run_dir)
    before, after = (row["held_out"][when].get("accuracy") for when in ("before", "after"))
    return RunLine(
        **{name: row[name] for name in _SAME},
        run_dir=run_dir,
        name=row["recipe"],
        updates=row["steps"],
        trained_tokens=row["tokens"],
        accuracy_before=before,
        accuracy_after=after,
        algorithm=row["objective"],
        accuracy=before if after is None else after,
        notes=read_notes(run_dir),
    )
