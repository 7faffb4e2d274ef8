import pytest

from headrace.errors import UserError
from tests.rewards.kinds.rows import judged, verifier

FORMAT = r"<think>(?P<thought>.*?)</think>\s*<answer>(?P<answer>.*?)</answer>"


def test_exact() -> None:
    verify = verifier("text")
    assert judged(verify, " Lima\n", "Lima").correct
    assert not judged(verify, "lima", "Lima").correct
    assert judged(verifier("text", ignore_case=True), "lima", "Lima").correct
    blanks = verifier("text", ignore_blanks=True)
    assert judged(blanks, "New \n York", "New York").correct
    assert not judged(blanks, "NewYork", "New York").correct
    assert judged(verifier("text", answer_marker="City:"), "Hm. City: Lima", "Lima").correct
    assert not judged(verifier("text", answer_marker="City:"), "Lima", "Lima").correct


def test_regex() -> None:
    verify = verifier("text", match="regex", pattern=r"\b[0-9]{4}-[0-9]{2}\b")
    assert judged(verify, "in 2031-07, perhaps", "").correct
    assert not judged(verify, "in July", "").correct
    row = verifier("text", match="regex", ignore_case=True)
    assert judged(row, "It is COLOUR.", "colou?r").correct
    group = verifier("text", match="regex", pattern="city=(?P<city>[a-z]+)", answer_group="city")
    assert judged(group, "city=lima", "lima").correct
    assert not judged(group, "city=oslo", "lima").correct
    assert not judged(group, "city=lima", "Lima").correct
    any_case = {"match": "regex", "pattern": "city=(?P<city>[a-z]+)", "answer_group": "city"}
    assert judged(verifier("text", ignore_case=True, **any_case), "city=LIMA", "Lima").correct


def test_the_marker_in_the_right_answer() -> None:
    said = "24 more.\n#### 72"
    right = "Half of 48 is 24.\n#### 72"
    assert judged(verifier("text", answer_marker="####"), said, right).correct
    assert judged(verifier("number", answer_marker="####"), said, right).correct


def test_format_pays_for_the_form_and_for_the_answer() -> None:
    verify = verifier(
        "text", match="format", pattern=FORMAT, answer_group="answer", format_reward=0.2
    )
    good = judged(verify, "<think>3+4\n</think>\n<answer>7</answer>", "7")
    assert (good.reward, good.correct, good.parts) == (1.0, True, {"correct": 1.0, "format": 1.0})
    formal = judged(verify, "<think>3+4</think><answer>8</answer>", "7")
    assert (formal.reward, formal.correct, formal.parts["format"]) == (0.2, False, 1.0)
    for text in ("7", "<think> </think><answer>7</answer>", "<think>x</think><answer>7</answer>."):
        assert judged(verify, text, "7").reward == 0.0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"match": "format"}, "needs a pattern"),
        ({"pattern": "a"}, "has no pattern; take 'regex'"),
        ({"match": "regex", "pattern": "("}, r"pattern '\('"),
        ({"match": "regex", "answer_group": "x"}, "answer_group needs a pattern"),
        ({"match": "regex", "pattern": "a", "answer_group": "x"}, r"no group \(\?P<x>"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, str], error: str) -> None:
    with pytest.raises(UserError, match=error) as raised:
        verifier("text", **options)
    assert "\n" not in str(raised.value)


def test_rows_that_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="the right answer is empty"):
        judged(verifier("text"), "a", " ")
    with pytest.raises(ValueError, match=r"the row's pattern '\(': missing"):
        judged(verifier("text", match="regex"), "a", "(")
