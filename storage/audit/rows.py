"""Checks of SQL against the journal, row by row.

In: facts of the journal up to the offset that SQL has, and a connection that sees one moment.
Out: findings for rows that are missing, too many, or say something else.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sqlalchemy import Connection, func, select

from storage.audit.findings import Findings
from storage.audit.journal_facts import JournalFacts, TrajectoryFacts, WindowFacts
from storage.database.tables import (
    Base,
    Checkpoint,
    Evaluation,
    Group,
    Prompt,
    Run,
    TokenLoss,
    Trajectory,
    Update,
    ValueUse,
    WeightVersion,
    Window,
)

_AT_ONCE = 10_000
SqlRow = dict[str, Any]


class SqlRowChecks:
    """The rows of one run."""

    def __init__(self, connection: Connection, run: int, findings: Findings) -> None:
        self._connection = connection
        self._run = run
        self._findings = findings

    def compare(self, facts: JournalFacts) -> None:
        """Look at all tables that say what the account says."""
        self._rows(Trajectory, ("trajectory_id",), facts.trajectories, _trajectory_row)
        self._rows(Window, ("window_id",), facts.windows, _window_row)
        taken = {key: t for key, t in facts.trajectories.items() if t.value_taken}
        self._rows(ValueUse, ("trajectory_id",), taken, _value_row)
        self._rows(Update, ("lineage", "update"), facts.updates, partial(_row, names=_UPDATE))
        self._rows(WeightVersion, ("version",), facts.published, _version_row)
        self._rows(Checkpoint, ("offset",), facts.checkpoints, partial(_row, names=_CHECKPOINT))
        self._rows(TokenLoss, ("generator", "reason"), facts.lost, lambda n: {"tokens": n})
        for table, number in (
            (Group, len(facts.groups)),
            (Prompt, len(facts.prompts)),
            (Evaluation, facts.evaluations),
        ):
            counted = select(func.count()).select_from(table)
            query = counted.where(table.__table__.c.run == self._run)
            rows = self._connection.execute(query).scalar_one()
            if rows != number:
                self._say(table, f"{rows} rows, and the journal has {number}")
        about = select(Run.status, Run.lineage).where(Run.id == self._run)
        run = self._connection.execute(about).one()
        if tuple(run) != (facts.phase, facts.lineage):
            text = f"{run.status}, lineage {run.lineage}; the journal: {facts.phase}"
            self._say(Run, f"{text}, lineage {facts.lineage}")

    def _say(self, table: type[Base], text: str) -> None:
        self._findings.add("sql", table.__tablename__, text)

    def _rows(
        self,
        table: type[Base],
        keys: tuple[str, ...],
        facts: Mapping[Any, Any],
        row_of: Callable[[Any], SqlRow],
    ) -> None:
        """Compare each row with the one that `row_of` makes of the fact under its key, one at a
        time, so that rows never fill the memory."""
        columns = table.__table__.c
        names = list(row_of(next(iter(facts.values())))) if facts else []
        query = select(*(columns[name] for name in (*keys, *names))).where(columns.run == self._run)
        seen = set()
        for row in self._connection.execute(query.execution_options(yield_per=_AT_ONCE)):
            key = row[0] if len(keys) == 1 else tuple(row[: len(keys)])
            seen.add(key)
            if key not in facts:
                self._differ(table, key, "the journal has no such thing")
                continue
            made = zip(names, row[len(keys) :], row_of(facts[key]).values(), strict=True)
            for column, value, wanted in made:
                if _plain(value) != _plain(wanted):
                    text = f"{column} is {value} and the journal says {wanted}"
                    self._differ(table, key, text)
        for key in sorted(facts.keys() - seen):
            self._differ(table, key, "the row is missing")

    def _differ(self, table: type[Base], key: Any, text: str) -> None:
        parts = key if isinstance(key, tuple) else (key,)
        name = f"{table.__tablename__} {', '.join(str(part) for part in parts)}"
        self._findings.add("sql", name, text)


def _plain(value: Any) -> Any:
    """A form in which lists, tuples and what JSON made of them are equal."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _row(fact: Any, names: tuple[str, ...]) -> SqlRow:
    return {name: getattr(fact, name) for name in names}


# fmt: off
_TRAJECTORY = (
    "group_id", "purpose", "status", "finish", "length", "reward", "reward_status",
    "reward_source", "reward_model", "audit_status", "audit_source", "audit_reward",
)
_WINDOW = (
    "trajectory_id", "index", "start", "end", "tokens", "min_version", "max_version", "final",
    "state", "reason", "lines", "lineage", "update", "version",
)
_CHECKPOINT = ("lineage", "update", "path")
_UPDATE = ("version", "num_windows", "num_values", "state", "trained_tokens", "abandoned")
# fmt: on


def _trajectory_row(t: TrajectoryFacts) -> SqlRow:
    versions = [span.version for span in t.spans]
    return _row(t, _TRAJECTORY) | {
        "sampled": t.received,
        "inserted": t.length - t.received,
        "rewards": None if t.rewards is None else [[r.value, r.position] for r in t.rewards],
        "min_version": min(versions, default=None),
        "max_version": max(versions, default=None),
    }


def _window_row(w: WindowFacts) -> SqlRow:
    return _row(w, _WINDOW) | {
        "masked": [[m.reason, m.start, m.end, m.tokens] for m in w.masked],
        "masked_tokens": sum(m.tokens for m in w.masked),
    }


def _value_row(t: TrajectoryFacts) -> SqlRow:
    return {"state": t.value, "lineage": t.value_lineage, "update": t.value_update}


def _version_row(version: tuple[int, int]) -> SqlRow:
    return {"lineage": version[0], "update": version[1]}
