"""The filter language: a filter means the same in SQL, in Arrow and in plain Python."""

import operator
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    Boolean,
    Column,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    create_engine,
    insert,
    select,
)
from sqlalchemy.dialects import postgresql

from headrace.errors import UserError
from storage.database.filters import parse, to_arrow, to_sql

TABLE = Table(
    "rows",
    MetaData(),
    Column("id", Integer),
    Column("reward", Float),
    Column("status", Text),
    Column("good", Boolean),
    Column("raw", LargeBinary),
    Column("word", Text),
    Column("a/b", Integer),
)
ROWS: list[dict[str, Any]] = [
    {"id": 0, "reward": 0.5, "status": "finished", "good": True, "word": "finished", "a/b": 2},
    {"id": 1, "reward": None, "status": "failed", "good": False, "word": "Failed", "a/b": None},
    {"id": 2, "reward": 1.0, "status": None, "good": None, "word": "*[a]?\n\\_", "a/b": 2},
    {"id": 3, "reward": -2.0, "status": "it's 100%", "good": True, "word": None, "a/b": 3},
]
ENGINE = create_engine("sqlite://")
TABLE.create(ENGINE)
with ENGINE.begin() as _connection:
    _connection.execute(insert(TABLE), ROWS)
ARROW = pa.Table.from_pylist(
    ROWS,
    pa.schema(
        [
            ("id", pa.int64()),
            ("reward", pa.float64()),
            ("status", pa.string()),
            ("good", pa.bool_()),
            ("raw", pa.binary()),
            ("word", pa.dictionary(pa.int32(), pa.string())),
            ("a/b", pa.int64()),
        ]
    ),
)
CASES = {
    "reward > 0.4": [0, 2],
    "reward >= 0.5 and status = 'finished'": [0],
    "status = 'failed' or reward < -1": [1, 3],
    "not reward > 0.4": [3],
    "reward != 1": [0, 3],
    "reward <> 1 or reward is null": [0, 1, 3],
    "reward is null": [1],
    "status IS NOT NULL and (id == 0 or id == 3)": [0, 3],
    "reward between 0.5 and 1": [0, 2],
    "reward not between 0.5 and 1": [3],
    "id in (1, 3, 1e0)": [1, 3],
    "status in ('failed', 'finished')": [0, 1],
    "status not in ('failed', 'x')": [0, 3],
    "status like '%100!%' escape '!'": [3],
    "status not like 'f%'": [3],
    "status not like '%!%' escape '!'": [0, 1],
    "status like 'f_____'": [1],
    "word like 'F%'": [1],
    "word like '*[a]?_\\!_' escape '!'": [2],
    "word like '%*[%]?%'": [2],
    "word = status": [0],
    "status = 'it''s 100%'": [3],
    "NOT (status like '%i%' OR id = 2)": [],
    "id < 1e0": [0],
    "id < 0.5": [0],
    "0.5 < id": [1, 2, 3],
    "id < reward": [0],
    "id < 1e23": [0, 1, 2, 3],
    "reward < 1e23": [0, 2, 3],
    "reward != 9007199254740993": [0, 2, 3],
    "id < 9223372036854775807": [0, 1, 2, 3],
    "id >= -9223372036854775807": [0, 1, 2, 3],
    "good = true": [0, 3],
    "good": [0, 3],
    "not good": [1],
    "good is null": [2],
    "good = 1": [0, 3],
    "good > 0": [0, 3],
    "good != 1.0": [1],
    "id = true": [1],
    "reward = TRUE": [2],
    '"a/b" = id': [2, 3],
    "id = 1 -- the second one": [1],
    "(" * 12 + "id = 1" + ")" * 12: [1],
    "not " * 12 + "id = 1": [1],
    "id = 9 or id = 1 and not (" * 12 + "id = 1" + ")" * 12: [1],
    " or ".join(["id != 1"] * 200): [0, 2, 3],
    f"id in ({', '.join(['1'] * 3_000)})": [1],
    f"status like '{'%a' * 4_000}'": [],
}


def by_sql(text: str) -> list[int]:
    with ENGINE.connect() as connection:
        query = select(TABLE.c.id).where(to_sql(parse(text), dict(TABLE.c))).order_by(TABLE.c.id)
        return list(connection.execute(query).scalars())


