"""What would be calculated for ever is wrong, and ends by itself."""

import pytest

from rewards.answers.formula import is_cheap
from rewards.answers.math_answer import is_right
from tests.rewards.math_cases import COSTLY


@pytest.mark.parametrize("text", COSTLY, ids=lambda text: text[:20])
@pytest.mark.parametrize("answer", ["42", "x+1", "(1,2)", r"\text{east}"])
def test_endless_answers_are_wrong(text: str, answer: str) -> None:
    assert not is_right(text, answer)
    assert not is_right(f"\\boxed{{{text}}}", answer)


def test_an_endless_right_answer_is_equal_to_itself() -> None:
    assert is_right(r"\boxed{9^{9^{9}}}", "9^{9^{9}}")
    assert not is_right(r"\boxed{9^{9^{8}}}", "9^{9^{9}}")


@pytest.mark.parametrize(
    "formula",
    [
        "2^{100}", "e^{-x^2/2}", "x^{n+1}", "2^{2^{10}}", "10^{-7}", "100!", r"\binom{100}{50}",
        r"\sum_{k=1}^{100} k^2", r"\sqrt{1+\sqrt{2}}", "(x+1)^{12}", r"x^{2024}", r"90^\circ",
    ],
)  # fmt: skip
def test_ordinary_formulas_are_calculated(formula: str) -> None:
    assert is_cheap(formula)


@pytest.mark.parametrize(
    "formula",
    ["9^{9^9}", "9**9**9", "(3!)!!!", "5000!", "x^{10^6}", "(x+y)^{999}", "2^{10^{5}}", "9" * 2000],
)
def test_large_ones_are_not(formula: str) -> None:
    assert not is_cheap(formula)
