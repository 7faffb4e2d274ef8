from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.answers.notation import tidy
from rewards.answers.quantity import LONGEST, Quantity, read_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", Fraction(7)),
        ("+7", Fraction(7)),
        ("-7.", Fraction(-7)),
        ("\u22127", Fraction(-7)),
        ("007", Fraction(7)),
        ("3.14", Fraction(157, 50)),
        (".5", Fraction(1, 2)),
        ("1,234,567.80", Fraction(6172839, 5)),
        (r"11,\! 111,\! 111", Fraction(11111111)),
        ("7/8", Fraction(7, 8)),
        ("-14/16", Fraction(-7, 8)),
        (r"$\frac{7}{8}$", Fraction(7, 8)),
        (r"-\dfrac{7}{8}", Fraction(-7, 8)),
        (r"\frac78", Fraction(7, 8)),
        (r"\( 42 \)", Fraction(42)),
        ("1e3", Fraction(1000)),
        (r"-2.5 \times 10^{-1}", Fraction(-1, 4)),
    ],
)
def test_one_plain_number(text: str, value: Fraction) -> None:
    assert read_quantity(tidy(text)) == Quantity(value)


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "-", "x", "7 8", "1234,567", "12,34", "7/0", "1e1000", "3+4", "2^3", "1/2/3",
        "--1", r"\frac{1}{0}", "\u0667", "5 m\u0131llion", "inf", "nan", "9" * (LONGEST + 1),
    ],
)  # fmt: skip
def test_anything_else_is_none(text: str) -> None:
    assert read_quantity(tidy(text)) is None


@given(st.integers(-(10**30), 10**30))
def test_integers_with_and_without_separators(number: int) -> None:
    wanted = Quantity(Fraction(number))
    assert read_quantity(str(number)) == read_quantity(f"{number:,}") == wanted


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6))
def test_decimals_are_exact(number: object) -> None:
    assert read_quantity(f"{number:f}") == Quantity(Fraction(str(number)))


@given(st.text(max_size=20))
def test_no_text_is_an_error(text: str) -> None:
    read_quantity(text)