def by_arrow(text: str) -> list[int]:
    found: list[int] = ARROW.filter(to_arrow(parse(text), ARROW.schema)).column("id").to_pylist()
    return found


@pytest.mark.parametrize(("text", "expected"), CASES.items())
def test_cases(text: str, expected: list[int]) -> None:
    assert by_sql(text) == expected
    assert by_arrow(text) == expected


Row = dict[str, Any]
Meaning = Callable[[Row], bool | None]
"""What a condition says of a row; None: null."""
SIGNS = {
    "=": operator.eq, "!=": operator.ne, "<>": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
NUMBERS = st.sampled_from(["-2", "0", "0.5", "1", "2.5", "3"])
TEXTS = st.one_of(
    st.sampled_from(["finished", "i", "%", "_", "'", "f%d", "%[a]%", "*%", "%?%", "%\n%", "%\\_"]),
    st.text(alphabet="fFaid%_*[]?^!\\\n '", max_size=5),
)


def null_if(value: object, found: bool) -> bool | None:
    return None if value is None else found


def both(left: bool | None, right: bool | None) -> bool | None:
    return False if False in (left, right) else None if None in (left, right) else True


def negated(found: bool | None) -> bool | None:
    return None if found is None else not found


@st.composite
def comparison(draw: st.DrawFn) -> tuple[str, Meaning]:
    column, sign = draw(st.sampled_from(["id", "reward"])), draw(st.sampled_from(list(SIGNS)))
    if draw(st.booleans()):
        value = draw(NUMBERS)
        return f"{column} {sign} {value}", lambda row: null_if(
            row[column], row[column] is not None and SIGNS[sign](row[column], float(value))
        )
    low, high = draw(NUMBERS), draw(NUMBERS)
    if draw(st.booleans()):
        return f"{column} between {low} and {high}", lambda row: null_if(
            row[column], row[column] is not None and float(low) <= row[column] <= float(high)
        )
    return f"{column} in ({low}, {high})", lambda row: null_if(
        row[column], row[column] in (float(low), float(high))
    )


@st.composite
def text_comparison(draw: st.DrawFn) -> tuple[str, Meaning]:
    column, text = draw(st.sampled_from(["status", "word"])), draw(TEXTS)
    quoted = text.replace("'", "''")
    if draw(st.booleans()):
        return f"{column} = '{quoted}'", lambda row: null_if(row[column], row[column] == text)
    pattern = "".join({"%": ".*", "_": "."}.get(char, re.escape(char)) for char in text)
    return f"{column} like '{quoted}'", lambda row: null_if(
        row[column], re.fullmatch(pattern, row[column] or "", re.DOTALL) is not None
    )


@st.composite
def missing(draw: st.DrawFn) -> tuple[str, Meaning]:
    column = draw(st.sampled_from(["reward", "status", "good"]))
    return f"{column} is null", lambda row: row[column] is None


@st.composite
def junction(draw: st.DrawFn, inner: st.SearchStrategy[tuple[str, Meaning]]) -> tuple[str, Meaning]:
    left, says_left = draw(inner)
    right, says_right = draw(inner)
    kind = draw(st.sampled_from(["not", "and", "or"]))
    if kind == "not":
        return f"not ({left})", lambda row: negated(says_left(row))
    if kind == "and":
        return f"({left}) and ({right})", lambda row: both(says_left(row), says_right(row))
    return f"({left}) or ({right})", lambda row: negated(
        both(negated(says_left(row)), negated(says_right(row)))
    )


@settings(deadline=None)
@given(st.recursive(st.one_of(comparison(), text_comparison(), missing()), junction, max_leaves=5))
def test_three_meanings_agree(made: tuple[str, Meaning]) -> None:
    text, meaning = made
    expected = [row["id"] for row in ROWS if meaning(row)]
    assert by_sql(text) == expected
    assert by_arrow(text) == expected


def test_capitals_count_in_every_database() -> None:
    found = to_sql(parse("status like 'a!%%' escape '!'"), dict(TABLE.c))
    said = found.compile(dialect=postgresql.dialect())
    assert "LIKE" in str(said)
    assert "ESCAPE '!'" in str(said)
    assert "a!%%" in said.params.values()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rewrad > 1", "filter, character 1: no column rewrad; did you mean reward?"),
        ("id = 1 and zzz", "character 12: no column zzz; there are: a/b, good, id, raw"),
        ("status = finished", "character 10: no column finished"),
        ('status = "finished"', "(text has single quotes)"),
        ("word = 'é' and é b", "character 18: syntax error"),
        ("word = 'é' and rewrad", "character 16: no column rewrad"),
        ('"two\nlines" = 1', "no column two lines"),
        ("id = 'two\nlines'", "not with two lines"),
        ("rows.id = 1", "no column rows.id"),
        ("reward >", "character 8: syntax error"),
        ("reward 1", "character 8: syntax error"),
        ("reward > 1 reward < 2", "character 12: syntax error"),
        ("(reward > 1", "syntax error"),
        ("", "filter: syntax error"),
        ("status contains 'x'", "write like '%text%'"),
        ("status > 3", "the column compares with quoted text, not with 3"),
        ("reward = 'high'", "the column compares with a number, true or false, not with high"),
        ("reward = status", "text compares with text only"),
        ("reward like 'x'", "compares with a number"),
        ("reward like 1", "like takes text"),
        ("status like word", "a column comes first here, and then values"),
        ("status like 'x' escape 'ab'", "escape one character"),
        ("1 in (id, 2)", "a column comes first here, and then values"),
        ("id in (1, 'x')", "character 11: the column compares with a number"),
        ("reward = null", "write is null or is not null"),
        ("id in (1, null)", "write is null or is not null"),
        ("id between 1 and null", "write is null or is not null"),
        ("id", "this is no condition on a column"),
        ("1 = 1", "a condition names a column"),
        ("good = 2", "the column compares with true and false, not 2"),
        ("raw = 1", "raw cannot be compared"),
        ("id < 100000000000000000000000", "beyond whole numbers of 64 bits; write 1e+23"),
        ("id < 9223372036854775808", "beyond whole numbers of 64 bits"),
        ("id < " + "9" * 5_000, "is too large"),
        ("reward < 1e999", "the number 1e999 is too large"),
        ("status = '\ud800'", "a character that no column can have"),
        ("status = 'a\0b'", "a character that no column can have"),
        ("\ud800 = 1", "a character that no column can have"),
        ("(" * 13 + "id = 1" + ")" * 13, "more than 12 parentheses"),
        ("(" * 201, "more than 200 parentheses"),
        ("(" * 100_000, "more than 10,000 characters"),
        ("not " * 2_000 + "id = 1", "more than 12 parentheses"),
        (" and ".join(["id = 1"] * 201), "more than 200 conditions"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    for meaning in (by_sql, by_arrow):
        with pytest.raises(UserError, match="filter") as caught:
            meaning(text)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "1=1) or (select 1)=(1",
        "(1=1) or (select 1)=(1)",
        "id = 1) or (1 = 1",
        "id = (select 1)",
        "id in (select 1)",
        "exists (select 1)",
        "exists (from 'x.csv')",
        "read_csv('x.csv')",
        "id = 1 or read_csv('x.csv')",
        "id in (read_csv('x.csv'))",
        "id = (select count(*) from read_csv('x.csv'))",
        "id = 1; drop table rows",
        "id = 1; select 1",
        "id = 1 union select 1",
        "id = 1 order by id",
        "id = 1 limit 1",
        "id = 1 group by id",
        "id = 1::bigint",
        "cast(id as text) = '1'",
        "lower(status) = 'x'",
        "id + 1 = 2",
        "-id = 1",
        "id = ?",
        "id = $1",
        "id in 1",
        "id in ()",
        "(id, id) = (1, 1)",
        "status ilike 'x'",
        "status glob 'x'",
        "status similar to 'x'",
        "status = 'x' collate nocase",
        "good is true",
        "id is distinct from 1",
        "id = case when good then 1 end",
        "status = date '2020-01-01'",
        "columns(*) = 1",
        "*",
    ],
)
def test_more_than_conditions_on_columns_is_refused(text: str) -> None:
    for meaning in (by_sql, by_arrow):
        with pytest.raises(UserError, match="filter"):
            meaning(text)
