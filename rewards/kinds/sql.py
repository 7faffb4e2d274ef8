"""`sql`: does the response's query give the rows of the right query?

Both run on a SQLite database in memory that the row's script builds. Rows are compared as a
multiset, and in order where the right query orders its result. A query of a response may read and
nothing else: an authorizer allows SELECT, columns and functions, and refuses everything more
(ATTACH, PRAGMA, writes, files); its steps, rows and the size of its values are bounded. A query
that fails is a wrong answer; a right query that fails is an error of the row.
"""

import re
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import lru_cache
from typing import Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel
from headrace.data.answer_text import marked_part
from headrace.protocol.messages.control import ScoreItem
from rewards.answers.final_answer import wanted_answer
from rewards.answers.row import column, right_or_wrong
from rewards.functions.results import Verdict
from rewards.verifier import Verifier

MAX_VALUE_BYTES = 1 << 20
MAX_RESULT_BYTES = 1 << 26
MAX_HEAP_BYTES = 1 << 29
MAX_QUERY = 1 << 16
_STEPS_AT_ONCE = 1000

_FENCE = re.compile(r"```[ \t]*(\w*)[ \t]*\r?\n(.*?)```", re.DOTALL)
_BEGINS = r'(?:SELECT|VALUES|WITH\s+(?:RECURSIVE\s+)?(?:"[^"]*"|\S+)\s*(?:\([^()]*\)\s*)?AS)\b'
_QUERY = re.compile(rf"^[ \t]*{_BEGINS}.*", re.IGNORECASE | re.MULTILINE | re.DOTALL)
_STATEMENT = re.compile(r"(?:[^;'\"]+|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")*")
_INNER = re.compile(r"\([^()]*\)")
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_READS = {
    sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE,
}  # fmt: skip
_SCRIPT_REFUSED = {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA}
_FORBIDDEN_FUNCTIONS = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}

Rows = list[tuple[object, ...]]


class Options(StrictModel):
    """The database, what is compared, and the bounds."""

    schema_column: str = "schema"
    """Column with the script that builds the database (CREATE TABLE and INSERT)."""

    order: Literal["auto", "always", "never"] = "auto"
    """Comparison by order. auto: where the right query has an ORDER BY of its own."""

    max_rows: int = Field(default=10_000, ge=1)
    """A query with more rows is wrong."""

    max_steps: int = Field(default=20_000_000, ge=1000)
    """Instructions of SQLite's machine after which a query is ended."""

    answer_marker: str | None = Field(default=None, min_length=1)
    """Text right before the query's line. None: last code block, or from SELECT or WITH."""


def build(options: Options) -> Verifier:
    """The verifier. The part `ran` says whether the response's query gave rows."""

    def judge(item: ScoreItem) -> Verdict:
        database = _database(str(column(item, options.schema_column)), options.max_steps)
        query = query_of(wanted_answer(item.answer, options.answer_marker))
        try:
            wanted = _rows(database, query, options)
        except sqlite3.Error as error:
            raise ValueError(f"the right query fails: {error}") from error
        given = query_of(marked_part(item.text, options.answer_marker))
        try:
            rows = _rows(database, given, options)
        except (sqlite3.Error, sqlite3.Warning, UnicodeError, ValueError, MemoryError):
            return right_or_wrong(False, ran=0.0)
        ordered = options.order == "always" or (options.order == "auto" and is_ordered(query))
        same = wanted == rows if ordered else Counter(wanted) == Counter(rows)
        return right_or_wrong(same, ran=1.0)

    return Verifier(judge, (options.schema_column,))


def query_of(text: str) -> str:
    """Return the query: last code block, else from SELECT or WITH, else all; without `;`."""
    blocks = [block for _, block in _FENCE.findall(text)]
    if blocks:
        text = ([block for block in blocks if _QUERY.search(block)] or blocks)[-1]
    elif match := _QUERY.search(text):
        statement = _STATEMENT.match(match[0])
        assert statement is not None
        text = statement[0]
    return text.strip().rstrip(";").strip()


def is_ordered(query: str) -> bool:
    """Return whether a query orders its own result, not only that of a query inside."""
    query = _QUOTED.sub(" ", query)[:MAX_QUERY]
    while (shorter := _INNER.sub(" ", query)) != query:
        query = shorter
    return re.search(r"\border\s+by\b", query, re.IGNORECASE) is not None


@lru_cache(maxsize=8)
def _database(script: str, max_steps: int) -> bytes:
    """Build a script's database in SQLite's file format; ValueError where it fails."""
    with closing(_connect()) as connection:
        _bound(connection, max_steps, lambda action, *_: action not in _SCRIPT_REFUSED)
        try:
            connection.executescript(script)
            connection.commit()
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise ValueError(f"the row's script fails: {error}") from error
        # Writing it out asks for the number of its pages.
        connection.set_authorizer(None)
        return connection.serialize()


def _rows(database: bytes, query: str, options: Options) -> Rows:
    """Return the rows of a query; sqlite3.Error where it fails or takes too much."""
    if not 0 < len(query) <= MAX_QUERY:
        raise sqlite3.ProgrammingError("there is no query, or one without end")
    with closing(_connect()) as connection:
        connection.deserialize(database)
        _bound(connection, options.max_steps, _may_read)
        rows: Rows = []
        room = MAX_RESULT_BYTES
        for row in connection.execute(query):
            room -= sum(len(value) for value in row if isinstance(value, str | bytes))
            if len(rows) == options.max_rows or room < 0:
                raise sqlite3.DataError(f"more than {options.max_rows} rows, or too long ones")
            rows.append(tuple(map(_plain, row)))
    return rows


def _connect() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA hard_heap_limit = {MAX_HEAP_BYTES}")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    return connection


def _bound(connection: sqlite3.Connection, max_steps: int, allows: Callable[..., bool]) -> None:
    """From here on nothing runs that `allows` refuses, and nothing runs on for ever."""
    left = max_steps // _STEPS_AT_ONCE

    def tick() -> int:
        nonlocal left
        left -= 1
        return int(left < 0)

    def authorize(action: int, *about: str | None) -> int:
        return sqlite3.SQLITE_OK if allows(action, *about) else sqlite3.SQLITE_DENY

    connection.set_progress_handler(tick, _STEPS_AT_ONCE)
    connection.set_authorizer(authorize)


def _may_read(action: int, *about: str | None) -> bool:
    if action == sqlite3.SQLITE_FUNCTION:
        return about[1] not in _FORBIDDEN_FUNCTIONS
    return action in _READS


def _plain(value: object) -> object:
    """Sums of floats differ in their last digits with the order of rows."""
    return float(f"{value:.9g}") if isinstance(value, float) else value
