"""The tracking task: golden texts, steps that follow, slips that spoil nothing but the result."""

import re
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.procedural.base import evaluation_rows, is_correct, is_held_out, prompt_row
from tasks.procedural.tracking import (
    DIRECT_SHARE,
    SLIP,
    TRACKING,
    TrackingProblem,
    draw_problem,
    follow,
    read_prompt,
    solve,
    style_of,
    teach,
    write_prompt,
    write_steps,
)

STEP = re.compile(r"[a-zA-T]\d\d\+(\d)=(\d);")

problems = st.builds(
    lambda seed, swaps: draw_problem(Random(seed), swaps),
    st.integers(0, 2**32),
    st.integers(1, TRACKING.most_terms),
)


def wrong_steps(prompt: str, response: str) -> list[bool]:
    """For each written step of a response, in order, whether its cup does not follow."""
    swaps = read_prompt(prompt).swaps
    steps = [(int(before), int(after)) for before, after in STEP.findall(response)]
    return [
        follow(before, swap) != after for (before, after), swap in zip(steps, swaps, strict=False)
    ]


def test_the_written_answer_of_the_example() -> None:
    problem = TrackingProblem(3, ((1, 4), (3, 5), (5, 1)))
    assert write_prompt(problem) == "3a14b35c51="
    assert write_steps(problem, Random(0)) == "a14+3=3;b35+3=5;c51+5=1;#1"
    assert solve("3a14b35c51=") == "1"


@given(problems)
def test_a_prompt_reads_back_and_its_steps_are_right(problem: TrackingProblem) -> None:
    prompt = write_prompt(problem)
    assert read_prompt(prompt) == problem
    assert all(first != second for first, second in problem.swaps)
    written = write_steps(problem, Random(0))
    assert wrong_steps(prompt, written) == [False] * len(problem.swaps)
    assert is_correct(written, solve(prompt))
    assert style_of(written) == "written"


@pytest.mark.parametrize("text", ["", "3=", "3a14", "a14=", "3a14b35=#5", "0a14="])
def test_other_texts_are_not_prompts(text: str) -> None:
    with pytest.raises(ValueError, match="not a tracking problem"):
        read_prompt(text)


@pytest.mark.parametrize("text", ["", "1", "#", "#1;", "a14+3=3;", "a14=3;#3", "a14+3=3#3"])
def test_malformed_answers_have_no_style(text: str) -> None:
    assert style_of(text) == "other"


@given(problems, st.integers(0, 2**32))
def test_a_slip_leaves_the_form_and_the_answer_goes_on_from_it(
    problem: TrackingProblem, seed: int
) -> None:
    prompt = write_prompt(problem)
    slipped = write_steps(problem, Random(seed), SLIP)
    assert len(slipped) == len(write_steps(problem, Random(0))) == 8 * len(problem.swaps) + 2
    assert style_of(slipped) == "written"
    cups = re.findall(r"\+(\d)=(\d);", slipped)
    assert cups[0][0] == str(problem.start)
    assert all(after == before for (_, after), (before, _) in pairwise(cups))
    assert slipped.endswith(f"#{cups[-1][1]}")
    assert "0" not in slipped
    if not any(wrong_steps(prompt, slipped)):
        assert is_correct(slipped, solve(prompt))


def test_every_fifth_step_of_the_lessons_is_wrong_and_none_of_the_skill() -> None:
    prompts = [str(prompt_row(TRACKING, i, 0).prompt) for i in range(2000)]
    rng = Random(0)
    lessons = [(prompt, teach(prompt, rng, "mixture")) for prompt in prompts]
    steps = [wrong for lesson in lessons for wrong in wrong_steps(*lesson)]
    assert sum(steps) / len(steps) == pytest.approx(SLIP, abs=0.015)
    direct = [is_correct(text, solve(prompt)) for prompt, text in lessons if len(text) == 2]
    assert all(direct)
    assert len(direct) / 2000 == pytest.approx(DIRECT_SHARE, abs=0.03)
    skill = [(prompt, teach(prompt, rng, "skill")) for prompt in prompts]
    assert not any(wrong for lesson in skill for wrong in wrong_steps(*lesson))


def test_half_of_the_swaps_move_the_object() -> None:
    rng = Random(1)
    moved = 0
    for _ in range(500):
        problem = draw_problem(rng, 10)
        cup = problem.start
        for swap in problem.swaps:
            moved += follow(cup, swap) != cup
            cup = follow(cup, swap)
    assert moved / 5000 == pytest.approx(0.5, abs=0.03)


def test_golden_rows_stay_what_they_are() -> None:
    assert [(row.prompt, row.answer) for row in (prompt_row(TRACKING, i, 0) for i in range(2))] == [
        ("3a53b52c65d26=", "6"),
        ("5a93b62c27d15=", "1"),
    ]


def test_lengths_have_a_tail_and_fit_the_limits_of_the_recipe() -> None:
    rows = [prompt_row(TRACKING, i, 0) for i in range(5000)]
    lengths = [8 * int(row.info["terms"]) + 3 for row in rows]
    assert max(lengths) == 195
    assert max(lengths) / (sum(lengths) / len(lengths)) >= 3.5
    assert max(len(row.prompt) for row in rows) == 74


def test_training_and_evaluation_never_share_a_prompt() -> None:
    training = {str(prompt_row(TRACKING, i, 3).prompt) for i in range(3000)}
    evaluation = [str(row.prompt) for row in evaluation_rows(TRACKING, 1024)]
    assert len(set(evaluation)) == 1024
    assert training.isdisjoint(evaluation)
    assert all(map(is_held_out, evaluation))
