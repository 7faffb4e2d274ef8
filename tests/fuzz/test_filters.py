"""Filters: UserError of one line, or one that means the same to SQL and to Arrow."""

from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from hypothesis import event, given
from hypothesis import strategies as st

from headrace.errors import UserError
from storage.database.filters import parse, to_arrow, to_sql
from tests.fuzz.damage import TEXT, damaged, one_line

KINDS: dict[str, tuple[Any, pa.DataType]] = {
    "id": (sa.Integer, pa.int64()),
    "reward": (sa.Float, pa.float64()),
    "status": (sa.Text, pa.string()),
    "good": (sa.Boolean, pa.bool_()),
    "raw": (sa.LargeBinary, pa.binary()),
}
REWARDS = (0.5, None, 1.0, -2.0, 1e23, 0.0)
STATES = ("finished", None, "it's 100%", "", "_", "\\")
ROWS = [
    {"id": n, "reward": reward, "status": state, "good": (True, False, None)[n % 3]}
    for n, (reward, state) in enumerate(zip(REWARDS, STATES, strict=True))
]
TABLE = sa.Table("rows", sa.MetaData(), *(sa.Column(name, of) for name, (of, _) in KINDS.items()))
ARROW = pa.Table.from_pylist(ROWS, pa.schema([(name, of) for name, (_, of) in KINDS.items()]))
ENGINE = sa.create_engine("sqlite://")
TABLE.create(ENGINE)
with ENGINE.begin() as _connection:
    _connection.execute(sa.insert(TABLE), ROWS)

COLUMNS = (*KINDS, "nothing", "or", "Reward")
NUMBERS = ("0", "1", "-1", "1.5", ".5", "1.", "1e23", "9007199254740993", "true", "FALSE", "null")
WORDS = ("'finished'", "'it''s 100%'", "''", "'100%'", "'_'", "'\\'", "null")
OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
LITERALS = (
    *NUMBERS, *WORDS, '"it\'s"', "1e999", "100000000000000000000000", "9223372036854775807",
    "-9223372036854775808", "9223372036854775808", "9" * 400, "1_000", "0x10", "inf", "nan", "-",
    "word", "'a\0b'", "'open", "(1, 2)", "0 and 1",
)  # fmt: skip
PIECE = st.sampled_from((*LITERALS, *COLUMNS, "(", ")", "not ", " and ")) | TEXT


@st.composite
def conditions(draw: st.DrawFn) -> str:
    """One that is nearly always right, or any three words."""
    if draw(st.integers(0, 9)) == 0:
        operator = draw(st.sampled_from((*OPERATORS, "==", "contains", "is", "is not", "like",
                                         "in", "between", "")))  # fmt: skip
        parts = (draw(st.sampled_from(COLUMNS)), operator, draw(st.sampled_from(LITERALS)))
        return draw(st.sampled_from((" ", " ", ""))).join(parts)
    column = draw(st.sampled_from(("id", "reward", "status", "good")))
    literal = draw(st.sampled_from(WORDS if column == "status" else NUMBERS))
    return f"{column} {draw(st.sampled_from(OPERATORS[: 2 if literal == 'null' else 6]))} {literal}"


def joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    parts = st.lists(inner, min_size=2, max_size=4) | inner.map(lambda text: [text] * 260)
    chain = st.tuples(st.sampled_from((" and ", " or ", " AND ")), parts)
    return (
        inner.map("({})".format) | inner.map("not {}".format) | chain.map(lambda t: t[0].join(t[1]))
    )


TEXTS = st.recursive(conditions(), joined, max_leaves=12)


@given(TEXTS | TEXTS.flatmap(lambda text: damaged(text, PIECE)))
def test_a_filter_means_the_same_to_sql_and_to_arrow(text: str) -> None:
    try:
        tree = parse(text)
        condition, expression = to_sql(tree, dict(TABLE.c)), to_arrow(tree, ARROW.schema)
    except UserError as error:
        event("refused")
        one_line(error)
        return
    event("taken")
    with ENGINE.connect() as connection:
        found = connection.execute(sa.select(TABLE.c.id).where(condition)).scalars().all()
    assert sorted(found) == ARROW.filter(expression).column("id").to_pylist()
