"""Health of a run's processes, in a sentence and as a table.

Pure: rows of `storage.queries.process_health`, the run's line and the coordinator's last word in;
text and frames out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dashboard.formatting import duration, gibibytes
from dashboard.reads.data import is_live
from headrace.errors import moment
from storage.queries import CoordinatorStatus, RunLine

LONG_WAIT_S = 30.0
"""A wait of which the first sentence speaks."""
NAMED = 4
"""Maximum number of troubles in the sentence; the table has all."""
COORDINATOR = "coordinator"
_BAD = ("failed", "lost")
_ENDS = {"finished": "has finished", "failed": "has failed", "interrupted": "was interrupted"}


@dataclass(frozen=True)
class HealthSnapshot:
    """State of a run's processes at one moment, `now` (epoch seconds).

    `word`: the coordinator's last status; `silent_s`: a process not heard for this long is silent.
    """

    line: RunLine
    word: CoordinatorStatus | None
    now: float
    silent_s: float

    def silence(self, row: Mapping[Any, Any]) -> float | None:
        """Seconds since a process was heard; None where nobody listens to it. The coordinator is
        heard by what it writes; it listens to the others, so that their ages grow with its own."""
        if row["state"] != "up" or not is_live(self.line):
            return None
        newest = (self.line.started_at or self.now) + self.line.wall_s
        if self.word is not None and self.word.at >= newest:
            newest, beats = self.word.at, self.word.heard
        else:
            beats = {row["name"]: row["heartbeat_s"]}
        lag = max(0.0, self.now - newest)
        beat = 0.0 if row["role"] == COORDINATOR else beats.get(row["name"])
        return None if beat is None else beat + lag

    def state(self, row: Mapping[Any, Any]) -> str:
        """A process's state in a word: `silent` is up and not heard; of a run that has ended, what
        nobody saw end has `ended` with it, or was `left behind` by a coordinator that is lost."""
        if row["state"] != "up":
            return str(row["state"])
        if not is_live(self.line):
            return "left behind" if self.line.status == "lost" else "ended"
        age = self.silence(row)
        return "silent" if age is not None and age > self.silent_s else "up"


def health_sentence(rows: pd.DataFrame, look: HealthSnapshot) -> tuple[str, bool]:
    """The first words of the page, and whether all is well."""
    line = look.line
    deaths = [
        f"{row['name']} died {_times(row['deaths'])} ({row['last_death']})"
        for row in _records(rows)
        if row["deaths"]
    ]
    if not is_live(line):
        deaths = [text for text in deaths if text not in line.detail]
        why = f": {line.detail}" if line.detail and line.status in _BAD else ""
        said = f"The run {_ENDS.get(line.status, f'was {line.status}')}{why}."
        if deaths:
            return f"{said} {_listed(deaths)}", line.status not in _BAD
        if line.status == "finished" and len(rows):
            said += f" {_all(len(rows))} ended in good order."
        return said, line.status not in _BAD
    if rows.empty:
        return "No process has said hello yet.", True
    if troubles := _troubles(rows, look):
        return _listed(troubles), False
    said = f"{_all(len(rows))} {'is' if len(rows) == 1 else 'are'} well."
    if deaths:
        said += f" {_listed(deaths)}"
    waits = look.word.waits if look.word else {}
    longest = max(waits, key=waits.__getitem__, default="")
    if longest and waits[longest] > LONG_WAIT_S:
        return f"{said} The run waits for {longest}: {duration(waits[longest])} by now.", False
    return said, True


def health_rows(rows: pd.DataFrame, look: HealthSnapshot) -> pd.DataFrame:
    """The table of processes as shown."""
    return pd.DataFrame(
        [
            {
                "process": row["name"],
                "state": look.state(row),
                "last heard": "-" if (age := look.silence(row)) is None else f"{age:.1f} s ago",
                "state since": moment(row["changed_at"]) if row["changed_at"] else "-",
                "restarts": max(0, row["starts"] - 1),
                "last death": row["last_death"] or "-",
                "memory": gibibytes(row["memory_bytes"]),
                "role": row["role"],
                "pid": str(row["pid"] or "-"),
                "host": row["host"] or "-",
            }
            for row in _records(rows)
        ]
    )


def _troubles(rows: pd.DataFrame, look: HealthSnapshot) -> list[str]:
    """Present problems. Where the coordinator is silent or lost, nothing is known of the others."""
    found: dict[str, str] = {}
    for row in _records(rows):
        state, name = look.state(row), row["name"]
        if state == "silent":
            found[name] = f"{name} has been silent for {duration(look.silence(row))}"
        elif state in ("lost", "given up"):
            how = row["detail"] or row["last_death"]
            found[name] = f"{name} is {state}" + (f" ({how})" if how else "")
    return [found[COORDINATOR]] if COORDINATOR in found else list(found.values())


def _records(rows: pd.DataFrame) -> list[dict[Any, Any]]:
    """The rows, with None for what is not known."""
    return rows.astype(object).where(rows.notna(), None).to_dict("records")


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - NAMED
    return "; ".join(texts[:NAMED]) + (f"; and {more} more" if more > 0 else "") + "."


def _all(number: int) -> str:
    return "The only process" if number == 1 else f"All {number} processes"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")
