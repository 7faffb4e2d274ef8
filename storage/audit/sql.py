"""Checks of SQL against the journal.

`check_facts` compares rows with facts of the journal up to the offset that SQL has, which share no
code with the projection. `check_rows` projects the journal again, into a temporary file, and
compares every row; `metric_info` comes from the code and not from the journal, and is left out.
In: a reader that sees one moment of the database. Out: findings for a database whose structure is
damaged, and for every row that is missing, superfluous or has another value.
"""

import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, Text, collate, create_engine, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateTable

from headrace.errors import UserError
from storage import projection
from storage.audit.findings import Findings
from storage.audit.journal_facts import JournalFacts, TrajectoryFacts, WindowFacts
from storage.audit.reading import UNREADABLE
from storage.database.reader import RunReader, open_run
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
from storage.journal.store import read_journal

RECORDS_PER_TRANSACTION = 4096
"""Records projected per transaction."""
_AT_ONCE = 10_000
_MOST_FAULTS = 5
_AnyRow = tuple[Any, ...]
SqlRow = dict[str, Any]


def _check_structure(connection: Connection, findings: Findings) -> bool:
    """Run SQLite's integrity check; returns whether the file is whole."""
    if connection.dialect.name != "sqlite":
        connection.execute(select(1))  # a server's moment is that of the first query
        return True
    lines = connection.exec_driver_sql(f"PRAGMA integrity_check({_MOST_FAULTS})").scalars()
    faults = [text for text in lines if text != "ok"]
    for text in faults:
        findings.add("sql", "database", f"its file is damaged: {' '.join(text.split())}")
    return not faults


@contextmanager
def moment(run_dir: Path, findings: Findings) -> Iterator[RunReader | None]:
    """A reader of one state of the database; None where it cannot be read, which is a finding."""
    try:
        reader = open_run(run_dir)
    except (UserError, SQLAlchemyError, *UNREADABLE) as error:
        findings.add("sql", "database", f"cannot be read: {error}".splitlines()[0])
        yield None
        return
    with reader.moment() as now:
        assert now.connection is not None
        try:
            is_whole = _check_structure(now.connection, findings)
        except (UserError, SQLAlchemyError) as error:
            findings.add("sql", "database", f"cannot be read: {error}".splitlines()[0])
            is_whole = False
        yield now if is_whole else None


