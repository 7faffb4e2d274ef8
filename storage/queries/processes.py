"""Processes and events, status of a run, and the last stack in the log of each process.

In: the journal's processes, gauges and events, the supervisor's starts and deaths, `now.json`,
logs.
"""

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import select

from headrace.errors import moment
from headrace.run_files.checked_lines import whole_lines
from headrace.run_files.run_folder import EVENTS_FILE, LIVE_STATE_FILE
from storage.database.reader import open_run
from storage.database.tables import Event, Process
from storage.projection.history import FINAL_PHASES
from storage.queries.metrics import latest_values
from storage.queries.rewards import ALERT

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *("name", "role", "pid", "host", "state", "detail", "changed_at"),
    *("starts", "deaths", "last_death", "heartbeat_s", "memory_bytes"),
)
_STATES = {
    **{"started": "up", "restarted": "up", "left": "gone", "died": "lost", "gave_up": "given up"},
    "ended": "gone",
}
"""State of a process by the supervisor's last event of it."""
_BY_THE_SUPERVISOR = ("supervisor", "dashboard")
"""Names in its events that are no process of the run's work."""
_SUPERVISOR_LEVELS = {"died": "warning", "restarted": "warning", "gave_up": "error"}


def events(run_dir: Path, *, limit: int = 500, kind: str | None = None) -> "pd.DataFrame":
    """The newest events, newest first: at, level, kind, text.

    The supervisor's are of kind `supervisor`, so that a dead coordinator is on record too, but for
    a missing judge, which is an alert of the rewards."""
    import pandas as pd

    reader = open_run(run_dir)
    query = select(Event.at, Event.level, Event.kind, Event.text).where(Event.run == reader.key)
    if kind is not None:
        query = query.where(Event.kind == kind)
    frame = reader.frame(query.order_by(Event.offset.desc()).limit(limit))
    lines = [
        {key: line[key] for key in ("at", "level", "kind", "text")}
        for line in supervisor_events(run_dir)
        if kind in (None, line["kind"])
    ]
    if lines:
        frame = pd.concat([frame, pd.DataFrame(lines)]) if len(frame) else pd.DataFrame(lines)
    return frame.sort_values("at", ascending=False, ignore_index=True).head(limit)


def supervisor_events(run_dir: Path) -> list[dict[str, Any]]:
    """Whole lines of supervisor.jsonl, each with `level`, `kind` and `text`."""
    path = run_dir / EVENTS_FILE
    lines: list[dict[str, Any]] = []
    for line in whole_lines(path) if path.exists() else []:
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


# -- how they are -------------------------------------------------------------------------------


@dataclass(frozen=True)
class CoordinatorStatus:
    """Status that the coordinator wrote last. `at`: when; `waits`: what is waited for, with its
    owner, and the seconds since it last moved; `heard`: seconds since each process's last message;
    `updates`, and the journal's `records`; `sql`: why SQL lacks some of these."""

    at: float
    phase: str
    waits: dict[str, float]
    heard: dict[str, float]
    updates: int = 0
    records: int = 0
    sql: str = ""

    def lag(self, records: int, last_at: float | None) -> str:
        """Warn that SQL has only this many records, the last one at `last_at`. Empty if it has all,
        or lacks only those of a moment ago."""
        if records >= self.records or not (self.sql or self.phase in FINAL_PHASES):
            return ""
        why = self.sql or "SQL lacks the run's end, which a resume or `audit --repair` brings"
        when = "none" if last_at is None else f"as of {moment(last_at)}"
        return f"{why}; all other figures than status and updates: {when}"


def process_health(run_dir: Path) -> "pd.DataFrame":
    """One row per process, with COLUMNS.

    `state`: up, gone (in good order), lost, given up. `starts` and `deaths` count those that
    coordinator or supervisor saw, `last_death` is the last one's cause. `heartbeat_s` and
    `memory_bytes` are as of the run's newest sample; None: not known."""
    import pandas as pd

    reader = open_run(run_dir)
    columns = [c for c in Process.__table__.columns if c.name not in ("run", "first_seen_at")]
    # Those that said Hello.
    known = reader.rows(select(*columns).where(Process.run == reader.key))
    rows = {row.name: dict[str, Any](row._mapping, deaths=0, last_death=None) for row in known}
    lives = defaultdict[str, list[dict[str, Any]]](list)
    for event in supervisor_events(run_dir):
        if event.get("event") in _STATES and event.get("name") not in _BY_THE_SUPERVISOR:
            lives[str(event.get("name"))].append(event)
    for name, life in lives.items():
        rows[name] = _with_life(rows.get(name) or _unheard(name), life)
    latest = latest_values(reader, "heartbeat/") | latest_values(reader, "memory/")
    for name, row in rows.items():
        row["heartbeat_s"] = latest.get(f"heartbeat/{name}")
        row["memory_bytes"] = latest.get(f"memory/{name}")
    ordered = sorted(rows.values(), key=lambda row: (row["role"], row["name"]))
    return pd.DataFrame(ordered, columns=list(COLUMNS))


