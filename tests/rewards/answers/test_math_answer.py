"""The math verifier on answers of our own making (public collections are measured by
`headrace bench math-verifier`)."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data.answer_text import answer_after
from rewards.answers.final_answer import find
from rewards.answers.math_answer import is_right
from rewards.kinds.exact import is_exact
from tests.rewards import math_cases

RIGHT = [
    ("so it is #7", "7", "#"),
    ("a3+0=3;#9;#7", "7", "#"),
    ("half # 1/2 \nthen more", "0.5", "#"),
    ("# x+1", "1+x", "#"),
    (r"we get \boxed{7}", "7", None),
    (r"first \boxed{3}, no: it is \boxed{7}.", "7", None),
    (r"\boxed{\frac{14}{16}}", "7/8", None),
    (r"\boxed{0.875}", r"\frac{7}{8}", None),
    (r"\boxed{x=7}", "7", None),
    ("2 + 5 is seven\n#### 7", "7", None),
    ("12 apples\n#### 1,234", "...\n#### 1234", None),
    (r"\boxed{2\sqrt{3}}", r"\sqrt{12}", None),
    (r"The roots are \boxed{1} and \boxed{-2}.", r"-2, 1", None),
    (r"\boxed{(1,2)}", "(1, 2)", None),
    (r"\boxed{x^2+2x+1}", "(x+1)^2", None),
    ("the answer is 7", "7", None),
    ("1 000", "1000", None),
    (r"\boxed{3.54e-7}", r"3.54 \times 10^{-7}", None),
    (r"\boxed{0.333333333333}", "1/3", None),
    (r"\boxed{\$16.50}", "$16.5$", None),
    (r"\boxed{Evelyn}", "evelyn", None),
    (r"\sqrt{12}", r"2\sqrt{3}", None),
    (r"\boxed{3.5 \text{ cm}}", "3.5", None),
]
WRONG = [
    ("so it is 7", "7", "#"),
    ("#7 is wrong, it is #8", "7", "#"),
    ("#", "7", "#"),
    ("", "7", "#"),
    ("", "7", None),
    (r"\boxed{}", "7", None),
    (r"\boxed{3.14}", "3.1416", None),
    (r"\boxed{3.1416}", "3.14", None),
    (r"\boxed{0.333}", "1/3", None),
    (r"\boxed{-7}", "7", None),
    (r"\boxed{70}", "7", None),
    (r"\boxed{7} or \boxed{8}", "7", None),
    (r"\boxed{7, 8}", "7", None),
    (r"first \boxed{7}, no: it is \boxed{3}.", "7", None),
    (r"\boxed{(2,1)}", "(1,2)", None),
    (r"\boxed{\sqrt{13}}", r"\sqrt{12}", None),
    (r"\boxed{x+2}", "x+1", None),
    ("#### 8", "7", None),
    (r"\boxed{Eve}", "Evelyn", None),
    (r"\boxed{7", "8", None),
    ("1000000000000000000001", "1000000000000000000000", None),
]


@pytest.mark.parametrize(("text", "answer", "marker"), RIGHT)
def test_right_answers(text: str, answer: str, marker: str | None) -> None:
    assert is_right(text, answer, marker=marker)


@pytest.mark.parametrize(("text", "answer", "marker"), WRONG)
def test_wrong_answers(text: str, answer: str, marker: str | None) -> None:
    assert not is_right(text, answer, marker=marker)


def test_a_dataset_answer_without_meaning_is_an_error_and_not_a_wrong_answer() -> None:
    with pytest.raises(ValueError, match="is empty"):
        is_right(r"\boxed{7}", "")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{3, 2}", '["2, 3"]'),
        (r"\boxed{1234}", '["1,234"]'),
        (r"\boxed{\text{yes}}", '["Yes"]'),
        (r"\boxed{-\frac{1}{2}}", r'["-\\frac{1}{2}"]'),
        (r"\boxed{\text{two}}", '["2", "two"]'),
    ],
)
def test_each_text_of_a_json_list_is_right(text: str, answer: str) -> None:
    assert is_right(text, answer)
    assert not is_right(r"\boxed{7}", answer)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {a} then \boxed{b}", "b"),
        (r"\boxed{c} \boxed{a}, \boxed{b}", "c, a, b"),
        (r"\boxed{unclosed", "unclosed"),
    ],
)
def test_boxed_answer(text: str, answer: str) -> None:
    found = find(text)
    assert (found.answer, found.marked) == (answer, True)


def test_exact_match() -> None:
    assert is_exact(" Paris \n", "Paris", marker=None)
    assert not is_exact("paris", "Paris", marker=None)
    assert is_exact("thinking: Rome? Answer: Paris\n", "Paris", marker="Answer:")
    assert not is_exact("Paris", "Paris", marker="Answer:")
    assert answer_after("a:b:", ":") == ""


def _pairs(cases: dict[str, list[tuple[str, str]]]) -> list[object]:
    return [
        pytest.param(answer, text, id=f"{about}: {answer} | {text}"[:80])
        for about, pairs in cases.items()
        for answer, text in pairs
    ]


@pytest.mark.parametrize(("answer", "text"), _pairs(math_cases.RIGHT))
def test_right_in_every_difficulty(answer: str, text: str) -> None:
    assert is_right(text, answer)


@pytest.mark.parametrize(("answer", "text"), _pairs(math_cases.WRONG))
def test_wrong_in_every_difficulty(answer: str, text: str) -> None:
    assert not is_right(text, answer)


SMALL = st.integers(-50, 50)


@given(st.lists(SMALL, min_size=2, max_size=6, unique=True).flatmap(
    lambda items: st.tuples(st.just(items), st.permutations(items))
))  # fmt: skip
def test_lists_have_no_order_and_points_have(both: tuple[list[int], list[int]]) -> None:
    items, shuffled = (",".join(map(str, part)) for part in both)
    words = " and ".join(map(str, both[1]))
    assert is_right(f"\\boxed{{{shuffled}}}", items)
    assert is_right(f"\\boxed{{{words}}}", items)
    assert is_right(f"\\boxed{{({shuffled})}}", f"({items})") == (both[0] == both[1])


@given(SMALL, st.integers(0, 99))
def test_a_comma_that_separates_no_thousands_separates_items(first: int, second: int) -> None:
    answer = f"{first},{second}"
    assert not is_right(f"\\boxed{{{first}.{second}}}", answer)
    assert is_right(f"\\boxed{{{second}, {first}}}", answer)


@given(st.integers(-(10**9), 10**9), st.integers(1, 1000))
def test_a_number_in_its_layouts(above: int, below: int) -> None:
    value = Fraction(above, below)
    division = f"\\boxed{{{above}/{below}}}"
    assert is_right(division, str(value)) == (value.denominator > 1)
    fraction = str(value)
    if value.denominator > 1:
        fraction = f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
    for layout in (
        f"\\boxed{{{fraction}}}",
        f"The answer is ${fraction}$.",
        f"\\boxed{{x = {fraction} \\text{{ cm}}}}",
    ):
        assert is_right(layout, str(value))
        assert not is_right(layout, str(value + 1))


@given(
    st.text(max_size=60), st.sampled_from(["7", "(1,2)", "-2,1", "x+1", r"\text{two words}", "B"])
)
def test_no_text_is_an_error(text: str, answer: str) -> None:
    is_right(text, answer)
    is_right(f"\\boxed{{{text}}}", answer)


def test_one_answer_alone() -> None:
    for text, answers in (
        ("I guess **x+1**, or it is x+2", ("x+1", "x+2")),
        (r"It is $\sqrt{25}$. So there are 7 apples", ("5", "7")),
        ("It is **yes**. It is no", ("Yes", "No")),
        ("**True**, or perhaps it is false.", ("True", "False")),
        ("The sum is **odd**. No: it is even", (r"\text{odd}", r"\text{even}")),
    ):
        assert [is_right(text, answer) for answer in answers].count(True) == 1
    for said, other in (("odd", "even"), ("even", "odd")):
        assert is_right(f"**{said}**, since its successor is {other}", said)


@pytest.mark.parametrize(
    "text",
    [
        "<answer>" + "\n" * 6000 + "7 is it",
        r"\boxed{" + r"\vec " * 40 + "1 = 2}",
        "answer " * 1400 + "." * 100 + " A" * 5000,
    ],
)
def test_endless_texts_are_judged_at_once(text: str) -> None:
    began = time.monotonic()
    for answer in ("7", "B"):
        is_right(text, answer)
    assert time.monotonic() - began < 5.0
