"""Probabilities and numbers out of a judge's answer; golden cases of Pairwise-RL."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data.answer_text import without_thought
from rewards.functions.arguments import InvalidRewardError
from rewards.judging.options import Options
from rewards.judging.readings import (
    JudgeReply,
    both_orders,
    number,
    two_token,
    yes_probability,
)

SCORE = r"score: (?P<score>-?[\d.]+)"


def test_golden_case_1_from_logits_to_reward() -> None:
    front, back = two_token(1.2, 0.4), two_token(-0.5, 0.1)
    assert front == pytest.approx(0.689974, abs=1e-6)
    assert back == pytest.approx(0.354344, abs=1e-6)
    assert 1.0 - back == pytest.approx(0.645656, abs=1e-6)
    assert both_orders(front, back) == pytest.approx(0.667815, abs=1e-6)


def test_golden_case_2_and_4_from_probabilities_to_reward() -> None:
    assert both_orders(0.7, 0.5) == pytest.approx(0.60)
    assert both_orders(0.9, 0.9) == pytest.approx(0.5)


def test_golden_case_3_saturation() -> None:
    table = {0: (0.5, 0.25), 2: (0.8808, 0.1050), 4: (0.9820, 0.0177), 6: (0.9975, 0.0025)}
    for margin, (probability, slope) in table.items():
        p = two_token(float(margin), 0.0)
        assert (p, p * (1 - p)) == pytest.approx((probability, slope), abs=5e-5)


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_two_sides_of_a_comparison_add_up(front: float, back: float) -> None:
    """What beats the anchor with p is beaten by it with 1 - p, whatever the place is worth."""
    assert both_orders(front, back) + both_orders(back, front) == pytest.approx(1.0)
    assert both_orders(front, front) == pytest.approx(0.5)


@given(st.floats(-900, 900), st.floats(-900, 900))
def test_no_logits_break_it(yes: float, no: float) -> None:
    assert 0.0 <= two_token(yes, no) <= 1.0
    assert two_token(yes, no) + two_token(no, yes) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("alternatives", "probability"),
    [
        ({"yes": -0.3, "no": -1.3}, two_token(-0.3, -1.3)),
        # All spellings of a word count together, also with marks for blanks.
        ({"Yes": -1.0, "\u0120yes": -1.0, "no": -1.0}, 2 / 3),
        # What is not among the likeliest is at most as likely as the last of them.
        ({"yes": -0.1, "maybe": -3.0}, two_token(-0.1, -3.0)),
        ({"the": -0.5, "no": -1.0, "a": -4.0}, two_token(-4.0, -1.0)),
    ],
)
def test_the_first_token_decides(alternatives: dict[str, float], probability: float) -> None:
    reply = JudgeReply("", (alternatives,))
    assert yes_probability(reply, "yes", "no") == pytest.approx(probability)


def test_behind_other_words_the_place_of_the_word_decides() -> None:
    places = ({"Hm": -0.1, "yes": -3.0}, {" ": -0.1}, {"no": -0.2, "yes": -1.2})
    assert yes_probability(JudgeReply("Hm no", places), "yes", "no") == pytest.approx(
        two_token(-1.2, -0.2)
    )


def test_a_word_in_the_judges_thought_does_not_count() -> None:
    places = tuple({token: -0.1} for token in ("<think>", "yes", "</think>"))
    last = ({"no": -0.1, "yes": -2.1},)
    reply = JudgeReply("<think>yes</think>no", places + last)
    assert yes_probability(reply, "yes", "no") == pytest.approx(two_token(-2.1, -0.1))
    # The prompt's template may have begun the thought.
    assert yes_probability(JudgeReply("no", places[1:] + last), "yes", "no") == pytest.approx(
        two_token(-2.1, -0.1)
    )
    cut = JudgeReply("<think>yes", places[:2])
    with pytest.raises(InvalidRewardError, match="neither 'yes' nor 'no'"):
        yes_probability(cut, "yes", "no")


@pytest.mark.parametrize(
    ("text", "probability"),
    [("Yes.", 1.0), ("No, it is not", 0.0), ("not yes but: NO", 0.0), ("<think>no</think> yes", 1)],
)
def test_without_probabilities_the_text_decides(text: str, probability: float) -> None:
    assert yes_probability(JudgeReply(text), "yes", "no") == probability


@pytest.mark.parametrize("text", ["", "I know nothing", "yesterday"])
def test_what_says_neither_is_no_score(text: str) -> None:
    with pytest.raises(InvalidRewardError, match="neither"):
        yes_probability(JudgeReply(text), "yes", "no")
    # Probabilities of other words do not help.
    with pytest.raises(InvalidRewardError, match="neither"):
        yes_probability(JudgeReply(text, ({text: -0.1, "if": -2.0},)), "yes", "no")


def test_numbers_are_read_on_their_scale() -> None:
    assert number(JudgeReply("Score: 3\n... Score: 7.5"), SCORE, 0.0, 10.0) == 0.75
    assert number(JudgeReply("<think>score: 1</think>score: -1"), SCORE, -1.0, 1.0) == 0.0
    for text in ("no idea", "score: 11", "score: 1.2.3", "<think>score: 3"):
        with pytest.raises(InvalidRewardError):
            number(JudgeReply(text), SCORE, 0.0, 10.0)


def test_a_scale_behind_the_word_is_not_the_score() -> None:
    pattern = Options.model_fields["pattern"].default
    texts = ("**Score (0-10):** 8", "Score (1 to 10): 8", "rating (out of 10) = 8", "Score (8). 3")
    assert [number(JudgeReply(text), pattern, 0.0, 10.0) for text in texts] == [0.8] * 4
    with pytest.raises(InvalidRewardError, match="no score"):
        number(JudgeReply("Score (0-10): eight"), pattern, 0.0, 10.0)


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("7", "7"),
        ("<think>3+4</think> 7", "7"),
        ("so it is</think>7", "7"),
        ("<think>never ends", ""),
        ("A <think>b</think> c <think>d</think> e", "A  e"),
        ("7 <think>but", "7"),
    ],
)
def test_thoughts_are_left_out(text: str, rest: str) -> None:
    assert without_thought(text, "think") == rest


def test_logarithms_of_nothing_are_no_trouble() -> None:
    reply = JudgeReply("yes", ({"yes": 0.0, "no": -9999.0},))
    assert math.isclose(yes_probability(reply, "yes", "no"), 1.0)
