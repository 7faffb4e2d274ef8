"""How each process of a run is, and what the run waits for.

In: the journal's processes and gauges, the supervisor's starts and deaths, `now.json`. Out: one
row a process, the coordinator and those that only the supervisor knows among them.
"""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from headrace.run_folder import NOW
from storage.queries.metrics import latest_values
from storage.queries.processes import supervisor_events
from storage.reader import RunReader, open_run
from storage.tables import Process

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
"""What the supervisor's words make of a process."""
_BY_THE_SUPERVISOR = ("supervisor", "dashboard")
"""Names in its events that are no process of the run's work."""


@dataclass(frozen=True)
class Word:
    """The coordinator's last word on how the run is. `at`: when; `waits`: what is waited for, in
    words with its owner, and the seconds since that last moved; `heard`: the seconds since each
    process was."""

    at: float
    phase: str
    waits: dict[str, float]
    heard: dict[str, float]


def process_health(run_dir: Path) -> "pd.DataFrame":
    """One row a process, with COLUMNS. `state`: up, gone (in good order), lost, given up. `starts`
    and `deaths` count those that coordinator or supervisor saw, `last_death` says how the last one
    came. `heartbeat_s` and `memory_bytes` are as of the run's newest sample; None: not known."""
    import pandas as pd

    reader = open_run(run_dir)
    rows = {row["name"]: row for row in _known(reader)}
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


def last_word(run_dir: Path) -> Word | None:
    """How the coordinator last said that the run is; None where it said nothing."""
    try:
        said = json.loads((run_dir / NOW).read_text())
        waits = {str(wait["for"]): float(wait["age_s"]) for wait in said["waits"]}
        heard = {str(name): float(age) for name, age in said["heard"].items()}
        return Word(float(said["at"]), str(said["phase"]), waits, heard)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _known(reader: RunReader) -> list[dict[str, Any]]:
    """Who said Hello."""
    columns = [c for c in Process.__table__.columns if c.name not in ("run", "first_seen_at")]
    rows = reader.rows(select(*columns).where(Process.run == reader.key))
    return [{**row._mapping, "deaths": 0, "last_death": None} for row in rows]


def _unheard(name: str) -> dict[str, Any]:
    """A process of which only the supervisor knows."""
    role = name.partition("-")[0]
    row: dict[str, Any] = {"name": name, "role": role, "pid": 0, "host": "", "detail": ""}
    return row | {"state": "gone", "changed_at": 0.0, "starts": 0, "deaths": 0, "last_death": None}


def _with_life(row: dict[str, Any], life: list[dict[str, Any]]) -> dict[str, Any]:
    """A row with what the supervisor saw of the process. Its word on the state counts where it is
    newer: a process that was killed says no Goodbye."""
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