def coordinator_status(run_dir: Path) -> CoordinatorStatus | None:
    """Read the run's status that the coordinator wrote last; None where there is none."""
    try:
        said = json.loads((run_dir / LIVE_STATE_FILE).read_text())
        waits = {str(wait["for"]): float(wait["age_s"]) for wait in said["waits"]}
        heard = {str(name): float(age) for name, age in said["heard"].items()}
        counts = (int(said.get("updates", 0)), int(said.get("records", 0)))
        sql = said.get("sql")
        why = f"{sql['text']} ({float(sql['age_s']):.0f} s by {moment(said['at'])})" if sql else ""
        return CoordinatorStatus(float(said["at"]), str(said["phase"]), waits, heard, *counts, why)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _unheard(name: str) -> dict[str, Any]:
    """A process of which only the supervisor knows."""
    role = name.partition("-")[0]
    row: dict[str, Any] = {"name": name, "role": role, "pid": 0, "host": "", "detail": ""}
    return row | {"state": "gone", "changed_at": 0.0, "starts": 0, "deaths": 0, "last_death": None}


def _with_life(row: dict[str, Any], life: list[dict[str, Any]]) -> dict[str, Any]:
    """Add the supervisor's view of a process to its row. Its state counts where it is newer: a
    process that was killed says no Goodbye."""
    deaths = [event for event in life if event["event"] == "died"]
    starts = [event for event in life if event["event"] in ("started", "restarted")]
    row |= {"deaths": len(deaths), "starts": max(row["starts"], len(starts))}
    if deaths:
        row["last_death"] = deaths[-1].get("detail") or f"exit code {deaths[-1].get('code')}"
    newest = life[-1]
    is_start = newest["event"] in ("started", "restarted")
    if starts and (starts[-1]["at"] >= row["changed_at"] or not row["pid"]):
        row["pid"] = starts[-1].get("pid", 0)
    if newest["at"] > row["changed_at"] and not (is_start and row["state"] == "up"):
        row |= {"state": _STATES[newest["event"]], "changed_at": newest["at"]}
        row["detail"] = newest.get("detail") or ""
    return row


# -- stacks: of all threads on request, or a traceback ---------------------------------------------


_READ_BYTES = 256 << 10
_MOST_LINES = 400
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):")
_TRACEBACK = "Traceback (most recent call last):"
_FATAL = "Fatal Python error: "
_CHAINED = ("During handling of the above", "The above exception was the direct cause")


@dataclass(frozen=True)
class StackDump:
    """The stack of all `threads` (on request or at a crash), or a `traceback`. `at`: when
    requested, or None."""

    kind: Literal["threads", "traceback"]
    text: str
    at: float | None = None


def last_stacks(run_dir: Path) -> dict[str, StackDump]:
    """By process, the last stack in the last part of its log."""
    events = supervisor_events(run_dir)
    asked = {event.get("name"): event["at"] for event in events if event.get("event") == "stacks"}
    found = {}
    for path in sorted((run_dir / "logs").glob("*.log")):
        stack = last_stack(_end(path))
        if stack is not None:
            at = asked.get(path.stem) if stack.kind == "threads" else None
            found[path.stem] = StackDump(stack.kind, stack.text, at)
    return found


def last_stack(text: str) -> StackDump | None:
    """The last stack in what a process printed."""
    lines = text.splitlines()
    for place in range(len(lines) - 1, -1, -1):
        if _THREAD.match(lines[place]):
            return StackDump("threads", _joined(_threads(lines, place)))
        if lines[place].startswith(_TRACEBACK):
            return StackDump("traceback", _joined(_traceback(lines, place)))
    return None


def _threads(lines: list[str], last: int) -> list[str]:
    """All threads of the dump of which the last one begins here."""
    end = last + 1
    while end < len(lines) and lines[end].startswith("  "):
        end += 1
    first = last
    for place in range(last - 1, -1, -1):
        line = lines[place]
        if _THREAD.match(line) or line.startswith(_FATAL):
            first = place
        elif line and not line.startswith("  "):
            break
    return lines[first:end]


def _traceback(lines: list[str], last: int) -> list[str]:
    """The traceback that begins here, below those of the exceptions that led to it."""
    end = last + 1
    while end < len(lines) and lines[end].startswith(" "):
        end += 1
    first = last
    while (cause := _cause(lines, first)) is not None:
        first = cause
    return lines[first : end + 1]


def _cause(lines: list[str], first: int) -> int | None:
    """The line where the traceback begins that led to the one that begins at `first`."""
    above = first - 1
    while above >= 0 and not lines[above]:
        above -= 1
    if above < 0 or not lines[above].startswith(_CHAINED):
        return None
    begins = [place for place in range(above) if lines[place].startswith(_TRACEBACK)]
    return begins[-1] if begins else None


def _joined(lines: list[str]) -> str:
    return "\n".join(lines[-_MOST_LINES:]).strip()


def _end(path: Path) -> str:
    """The last part of a log; empty where it cannot be read."""
    try:
        with path.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - _READ_BYTES))
            return log.read().decode(errors="replace")
    except OSError:
        return ""
