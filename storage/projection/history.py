"""Records that become rows and nothing else: losses, versions, processes, events."""

from collections import Counter

from sqlalchemy import Connection, select, update

from storage.database.tables import Process, Run, TokenLoss, WeightVersion
from storage.projection.rows import PlacedRecord, SqlRow, add_event, clean_text, upsert_rows

FINAL_PHASES = ("finished", "failed", "interrupted", "stopped")


def add_losses(connection: Connection, run: int, records: list[PlacedRecord]) -> None:
    """Tokens that the journal will never have, counted by generator and reason."""
    counts: Counter[tuple[str, str]] = Counter()
    for _, r in records:
        counts[r.generator, r.reason] += r.tokens
    rows = [
        {"generator": generator, "reason": reason, "tokens": tokens}
        for (generator, reason), tokens in sorted(counts.items())
    ]
    upsert_rows(connection, run, TokenLoss, rows, add=("tokens",))


def add_versions(connection: Connection, run: int, records: list[PlacedRecord]) -> None:
    """Weights got a version."""
    names = ("version", "lineage", "update", "num_bytes", "ranker")
    rows = [
        {**{name: getattr(r, name) for name in names}, "published_at": r.at, "offset": offset}
        for offset, r in records
    ]
    upsert_rows(connection, run, WeightVersion, rows)


def change_processes(connection: Connection, run: int, records: list[PlacedRecord]) -> None:
    """Processes by name, and a line of history each."""
    query = select(Process.name, Process.first_seen_at, Process.starts).where(Process.run == run)
    known = {name: (first, starts) for name, first, starts in connection.execute(query)}
    rows: dict[str, SqlRow] = {}
    for offset, r in records:
        first, starts = known.get(r.name, (r.at, 0))
        known[r.name] = first, starts = first, starts + (r.state == "up")
        rows[r.name] = {
            **{name: getattr(r, name) for name in ("name", "role", "pid", "host", "state")},
            "detail": clean_text(r.detail),
            "first_seen_at": first,
            "changed_at": r.at,
            "starts": starts,
        }
        line = f"{r.name} is {r.state}" + (f": {r.detail}" if r.detail else "")
        level = "warning" if r.state == "lost" else "info"
        add_event(connection, run, offset, r.at, level, "process", line)
    upsert_rows(connection, run, Process, list(rows.values()))


def add_restarts(connection: Connection, run: int, records: list[PlacedRecord]) -> None:
    """A new coordinator took over."""
    for offset, r in records:
        line = "a new coordinator took over from the journal"
        add_event(connection, run, offset, r.at, "warning", "restarted", line)


def change_phase(connection: Connection, run: int, records: list[PlacedRecord]) -> None:
    """The run moved on."""
    for offset, r in records:
        line = r.phase + (f": {r.detail}" if r.detail else "")
        level = "error" if r.phase == "failed" else "info"
        add_event(connection, run, offset, r.at, level, "phase", line)
    last = records[-1][1]
    ended_at = last.at if last.phase in FINAL_PHASES else None
    connection.execute(
        update(Run)
        .where(Run.id == run)
        .values(status=last.phase, detail=clean_text(last.detail), ended_at=ended_at)
    )
