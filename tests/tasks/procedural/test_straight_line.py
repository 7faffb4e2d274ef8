"""The task of process rewards: golden texts, a test of the last line, an oracle of the first wrong
one, and slips that nothing makes up for."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.procedural.base import evaluation_rows, is_held_out, prompt_row
from tasks.procedural.straight_line import (
    LABELS,
    NOTE,
    SLIP,
    STRAIGHT_LINE,
    StraightLineProblem,
    code_lines,
    draw_problem,
    passes,
    read_prompt,
    registers,
    right_lines,
    score,
    solve,
    style_of,
    teach,
    write_program,
    write_prompt,
)

PROMPT = "3a*4b+9c-1:"
RIGHT = "a*4=2\nb+9=1\nc-1=0\n"

seeds = st.integers(0, 2**32)
problems = st.builds(
    lambda seed, operations: draw_problem(Random(seed), operations), seeds, st.integers(1, 9)
)


def test_the_written_answer_of_the_example() -> None:
    problem = StraightLineProblem(3, ("*4", "+9", "-1"))
    assert write_prompt(problem) == PROMPT
    assert registers(problem) == [2, 1, 0]
    assert write_program(problem, Random(0)) == RIGHT
    assert solve(PROMPT) == "0"
    assert right_lines(PROMPT, RIGHT) == 3
    assert score(PROMPT, RIGHT) == {"score": 1.0, "right": 1.0, "lines": 3.0, "neutral": 0.0}
    assert style_of(RIGHT) == "plain"


@given(problems)
def test_a_prompt_reads_back(problem: StraightLineProblem) -> None:
    assert read_prompt(write_prompt(problem)) == problem


@pytest.mark.parametrize(
    "text", ["", "3:", "3a*4", "3b+1:", "3a+1c+1:", "a+1:", "3a/2:", "3a+1:\n"]
)
def test_other_texts_are_not_prompts(text: str) -> None:
    with pytest.raises(ValueError, match="not a straight-line program"):
        read_prompt(text)


@pytest.mark.parametrize(
    ("response", "count", "right"),
    [
        ("", 0, False),
        ("a*4=3\nb+9=2\nc-1=1\n", 0, False),  # the first line is wrong
        ("a*4=2\nb+9=2\nc-1=1\n", 1, False),
        ("a*4=2\nb+9=1\nc-1=1\n", 2, False),
        ("a*4=2\nb+9=1\n", 2, False),  # the last is not there
        ("a*4=2\nb+9=7\nc-1=0\n", 1, True),  # only the last is tested
        ("c-1=0\n", 0, True),
        ("#\na*4=2\n\n#\nb+9=1\nc-1=0", 3, True),  # comments and blanks count for nothing
        (RIGHT + "#\n", 3, True),
        (RIGHT + "c-1=1\n", 3, False),
        ("b+9=1\na*4=2\nc-1=0\n", 0, True),
        ("a*4=22\nb+9=1\nc-1=0\n", 0, True),
    ],
)
def test_the_test_sees_the_last_line_and_the_oracle_the_first_wrong_one(
    response: str, count: int, right: bool
) -> None:
    assert right_lines(PROMPT, response) == count
    assert passes(PROMPT, response) is right


def test_the_parts_of_a_score() -> None:
    told = score(PROMPT, "#\na*4=2\nb+9=2\nc-1=1\n")
    assert told == {"score": 0.0, "right": pytest.approx(1 / 3), "lines": 4.0, "neutral": 0.25}


@given(problems, seeds)
def test_what_is_written_without_slips_is_right(problem: StraightLineProblem, seed: int) -> None:
    prompt = write_prompt(problem)
    written = write_program(problem, Random(seed), note=0.3)
    assert passes(prompt, written)
    assert right_lines(prompt, written) == len(problem.operations) == len(code_lines(written))
    assert style_of(written) == ("noted" if "#" in written else "plain")


@given(problems, seeds)
def test_a_slip_is_never_made_up_for(problem: StraightLineProblem, seed: int) -> None:
    """However many lines slip, every register after the first slip is wrong."""
    prompt = write_prompt(problem)
    written = write_program(problem, Random(seed), slip=0.5)
    said = [int(line[-1]) for line in code_lines(written)]
    right = right_lines(prompt, written)
    assert all(
        (value == truth) == (place < right)
        for place, (value, truth) in enumerate(zip(said, registers(problem), strict=True))
    )
    assert passes(prompt, written) == (right == len(problem.operations))


def test_lessons_slip_and_comment_as_often_as_they_should() -> None:
    rng, prompts = Random(0), [str(prompt_row(STRAIGHT_LINE, i, 0).prompt) for i in range(3000)]
    lessons = [(prompt, teach(prompt, rng, "mixture")) for prompt in prompts]
    first = [right_lines(prompt, lesson) > 0 for prompt, lesson in lessons]
    assert sum(first) / len(first) == pytest.approx(1 - SLIP, abs=0.03)
    notes = sum(lesson.count("#") for _, lesson in lessons)
    lines = sum(len(code_lines(lesson)) for _, lesson in lessons)
    assert notes / lines == pytest.approx(NOTE, abs=0.01)
    long = [passes(*lesson) for lesson in lessons if len(lesson[0]) == 2 + 3 * 8]
    assert sum(long) / len(long) == pytest.approx((1 - SLIP) ** 8, abs=0.04)
    assert all(passes(prompt, teach(prompt, rng, "skill")) for prompt in prompts[:200])


def test_sizes_are_from_two_to_eight_with_many_at_either_end() -> None:
    terms = [prompt_row(STRAIGHT_LINE, i, 0).info["terms"] for i in range(4000)]
    shares = {size: terms.count(size) / len(terms) for size in set(terms)}
    assert set(shares) == set(range(2, 9))
    assert shares[2] == pytest.approx(1 / 3, abs=0.04)
    assert shares[8] == pytest.approx(1 / 4, abs=0.04)
    assert len(LABELS) == STRAIGHT_LINE.most_terms == 9


def test_training_and_evaluation_never_share_a_prompt() -> None:
    training = {str(prompt_row(STRAIGHT_LINE, i, 3).prompt) for i in range(2000)}
    evaluation = [str(row.prompt) for row in evaluation_rows(STRAIGHT_LINE, 512)]
    assert len(set(evaluation)) == 512
    assert training.isdisjoint(evaluation)
    assert all(map(is_held_out, evaluation))
