"""The procedural task: golden texts, the law of the lengths, and a split that holds."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UserError
from tasks.procedural.base import (
    default_sizes,
    evaluation_rows,
    is_correct,
    is_held_out,
    prompt_row,
)
from tasks.procedural.chain_sums import (
    CHAIN_SUMS,
    StyleMixture,
    read_prompt,
    sample_response,
    style_of,
    write_direct,
    write_fine,
    write_jumps,
    write_prompt,
    write_steps,
)

digit_lists = st.lists(st.integers(1, 9), min_size=1, max_size=CHAIN_SUMS.most_terms)


def test_the_written_answers_of_the_example() -> None:
    digits = [3, 5, 7]
    assert write_prompt(digits) == "a3b5c7="
    assert write_direct(digits) == "#5"
    assert write_fine(digits) == "a3+0=3;b5+3=8;c7+8=5;#5"
    assert write_steps(digits, [2, 1]) == "a3b5+0=8;c7+8=5;#5"


@given(digit_lists)
def test_a_prompt_reads_back(digits: list[int]) -> None:
    assert read_prompt(write_prompt(digits)) == digits


@pytest.mark.parametrize("text", ["", "a3b5", "3a=", "a3b5=#8"])
def test_other_texts_are_not_prompts(text: str) -> None:
    with pytest.raises(ValueError, match="not a chain"):
        read_prompt(text)


@given(digit_lists, st.integers(0, 2**32))
def test_every_written_answer_is_correct_and_its_style_recognised(
    digits: list[int], seed: int
) -> None:
    answer = str(sum(digits) % 10)
    jumps = write_jumps(digits, Random(seed))
    for text, style in [
        (write_direct(digits), "direct"),
        (write_fine(digits), "fine"),
        (jumps, "fine" if len(digits) == 1 else "jumps"),
    ]:
        assert is_correct(text, answer)
        assert style_of(text) == style


def test_the_longest_careful_answer_fits_the_response_limit() -> None:
    assert len(write_fine([9] * 32)) + 1 == 227
    assert len(write_fine([9] * CHAIN_SUMS.most_terms)) + 1 == 367


@pytest.mark.parametrize("text", ["", "5", "#", "#5;", "a3+0=3;b5#5", "#5#", "a3+0;#5"])
def test_malformed_answers_have_no_style(text: str) -> None:
    assert style_of(text) == "other"


def test_correct_means_the_last_thing_written() -> None:
    assert is_correct("#3", "3")
    assert not is_correct("#3", "4")
    assert not is_correct("#3;", "3")
    assert not is_correct("3", "3")


def test_the_mixture_decides_the_styles() -> None:
    rng = Random(0)
    styles = [
        style_of(sample_response([1, 2, 3, 4], rng, StyleMixture(direct=0.5, jumps=0.3)))
        for _ in range(4000)
    ]
    assert styles.count("direct") / 4000 == pytest.approx(0.5, abs=0.03)
    assert styles.count("jumps") / 4000 == pytest.approx(0.3, abs=0.03)


def test_a_row_depends_on_its_arguments_alone() -> None:
    row = prompt_row(CHAIN_SUMS, 7, 1)
    assert row == prompt_row(CHAIN_SUMS, 7, 1)
    assert row != prompt_row(CHAIN_SUMS, 8, 1)
    assert row != prompt_row(CHAIN_SUMS, 7, 2)
    digits = read_prompt(str(row.prompt))
    assert row.answer == str(sum(digits) % 10)
    assert row.info == {"terms": len(digits)}


def test_golden_rows_stay_what_they_are() -> None:
    assert [prompt_row(CHAIN_SUMS, i, 0).prompt for i in range(3)] == [
        "a8b7c9=",
        "a6b6c3=",
        "a6b7c7d9e7f9g6h1i3j7k1l7m9n9o7p1q1r8s4=",
    ]
    assert [row.prompt for row in evaluation_rows(CHAIN_SUMS, 3)] == [
        "a1b4c7=",
        "a5b2c8d5=",
        "a2b2c3d9e8f3g5h8=",
    ]


def test_lengths_follow_the_pareto_law() -> None:
    terms = [prompt_row(CHAIN_SUMS, i, 0).info["terms"] for i in range(10_000)]
    assert terms.count(3) / 10_000 == pytest.approx(1 - (3 / 4) ** 1.6, abs=0.02)
    assert sum(n >= 20 for n in terms) / 10_000 == pytest.approx((3 / 20) ** 1.6, abs=0.01)
    assert (min(terms), max(terms)) == (3, 32)


def test_training_and_evaluation_never_share_a_prompt() -> None:
    training = {str(prompt_row(CHAIN_SUMS, i, 3).prompt) for i in range(5_000)}
    evaluation = [str(row.prompt) for row in evaluation_rows(CHAIN_SUMS, 2048)]
    assert len(set(evaluation)) == 2048
    assert training.isdisjoint(evaluation)
    assert all(map(is_held_out, evaluation))
    assert not any(map(is_held_out, training))


def test_a_smaller_evaluation_is_the_beginning_of_a_larger_one() -> None:
    assert evaluation_rows(CHAIN_SUMS, 300)[:100] == evaluation_rows(CHAIN_SUMS, 100)


def test_too_many_distinct_prompts_are_refused() -> None:
    with pytest.raises(UserError, match="distinct held-out prompts"):
        evaluation_rows(CHAIN_SUMS, 1024, sizes=replace(default_sizes(CHAIN_SUMS), max_terms=3))