def check_rows(
    run_dir: Path, config: Mapping[str, Any], now: RunReader, end: int, findings: Findings
) -> None:
    """Compare all rows of a run with those of its first `end` records, which are usable."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        engine = create_engine(f"sqlite:///{folder}/again.sqlite")
        try:
            with engine.begin() as ours:
                ours.exec_driver_sql("PRAGMA synchronous = OFF")  # nobody wants it after a crash
                for table in Base.metadata.sorted_tables:
                    ours.execute(CreateTable(table))  # without indexes: all of it is read
                run = projection.register(ours, now.run_id, config)
                journal = chain.from_iterable(read_journal(run_dir / "journal"))
                records = islice(journal, end)
                while some := list(islice(records, RECORDS_PER_TRANSACTION)):
                    projection.apply(ours, run, some)
                for table in Base.metadata.sorted_tables:
                    if "run" in table.c or table is Run.__table__:
                        again = replace(now, engine=engine, key=run, connection=ours)
                        _compare(table, again, now, findings)
        except (UserError, SQLAlchemyError, sqlite3.Error, *UNREADABLE) as error:
            text = f"cannot be compared with the journal: {error}".splitlines()[0]
            findings.add("sql", "database", text)
        finally:
            engine.dispose()


def _compare(table: Table, ours: RunReader, theirs: RunReader, findings: Findings) -> None:
    keys = [column.name for column in table.primary_key if column.name not in ("run", "id")]
    # A resume may change resolved.json; `config` is the one that the run began with.
    rest = [c.name for c in table.c if c.name not in ("run", "id", "config", *keys)]
    names = [*keys, *rest]
    is_file = theirs.engine.dialect.name == "sqlite"
    left, right = (_parts(table, names, keys, side, is_file=is_file) for side in (ours, theirs))
    for first, second in zip_longest(left, right):
        if first != second:  # hardly ever, and then row by row to the end
            mine, other = chain(first or [], *left), chain(second or [], *right)
            for pair in _pairs(mine, other, len(keys)):
                _tell(table, names, len(keys), *pair, findings)


def _tell(
    table: Table, names: list[str], width: int, mine: _AnyRow | None, other: _AnyRow | None,
    findings: Findings,
) -> None:  # fmt: skip
    where = " ".join([table.name, ", ".join(map(str, (mine or other or ())[:width]))]).strip()
    if mine is None or other is None:
        text = "the journal makes no such row" if mine is None else "the row is missing"
        findings.add("sql", where, text)
        return
    for name, wanted, found in zip(names, mine, other, strict=True):
        if found != wanted:
            text = f"{name} is {found!r:.80} and the journal says {wanted!r:.80}"
            findings.add("sql", where, text)


def _parts(
    table: Table, names: list[str], keys: Sequence[str], reader: RunReader, *, is_file: bool
) -> Iterator[list[_AnyRow]]:
    """Rows in batches, by their keys; in file order if both sides are files."""
    is_text = reader.engine.dialect.name == "postgresql"  # where each database has its own order
    order = [
        collate(table.c[name], "C") if is_text and isinstance(table.c[name].type, Text)
        else table.c[name] for name in keys
    ]  # fmt: skip
    owner = table.c.run if "run" in table.c else table.c.id
    query = select(*(table.c[name] for name in names)).where(owner == reader.key)
    query = query.order_by(*order)
    typed = (tuple(row) for part in reader.stream(query, _AT_ONCE) for row in part)
    rows = reader.tuples(query) if is_file else typed
    yield from iter(lambda: list(islice(rows, _AT_ONCE)), [])


def _pairs(
    left: Iterator[_AnyRow], right: Iterator[_AnyRow], width: int
) -> Iterator[tuple[_AnyRow | None, _AnyRow | None]]:
    """Pairs of rows with equal keys from two sorted sides; None for a missing partner."""
    mine, other = next(left, None), next(right, None)
    while mine is not None or other is not None:
        is_mine = other is None or (mine is not None and mine[:width] <= other[:width])
        is_other = mine is None or (other is not None and other[:width] <= mine[:width])
        yield (mine if is_mine else None), (other if is_other else None)
        mine = next(left, None) if is_mine else mine
        other = next(right, None) if is_other else other


# -- against the facts -----------------------------------------------------------------------------


def check_facts(reader: RunReader, facts: JournalFacts, findings: Findings) -> None:
    """Compare all tables that say what the account says with the facts."""
    compare = partial(_compare_facts, reader, findings)
    compare(Trajectory, ("trajectory_id",), facts.trajectories, _trajectory_row)
    compare(Window, ("window_id",), facts.windows, _window_row)
    taken = {key: t for key, t in facts.trajectories.items() if t.value_moved}
    compare(ValueUse, ("trajectory_id",), taken, _value_row)
    compare(Update, ("lineage", "update"), facts.updates, partial(_row, names=_UPDATE))
    compare(WeightVersion, ("version",), facts.published, _version_row)
    compare(Checkpoint, ("offset",), facts.checkpoints, partial(_row, names=_CHECKPOINT))
    compare(TokenLoss, ("generator", "reason"), facts.lost, lambda n: {"tokens": n})
    for table, number in (
        (Group, len(facts.groups)),
        (Prompt, len(facts.prompts)),
        (Evaluation, facts.evaluations),
    ):
        counted = select(func.count()).select_from(table)
        rows = reader.value(counted.where(table.__table__.c.run == reader.key))
        if rows != number:
            text = f"{rows} rows, and the journal has {number}"
            findings.add("sql", table.__tablename__, text)
    (run,) = reader.rows(select(Run.status, Run.lineage).where(Run.id == reader.key))
    if tuple(run) != (facts.phase, facts.lineage):
        text = f"{run.status}, lineage {run.lineage}; the journal: {facts.phase}"
        findings.add("sql", Run.__tablename__, f"{text}, lineage {facts.lineage}")


def _compare_facts(
    reader: RunReader,
    findings: Findings,
    of: type[Base],
    keys: Sequence[str],
    facts: Mapping[Any, Any],
    row_of: Callable[[Any], SqlRow],
) -> None:
    """Compare each row with the one that `row_of` makes of the fact under its key, one at a time,
    so that rows never fill the memory."""
    table, width = Base.metadata.tables[of.__tablename__], len(keys)
    names = [*keys, *(list(row_of(next(iter(facts.values())))) if facts else [])]
    made = (
        (*(key if isinstance(key, tuple) else (key,)), *row_of(facts[key]).values())
        for key in sorted(facts)
    )
    found = chain.from_iterable(_parts(table, names, keys, reader, is_file=False))
    for mine, other in _pairs(made, found, width):
        if mine != other:
            _tell(table, names, width, mine, other, findings)


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
