"""Processes and events: what happened, from the journal and from the supervisor."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from storage.queries.rewards import ALERT
from storage.reader import open_run
from storage.tables import Event, Process

if TYPE_CHECKING:
    import pandas as pd

_SUPERVISOR_LEVELS = {"died": "warning", "restarted": "warning", "gave_up": "error"}


def process_table(run_dir: Path) -> "pd.DataFrame":
    """One row a process: name, role, pid, host, state, detail, first_seen_at, changed_at, starts"""
    reader = open_run(run_dir)
    columns = [c for c in Process.__table__.columns if c.name != "run"]
    query = select(*columns).where(Process.run == reader.key).order_by(Process.role, Process.name)
    return reader.frame(query)


def events(
    run_dir: Path, *, limit: int = 500, level: str | None = None, kind: str | None = None
) -> "pd.DataFrame":
    """The newest events, newest first: at, level, kind, text. The supervisor's are of kind
    `supervisor` (so that a dead coordinator is on record too), but for a judge that stays away:
    that is an alert of the rewards."""
    import pandas as pd

    reader = open_run(run_dir)
    query = select(Event.at, Event.level, Event.kind, Event.text).where(Event.run == reader.key)
    if level is not None:
        query = query.where(Event.level == level)
    if kind is not None:
        query = query.where(Event.kind == kind)
    frame = reader.frame(query.order_by(Event.offset.desc()).limit(limit))
    lines = [
        {key: line[key] for key in ("at", "level", "kind", "text")}
        for line in supervisor_events(run_dir)
        if level in (None, line["level"]) and kind in (None, line["kind"])
    ]
    if lines:
        frame = pd.concat([frame, pd.DataFrame(lines)]) if len(frame) else pd.DataFrame(lines)
    return frame.sort_values("at", ascending=False, ignore_index=True).head(limit)


def supervisor_events(run_dir: Path) -> list[dict[str, Any]]:
    """Lines of supervisor.jsonl with `level`, `kind` and `text` added; a torn last line is left
    out."""
    path = run_dir / "supervisor.jsonl"
    lines: list[dict[str, Any]] = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        event, name = str(line.get("event", "")), str(line.get("name", ""))
        detail = str(line.get("detail") or "")
        lines.append(
            {
                **line,
                "at": float(line.get("at", 0.0)),
                "level": _SUPERVISOR_LEVELS.get(event, "info"),
                "kind": ALERT if event == "gave_up" and name.startswith("judge-") else "supervisor",
                "text": f"{name} {event}".strip() + (f": {detail}" if detail else ""),
            }
        )
    return lines
