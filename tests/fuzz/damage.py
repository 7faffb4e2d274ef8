"""What the fuzz tests draw from: values that nobody asked for, and damage to what is well formed.

`--hypothesis-profile=long --timeout=0` looks for hours (`tests/conftest.py`);
`--hypothesis-show-statistics` says how much was taken and how much refused.
"""

from typing import Any, AnyStr

from hypothesis import strategies as st

INTEGERS = (-(2**63), -(2**31), -1, 0, 1, 2, 7, 2**31 - 1, 2**31, 2**53, 2**63, 2**64 - 1)
TEXTS = (
    "", "0f", "generator-0", "a b", "\0", "two\nlines", "../../up", "'", '"', "~", "=",
    "\U0001f40d", "\u202e", "x" * 65, "x" * 5000,
)  # fmt: skip
TEXT = st.sampled_from(TEXTS) | st.text(max_size=8)
PLAIN = st.sampled_from(INTEGERS) | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXT
WILD: st.SearchStrategy[Any] = st.recursive(
    PLAIN | st.none() | st.booleans() | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=6,
)
"""Any value that msgpack knows."""
BYTES = st.binary(max_size=8)


@st.composite
def damaged(draw: st.DrawFn, whole: AnyStr, pieces: st.SearchStrategy[AnyStr]) -> AnyStr:
    """Text or bytes with one to four parts of it cut out, doubled, or replaced by a piece."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(whole)))
        end = at + draw(st.sampled_from((0, 1, 1, 2, 8, 64, len(whole))))
        put = draw(st.one_of(st.just(whole[:0]), st.just(whole[at:end] * 2), pieces, pieces))
        whole = whole[:at] + put * draw(st.sampled_from((1, 1, 1, 300))) + whole[end:]
    return whole


def one_line(error: Exception) -> None:
    """A user's mistake is told in one line."""
    assert str(error)
    assert "\n" not in str(error)
