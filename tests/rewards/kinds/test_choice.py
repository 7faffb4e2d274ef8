import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.answers.choices import LETTERS, said_letter
from tests.rewards.kinds.rows import judged, verifier

CHOSEN = [
    ("\\boxed{C}", "C"),
    ("\\boxed{\\text{(C)}}", "C"),
    ("\\boxed{c}", "C"),
    ("\\boxed{\\textbf{(C)}\\ 12}", "C"),
    ("The answer is (C).", "C"),
    ("The answer is (C) because (D) is too small.", "C"),
    ("**Answer: C**", "C"),
    ("I would choose option C here", "C"),
    ("It is not A and not B, so C", "C"),
    ("C", "C"),
    ("C. The sum is even.", "C"),
    ("(C) Paris", "C"),
    ("A has no roots, B has one. That leaves C", "C"),
    ("First I thought that the answer is B. But no: the answer is C.", "C"),
    ("A good way is to add them all. The correct option is J", "J"),
    ("\u7b54\u6848\u662f C", "C"),
    ("nothing of that", None),
    ("A man walks home.", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "letter"), CHOSEN)
def test_the_letter_of_a_response(text: str, letter: str | None) -> None:
    verify = verifier("choice")
    for wanted in "ABCJ":
        verdict = judged(verify, text, wanted)
        assert verdict.correct == (letter == wanted)
        assert verdict.reward == float(letter == wanted)
        assert verdict.parts["answered"] == float(letter is not None)


def test_options_of_the_row() -> None:
    verify = verifier("choice", options_column="options")
    assert verify.needs == ("options",)
    for options in (["Rome", "Oslo", "Lima"], {"A": "Rome", "B": "Oslo", "C": "Lima"},
                    ["A) Rome", "B) Oslo", "C) Lima"]):  # fmt: skip
        for wanted in ("B", "(B)", "oslo"):
            assert judged(verify, "The answer is B.", wanted, options=options).correct
            assert judged(verify, "The answer is Oslo.", wanted, options=options).correct
            assert judged(verify, "\\boxed{\\text{Oslo}}", wanted, options=options).correct
            assert not judged(verify, "\\boxed{Rome}", wanted, options=options).correct
            # A letter beyond the options is no choice.
            assert not judged(verify, "The answer is D.", wanted, options=options).correct


@pytest.mark.parametrize(
    ("answer", "options", "error"),
    [
        ("Bern", ["Rome", "Oslo"], "the right answer 'Bern' is no letter of AB and no option"),
        ("C", ["Rome", "Oslo"], "the right answer 'C' is no letter of AB"),
        ("", ["Rome", "Oslo"], "the right answer is empty"),
        ("A", ["Rome"], "1 options: there are to be 2 to 10"),
        ("A", "Rome", "the options are str"),
        ("A", {"A": "Rome", "Z": "Oslo"}, "letters from A to J"),
    ],
)
def test_rows_that_cannot_be_judged(answer: str, options: object, error: str) -> None:
    verify = verifier("choice", options_column="options")
    with pytest.raises(ValueError, match=error) as raised:
        judged(verify, "A", answer, options=options)
    assert "\n" not in str(raised.value)


def test_a_row_without_the_column() -> None:
    with pytest.raises(ValueError, match="the row has no column 'options'"):
        judged(verifier("choice", options_column="options"), "A", "A")


@given(st.text(max_size=200))
def test_any_text_has_a_letter_or_none(text: str) -> None:
    letter = said_letter(text)
    assert letter is None or (letter in LETTERS and letter in text)
