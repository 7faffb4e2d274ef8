from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.kinds.instruction import read_checks
from tests.rewards.kinds.rows import judged, verifier

OBJECT = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
}
HOLDS: list[tuple[dict[str, Any], str, str]] = [
    # A check, a text that passes, one that does not.
    ({"type": "length", "max": 3}, "Two o'clock, then", "It is two o'clock now"),
    ({"type": "length", "unit": "sentences", "min": 2, "max": 2}, "Go. Now!", "Go now!"),
    ({"type": "length", "unit": "sentences", "max": 1}, "It costs 3.50 euros.", "No. Not 3.50."),
    ({"type": "length", "unit": "paragraphs", "min": 2}, "one\n\ntwo", "one\ntwo"),
    ({"type": "length", "unit": "lines", "max": 2}, "a\n\nb", "a\nb\nc"),
    ({"type": "length", "unit": "characters", "min": 5}, "abcde", " abc "),
    ({"type": "keywords", "words": ["sea", "wind"]}, "Wind over the sea", "Wind over the seas"),
    ({"type": "keywords", "words": ["tide"], "min": 2}, "tide by tide", "one tide"),
    ({"type": "keywords", "words": ["tide"], "max": 1}, "no such word", "tide by tide"),
    ({"type": "keywords", "words": ["C++"], "ignore_case": False}, "I like C++.", "I like c++."),
    ({"type": "forbidden", "words": ["very"]}, "everything", "a very good one"),
    ({"type": "forbidden", "words": [","]}, "no commas", "one, two"),
    ({"type": "json"}, '{"a": [1]}', "{'a': 1}"),
    ({"type": "json"}, "[1e3]", "[NaN]"),
    ({"type": "json", "json_schema": {"minimum": 90}}, "95", "Infinity"),
    ({"type": "json"}, "```json\n[1]\n```", "here: [1]"),
    ({"type": "json", "json_schema": OBJECT}, '{"name": "Ida", "age": 3}', '{"name": "Ida"}'),
    ({"type": "json", "fenced": False}, "[1]", "```json\n[1]\n```"),
    ({"type": "starts_with", "text": "Dear"}, "\nDear all,", "To all: Dear"),
    ({"type": "ends_with", "text": "the end.", "ignore_case": True}, "This is The End. ", "end."),
    ({"type": "bullets", "min": 2, "max": 2}, "- a\n* b", "1. a\n2) b\n3. c"),
    ({"type": "bullets"}, "List:\n  1. a", "a - b"),
    ({"type": "script", "script": "cyrillic"}, "Добрый день, 3 раза", "Good day"),
    ({"type": "script", "script": "japanese"}, "今日はカレーです", "오늘은 카레"),
    ({"type": "script", "script": "latin", "share": 0.5}, "xyz где", "xy где"),
    ({"type": "case", "case": "lower"}, "all small 1", "Not small"),
    ({"type": "case", "case": "upper"}, "ALL LARGE", "123"),
]


@pytest.mark.parametrize(("check", "passes", "fails"), HOLDS)
def test_each_check(check: dict[str, Any], passes: str, fails: str) -> None:
    verify = verifier("instruction", checks=[check])
    name = f"1_{check['type']}"
    good, bad = judged(verify, passes, ""), judged(verify, fails, "")
    assert (good.reward, good.correct, good.parts) == (1.0, True, {"correct": 1.0, name: 1.0})
    assert (bad.reward, bad.correct, bad.parts) == (0.0, False, {"correct": 0.0, name: 0.0})


def test_nothing_said_follows_no_instruction() -> None:
    verify = verifier("instruction", checks=[{"type": "length", "max": 100}])
    assert judged(verify, "short", "").correct
    assert not judged(verify, "", "").correct


def test_words_of_letters_with_marks() -> None:
    """Hindi's vowels are marks."""
    verify = verifier("instruction", checks=[{"type": "length", "max": 2}])
    assert judged(
        verify, "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e", ""
    ).correct


def test_json_too_deep_for_its_schema_is_wrong() -> None:
    check = {"type": "json", "json_schema": {"items": {"$ref": "#"}}}
    verify = verifier("instruction", checks=[check])
    assert judged(verify, "[1, 2]", "").correct
    assert not judged(verify, "[" * 500 + "]" * 500, "").correct


def test_rows_of_dots_and_of_empty_lines_end_soon() -> None:
    checks = [{"type": "length", "unit": "sentences", "max": 1}, {"type": "json"}]
    verify = verifier("instruction", checks=checks)
    for text in ("." * 200_000 + "x", "```json" + "\n" * 10_000 + "x"):
        verdict = judged(verify, text, "")
        assert (verdict.parts["1_length"], verdict.parts["2_json"]) == (1.0, 0.0)
    assert judged(verify, "```json \n\n[1]\n\n ```", "").correct


def test_the_score_is_the_share_that_holds() -> None:
    checks = [check for check, _, _ in HOLDS[:1]]
    verify = verifier("instruction", checks=checks, checks_column="more")
    assert verify.needs == ("more",)
    more = [{"type": "starts_with", "text": "One"}, {"type": "bullets", "max": 0}]
    verdict = judged(verify, "One two three four", "", more=more)
    assert verdict.reward == pytest.approx(2 / 3)
    assert not verdict.correct
    assert verdict.parts == {
        "correct": 0.0,
        "1_length": 0.0,
        "2_starts_with": 1.0,
        "3_bullets": 1.0,
    }


def test_checks_of_the_row_as_objects_or_as_json() -> None:
    verify = verifier("instruction")
    assert verify.needs == ("checks",)
    assert judged(verify, "ab", "", checks=[{"type": "case", "case": "lower"}]).correct
    assert judged(verify, "ab", "", checks='[{"type": "case", "case": "lower"}]').correct


@pytest.mark.parametrize(
    ("checks", "error"),
    [
        ([], "the list is empty"),
        ([{"type": "rhyme"}], "checks: 0: .*rhyme.*does not match"),
        ([{"type": "length"}], "checks: 0.length: .*needs min or max"),
        ([{"type": "length", "min": -1}], "checks: 0.length.min: "),
        ([{"type": "case", "case": "upper", "colour": 1}], "checks: 0.case.colour: Extra"),
        ([{"type": "json", "json_schema": {"type": "thing"}}], "json_schema is none"),
        ({"type": "case"}, "checks: "),
        ("[", "Expecting value"),
    ],
)
def test_checks_that_nobody_knows(checks: object, error: str) -> None:
    with pytest.raises(ValueError, match=error) as raised:
        judged(verifier("instruction"), "a", "", checks=checks)
    assert "\n" not in str(raised.value)


@given(st.text(max_size=300))
def test_any_text_can_be_checked(text: str) -> None:
    for check in read_checks([check for check, _, _ in HOLDS]):
        assert check.passes(text) in (True, False)
