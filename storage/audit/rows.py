"""Checks of SQL against the journal, row by row.

Comes in: facts of the journal up to the offset that SQL has, and a connection that sees one moment.
Goes out: findings for rows that are missing, too many, or say something else.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, func, select

from storage.audit.facts import Facts, TrajectoryFacts, WindowFacts
from storage.audit.findings import Findings
from storage.tables import (
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
Row = dict[str, Any]


class Rows:
    """The rows of one run."""

    def __init__(self, connection: Connection, run: int, findings: Findings) -> None:
        self._connection = connection
        self._run = run
        self._findings = findings

    def compare(self, facts: Facts) -> None:
        """Look at all tables that say what the account says."""
        self._table(Trajectory, ("trajectory_id",), _trajectory_row, facts.trajectories.values())
        self._table(Window, ("window_id",), _window_row, facts.windows.values())
        taken = (t for t in facts.trajectories.values() if t.value_taken)
        self._table(ValueUse, ("trajectory_id",), _value_row, taken)
        names = ("version", "num_windows", "num_values", "state", "trained_tokens", "abandoned")
        self._rows(
            Update,
            {key: {name: getattr(u, name) for name in names} for key, u in facts.updates.items()},
            ("lineage", "update"),
        )
        self._rows(
            WeightVersion,
            {(v,): {"lineage": line, "update": u} for v, (line, u) in facts.published.items()},
            ("version",),
        )
        self._rows(
            Checkpoint,
            {
                (offset,): {"lineage": c.lineage, "update": c.update, "path": c.path}
                for offset, c in facts.checkpoints.items()
            },
            ("offset",),
        )
        self._rows(
            TokenLoss,
            {key: {"tokens": tokens} for key, tokens in facts.lost.items()},
            ("generator", "reason"),
        )
        for table, number in (
            (Group, len(facts.groups)),
            (Prompt, len(facts.prompts)),
            (Evaluation, facts.evaluations),
        ):
            query = (
                select(func.count()).select_from(table).where(table.__table__.c.run == self._run)
            )
            rows = self._connection.execute(query).scalar_one()
            if rows != number:
                self._say(table, f"{rows} rows, and the journal has {number}")
        run = self._connection.execute(
            select(Run.status, Run.lineage).where(Run.id == self._run)
        ).one()
        if tuple(run) != (facts.phase, facts.lineage):
            text = f"{run.status}, lineage {run.lineage}; the journal: {facts.phase}"
            self._say(Run, f"{text}, lineage {facts.lineage}")

    def _say(self, table: type[Base], text: str) -> None:
        self._findings.add("sql", table.__tablename__, text)

    def _table(
        self, table: type[Base], keys: tuple[str, ...], row_of: Any, facts: Iterable[Any]
    ) -> None:
        """`_rows` with a row of each fact, made as it is looked at."""
        known = {tuple(getattr(fact, key) for key in keys): fact for fact in facts}
        self._rows(table, _Made(known, row_of), keys)

    def _rows(self, table: type[Base], expected: Mapping[Any, Row], keys: tuple[str, ...]) -> None:
        """Each row against the one expected under its key."""
        columns = table.__table__.c
        names = list(next(iter(expected.values()), {}))
        query = select(*(columns[name] for name in (*keys, *names))).where(columns.run == self._run)
        seen = set()
        result = self._connection.execute(query.execution_options(yield_per=_AT_ONCE))
        for row in result:
            key, values = tuple(row[: len(keys)]), row[len(keys) :]
            seen.add(key)
            name = f"{table.__tablename__} {', '.join(str(part) for part in key)}"
            if key not in expected:
                self._findings.add("sql", name, "the journal has no such thing")
                continue
            for column, value, wanted in zip(names, values, expected[key].values(), strict=True):
                if _plain(value) != _plain(wanted):
                    text = f"{column} is {value} and the journal says {wanted}"
                    self._findings.add("sql", name, text)
        for key in expected:
            if key not in seen:
                name = f"{table.__tablename__} {', '.join(str(part) for part in key)}"
                self._findings.add("sql", name, "the row is missing")


class _Made(Mapping[Any, Row]):
    """Rows that are made from facts one at a time when asked for, so that they never fill the
    memory."""

    def __init__(self, facts: dict[Any, Any], row_of: Any) -> None:
        self._facts = facts
        self._row_of = row_of

    def __getitem__(self, key: Any) -> Row:
        row: Row = self._row_of(self._facts[key])
        return row

    def __contains__(self, key: object) -> bool:
        return key in self._facts

    def __iter__(self) -> Iterator[Any]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)


def _plain(value: Any) -> Any:
    """A form in which lists, tuples and what JSON made of them are equal."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _trajectory_row(t: TrajectoryFacts) -> Row:
    versions = [span.version for span in t.spans]
    return {
        "group_id": t.group_id,
        "purpose": t.purpose,
        "status": t.status,
        "finish": t.finish,
        "length": t.length,
        "sampled": t.received,
        "inserted": t.length - t.received,
        "reward": t.reward,
        "reward_status": t.reward_status,
        "reward_source": t.reward_source,
        "audit_status": t.audit_status,
        "audit_source": t.audit_source,
        "audit_reward": t.audit_reward,
        "rewards": None if t.rewards is None else [[r.value, r.position] for r in t.rewards],
        "min_version": min(versions, default=None),
        "max_version": max(versions, default=None),
    }


def _window_row(w: WindowFacts) -> Row:
    return {
        "trajectory_id": w.trajectory_id,
        "index": w.index,
        "start": w.start,
        "end": w.end,
        "tokens": w.tokens,
        "min_version": w.min_version,
        "max_version": w.max_version,
        "final": w.final,
        "state": w.state,
        "reason": w.reason,
        "lines": w.lines,
        "masked": [[m.reason, m.start, m.end, m.tokens] for m in w.masked],
        "masked_tokens": sum(m.tokens for m in w.masked),
        "lineage": w.lineage,
        "update": w.update,
        "version": w.version,
    }


def _value_row(t: TrajectoryFacts) -> Row:
    return {"state": t.value, "lineage": t.value_lineage, "update": t.value_update}
