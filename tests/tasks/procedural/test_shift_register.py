"""The task of long answers: golden texts, a strict reading, slips and checks, and the lengths."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.procedural.base import evaluation_rows, is_held_out, prompt_row
from tasks.procedural.shift_register import (
    CHECK,
    SHIFT_REGISTER,
    SKILL_CHECK,
    SKILL_SLIP,
    SLIP,
    AnswerCheck,
    RegisterProblem,
    check_answer,
    next_digit,
    read_prompt,
    score,
    solve,
    style_of,
    teach,
    write_prompt,
    write_run,
)
from tests.tasks.register_lines import read_lines

PROMPT = "003:3714="
PLAIN = "7;002:7147=4;001:1474=5;#5"
CHECKED = "7;002:7147=4?002:7147=4;001:1474=5;#5"
LIMIT = 2048
"""Tokens of the longest answer in the recipe, the end token included."""

problems = st.builds(
    lambda steps, state: RegisterProblem(steps, f"{state:04d}"),
    st.integers(1, 40),
    st.integers(1, 9999),
)
seeds = st.integers(0, 2**32)


def test_the_written_answer_of_the_example() -> None:
    problem = RegisterProblem(3, "3714")
    assert write_prompt(problem) == PROMPT
    assert write_run(problem, Random(0)) == PLAIN
    assert solve(PROMPT) == "5"
    assert check_answer(PROMPT, PLAIN) == AnswerCheck("right", steps=3, lines=3, checks=0)
    assert check_answer(PROMPT, CHECKED) == AnswerCheck("right", steps=3, lines=4, checks=1)
    assert [style_of(PLAIN), style_of(CHECKED)] == ["plain", "checked"]


@given(problems)
def test_a_prompt_reads_back(problem: RegisterProblem) -> None:
    assert read_prompt(write_prompt(problem)) == problem


@pytest.mark.parametrize(
    "text", ["", "3:3714=", "003:371=", "003:3714", "003:3714=7", "000:3714=", "003:0000="]
)
def test_other_texts_are_not_prompts(text: str) -> None:
    with pytest.raises(ValueError, match="not a register"):
        read_prompt(text)


@pytest.mark.parametrize(
    "response",
    [
        "",
        "#5",
        "7;#7",
        "7;001:1474=5;#5",  # a step left out
        "7;003:7147=4;001:1474=5;#5",  # the count stands still
        "7;002:7157=4;001:1474=5;#5",  # another state than the line before
        "7;002:7147=4;001:1474=5;#4",  # another result than the last line
        "7;002:7147=4;001:1474=5;",
        "7;002:7147=4;001:1474=5;#5#5",
        "7;002:7147=4;001:1474=5?#5",  # nothing accepted
        "7;002:7147=4?001:1474=5;#5",
        "7;002:7147=4;002:7147=4;001:1474=5;#5",  # written again, though accepted
        "7;002:7147=44;001:1474=5;#5",
        "7;000:3714=7;002:7147=4;001:1474=5;#5",
    ],
)
def test_nothing_is_right_that_leaves_the_form(response: str) -> None:
    assert check_answer(PROMPT, response).ending == "illegal"
    assert score(PROMPT, response)["score"] == 0.0


def test_a_wrong_digit_is_fatal_where_it_is_accepted_and_only_there() -> None:
    corrected = "7;002:7147=9?002:7147=4;001:1474=5;#5"
    assert check_answer(PROMPT, corrected) == AnswerCheck("right", steps=3, lines=4, checks=1)
    accepted = "7;002:7147=9;001:1479=0;#0"
    assert check_answer(PROMPT, accepted) == AnswerCheck("slip", steps=1, lines=2, checks=0)
    # Two wrongs that end in the right digit make no right.
    assert next_digit("1479") == "0"
    assert score(PROMPT, "7;002:7147=9;001:1479=5;#5") == {
        "score": 0.0,
        "legal": 1.0,
        "done": pytest.approx(1 / 3),
        "again": 0.0,
    }
    assert score(PROMPT, CHECKED) == {"score": 1.0, "legal": 1.0, "done": 1.0, "again": 0.25}


@given(problems, seeds)
def test_every_way_of_writing_without_slips_is_right(problem: RegisterProblem, seed: int) -> None:
    prompt = write_prompt(problem)
    written = write_run(problem, Random(seed), check=0.5)
    account = check_answer(prompt, written)
    assert account.ending == "right"
    assert account.steps == problem.steps
    assert account.lines == problem.steps + account.checks == len(read_lines(prompt, written))
    assert written.endswith(f"#{solve(prompt)}")
    assert style_of(written) == ("checked" if account.checks else "plain")


@given(problems, seeds, st.data())
def test_no_other_character_will_do(
    problem: RegisterProblem, seed: int, data: st.DataObject
) -> None:
    prompt = write_prompt(problem)
    written = write_run(problem, Random(seed), check=0.5)
    place = data.draw(st.integers(0, len(written) - 1))
    other = data.draw(st.sampled_from(SHIFT_REGISTER.characters.replace(written[place], "")))
    changed = written[:place] + other + written[place + 1 :]
    # A digit that is not accepted may be any; it says nothing.
    free = written[place + 1 : place + 2] == "?" and other.isdigit()
    assert (check_answer(prompt, changed).ending == "right") == free


@given(problems, seeds)
def test_slips_leave_the_form_and_are_fatal_where_a_wrong_line_is_accepted(
    problem: RegisterProblem, seed: int
) -> None:
    prompt = write_prompt(problem)
    written = write_run(problem, Random(seed), slip=0.2, check=0.5)
    fatal = any(line.wrong and line.accepted for line in read_lines(prompt, written))
    assert check_answer(prompt, written).ending == ("slip" if fatal else "right")


@given(problems, seeds)
def test_a_checked_step_is_accepted_when_two_writings_agree(
    problem: RegisterProblem, seed: int
) -> None:
    prompt = write_prompt(problem)
    text = prompt + write_run(problem, Random(seed), slip=0.3, check=1.0)
    lines = [text[i : i + 11] for i in range(0, len(text) - 2, 11)]
    for before, line in pairwise(lines):
        agree = before[:-1] == line[:-1]
        assert (line[-1] == ";") == (agree and before[-1] == "?")


@pytest.mark.parametrize(
    ("phase", "slip", "check"), [("skill", SKILL_SLIP, SKILL_CHECK), ("mixture", SLIP, CHECK)]
)
def test_lessons_slip_and_check_as_often_as_they_should(
    phase: str, slip: float, check: float
) -> None:
    prompts = [str(prompt_row(SHIFT_REGISTER, i, 0).prompt) for i in range(1500)]
    rng = Random(0)
    lessons = [(prompt, teach(prompt, rng, phase)) for prompt in prompts]  # type: ignore[arg-type]
    lines = [line for lesson in lessons for line in read_lines(*lesson)]
    assert sum(line.wrong for line in lines) / len(lines) == pytest.approx(slip, abs=0.01)
    first = [lesson[1][1] == "?" for lesson in lessons]
    assert sum(first) / len(first) == pytest.approx(check, abs=0.04)


def test_even_answers_of_forty_steps_are_right_now_and_then() -> None:
    rng = Random(0)
    lessons = [RegisterProblem(40, f"{rng.randint(1, 9999):04d}") for _ in range(1000)]
    endings = [
        check_answer(write_prompt(problem), write_run(problem, rng, slip=SLIP, check=CHECK)).ending
        for problem in lessons
    ]
    assert 0.05 <= endings.count("right") / 1000 <= 0.13


def test_golden_rows_stay_what_they_are() -> None:
    rows = [prompt_row(SHIFT_REGISTER, i, 0) for i in range(3)]
    assert [(row.prompt, row.answer, row.info) for row in rows] == [
        ("003:6887=", "9", {"terms": 3}),
        ("020:8412=", "5", {"terms": 20}),
        ("010:9938=", "0", {"terms": 10}),
    ]


def test_lengths_have_a_long_tail_and_fit_the_limit_of_the_recipe() -> None:
    rng = Random(0)
    rows = [prompt_row(SHIFT_REGISTER, i, 0) for i in range(4000)]
    lengths = [len(teach(str(row.prompt), rng, "mixture")) + 1 for row in rows]
    mean = sum(lengths) / len(lengths)
    assert 100 <= mean <= 250
    assert max(lengths) >= 8 * mean
    assert sum(length > LIMIT for length in lengths) <= 4
    assert max(lengths) >= 0.9 * LIMIT
    assert max(len(row.prompt) for row in rows) == 9


def test_training_and_evaluation_never_share_a_prompt() -> None:
    training = {str(prompt_row(SHIFT_REGISTER, i, 3).prompt) for i in range(3000)}
    evaluation = [str(row.prompt) for row in evaluation_rows(SHIFT_REGISTER, 1024)]
    assert len(set(evaluation)) == 1024
    assert training.isdisjoint(evaluation)
    assert all(map(is_held_out, evaluation))
