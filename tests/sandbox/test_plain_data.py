"""Values arrive as Python's own types, whatever they were."""

import datetime
import json
from collections import Counter, OrderedDict, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.plain_data import decode, encode

scalars = st.deferred(
    lambda: st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(),
        st.binary(), st.complex_numbers(allow_nan=False), st.decimals(allow_nan=False),
        st.fractions(), st.dates(), st.datetimes(),
    )
)  # fmt: skip
hashable = st.deferred(
    lambda: st.recursive(
        scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner), max_leaves=4
    )
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.sets(hashable, max_size=3)
        | st.dictionaries(hashable, inner, max_size=3)
    ),
    max_leaves=12,
)


def refuse(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} is not plain")


def there_and_back(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value, refuse))), refuse)


@given(values)
def test_plain_values_arrive_as_they_were(value: Any) -> None:
    arrived = there_and_back(value)
    assert arrived == value
    assert type(arrived) is type(value)


class Agreeing(str):
    """Equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


class Colour(IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Agreeing("no"), "no"),
        ([Agreeing("no")], ["no"]),
        (Colour.RED, 1),
        (Point(1, 2), (1, 2)),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (float("inf"), float("inf")),
        (range(0, 9, 2), range(0, 9, 2)),
        (bytearray(b"x"), bytearray(b"x")),
        ([int, str], [int, str]),
        (Decimal("1.50"), Decimal("1.50")),
        (Fraction(1, 3), Fraction(1, 3)),
        (datetime.time(1, 2), datetime.time(1, 2)),
    ],
)
def test_values_with_ideas_of_their_own_arrive_without_them(value: Any, plain: Any) -> None:
    arrived = there_and_back(value)
    assert arrived == plain
    assert type(arrived) is type(plain)
    assert arrived != "yes"


def test_numbers_of_any_size_arrive() -> None:
    assert there_and_back([10**5000, -(10**5000), 2**53, 2**53 + 1]) == [
        10**5000, -(10**5000), 2**53, 2**53 + 1,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "sent", [{}, ["eval", "1"], ["import", "os"], ["int", "x"], ["list", {}], ["type", "type"]]
)
def test_what_stands_for_nothing_is_an_error(sent: Any) -> None:
    with pytest.raises((TypeError, ValueError, LookupError)):
        decode(sent, refuse)
