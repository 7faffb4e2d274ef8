"""The filter language: the same filter means the same in SQL, in Arrow and in plain Python."""

import operator
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

from headrace.errors import UserError
from storage.filters import Condition, Filter, Junction, parse, to_arrow, to_sql

TABLE = Table(
    "rows",
    MetaData(),
    Column("id", Integer),
    Column("reward", Float),
    Column("status", Text),
    Column("good", Boolean),
    Column("raw", LargeBinary),
)
ROWS: list[dict[str, Any]] = [
    {"id": 0, "reward": 0.5, "status": "finished", "good": True},
    {"id": 1, "reward": None, "status": "failed", "good": False},
    {"id": 2, "reward": 1.0, "status": None, "good": None},
    {"id": 3, "reward": -2.0, "status": "it's 100%", "good": True},
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
        ]
    ),
)
CASES = {
    "reward > 0.4": [0, 2],
    "reward >= 0.5 and status = 'finished'": [0],
    "status = 'failed' or reward < -1": [1, 3],
    "not reward > 0.4": [1, 3],
    "reward != 1": [0, 1, 3],
    "reward = null": [1],
    "status != null and (id == 0 or id == 3)": [0, 3],
    "status contains '100%'": [3],
    "status = 'it''s 100%'": [3],
    'status = "it\'s 100%"': [3],
    "NOT (status contains 'i' OR id = 2)": [],
    "id < 1e0": [0],
    "id < 0.5": [0],
    "id < 1e23": [0, 1, 2, 3],
    "reward < 1e23": [0, 2, 3],
    "reward != 9007199254740993": [0, 1, 2, 3],
    "id < 9223372036854775807": [0, 1, 2, 3],
    "good = true": [0, 3],
    "good = 1": [0, 3],
    "good > 0": [0, 3],
    "good != 1.0": [1, 2],
    "id = true": [1],
    "reward = true": [2],
    "(" * 12 + "id = 1" + ")" * 12: [1],
    "not " * 12 + "id = 1": [1],
    "id = 9 or id = 1 and (" * 12 + "id = 1" + ")" * 12: [1],
    " or ".join(["id != 1"] * 200): [0, 2, 3],
}


def by_sql(text_or_tree: str | Filter) -> list[int]:
    tree = parse(text_or_tree) if isinstance(text_or_tree, str) else text_or_tree
    with ENGINE.connect() as connection:
        query = select(TABLE.c.id).where(to_sql(tree, dict(TABLE.c))).order_by(TABLE.c.id)
        return list(connection.execute(query).scalars())


def by_arrow(text_or_tree: str | Filter) -> list[int]:
    tree = parse(text_or_tree) if isinstance(text_or_tree, str) else text_or_tree
    found: list[int] = ARROW.filter(to_arrow(tree, ARROW.schema)).column("id").to_pylist()
    return found


@pytest.mark.parametrize(("text", "expected"), CASES.items())
def test_cases(text: str, expected: list[int]) -> None:
    assert by_sql(text) == expected
    assert by_arrow(text) == expected


conditions = st.one_of(
    st.builds(
        Condition,
        column=st.sampled_from(["id", "reward"]),
        op=st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
        value=st.sampled_from([-2, 0, 0.5, 1, 2.5]),
    ),
    st.builds(
        Condition,
        column=st.just("status"),
        op=st.sampled_from(["=", "!=", "contains"]),
        value=st.sampled_from(["finished", "i", "%", "_", "'"]),
    ),
    st.builds(
        Condition,
        column=st.sampled_from(["reward", "status"]),
        op=st.sampled_from(["=", "!="]),
        value=st.none(),
    ),
)
trees = st.recursive(
    conditions,
    lambda inner: st.one_of(
        st.builds(Junction, st.just("not"), st.tuples(inner)),
        st.builds(Junction, st.sampled_from(["and", "or"]), st.tuples(inner, inner)),
    ),
    max_leaves=5,
)


def holds(tree: Filter, row: dict[str, Any]) -> bool:
    if isinstance(tree, Junction):
        parts = [holds(part, row) for part in tree.parts]
        return {"not": not parts[0], "and": all(parts), "or": any(parts)}[tree.kind]
    value = row[tree.column]
    if value is None or tree.value is None:
        return (value == tree.value) == (tree.op == "=") and tree.op in ("=", "!=")
    if tree.op == "contains":
        return str(tree.value) in value
    named = {"=": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
    return bool(getattr(operator, named[tree.op])(value, tree.value))


@settings(deadline=None)
@given(trees)
def test_three_meanings_agree(tree: Filter) -> None:
    expected = [row["id"] for row in ROWS if holds(tree, row)]
    assert by_sql(tree) == expected
    assert by_arrow(tree) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rewrad > 1", "no column rewrad; did you mean reward"),
        ("reward >", "expected a value for reward"),
        ("reward 1", "expected an operator after reward"),
        ("reward > 1 reward < 2", "did not expect 'reward'"),
        ("(reward > 1", "expected a closing parenthesis"),
        ("status = finished", "text must be quoted"),
        ("status > 3", "status compares with quoted text"),
        ("reward = 'high'", "reward compares with a number"),
        ("reward contains 'x'", "contains goes with text only"),
        ("reward < null", "null goes with = and != only"),
        ("reward > 1; drop table rows", "cannot read"),
        ("", "expected a column"),
        ("(" * 13 + "id = 1" + ")" * 13, "more than 12 parentheses"),
        ("(" * 100_000, "more than 12 parentheses"),
        ("not " * 2_000 + "id = 1", "more than 12 parentheses"),
        (" and ".join(["id = 1"] * 201), "more than 200 conditions"),
        ("id < 100000000000000000000000", "beyond whole numbers of 64 bits; write 1e+23"),
        ("id < " + "9" * 5_000, "is too large"),
        ("reward < 1e999", "the number 1e999 is too large"),
        ("good = 2", "good compares with true and false, not with 2"),
        ("raw = 1", "raw cannot be compared"),
        ("status = '\ud800'", "a character that no column can have"),
        ("status = 'a\0b'", "a character that no column can have"),
        ("\ud800 = 1", "cannot read"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    for meaning in (by_sql, by_arrow):
        with pytest.raises(UserError, match="filter") as caught:
            meaning(text)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
