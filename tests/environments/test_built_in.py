"""The environments that come with Headrace, by hand."""

import asyncio
import sys
from collections import Counter

import pytest

from environments.built_in import Calculator, Guess, Pag, command
from headrace.protocol.messages.environments import PolicyTurn, Step


def said(step: Step) -> str:
    return "".join(message.content for message in step.messages)


def turn(text: str) -> PolicyTurn:
    return PolicyTurn(text, len(text))


def test_a_calculator_calculates_and_judges() -> None:
    made = Calculator()
    made.reset({"answer": "4042"}, 0)
    assert said(made.step(turn("[47*86]"))) == ">4042>"
    assert said(made.step(turn("[1*1]"))) == ">1>"
    for text, reward in (("4042", 1.0), ("4043", 0.0), ("[47*86", 0.0), ("", 0.0)):
        step = made.step(turn(text))
        assert (step.reward, step.done, step.success) == (reward, True, reward == 1.0)
    blank = Calculator(blank=True)
    blank.reset({"answer": "4042"}, 0)
    assert said(blank.step(turn("[47*86]"))) == ">>"


def play(seed: int, letters: str = "abcdefg", *, fresh: bool = False) -> tuple[float, int]:
    """Bisection: what it earns, and in how many turns."""
    made = Guess(letters=letters, fresh=fresh)
    made.reset({}, seed)
    low, high = 0, len(letters) - 1
    for number in range(1, 9):
        middle = (low + high) // 2
        step = made.step(turn(letters[middle]))
        if step.done:
            return step.reward, number
        low, high = (low, middle - 1) if said(step) == "<" else (middle + 1, high)
        low, high = min(low, len(letters) - 1), max(high, 0)
    raise AssertionError("it never ends")


def test_bisection_finds_every_letter_and_none_that_is_drawn_anew() -> None:
    found = [play(seed) for seed in range(200)]
    assert {reward for reward, _ in found} == {1.0}
    assert Counter(turns for _, turns in found).keys() == {1, 2, 3}
    assert sum(play(seed, fresh=True)[0] for seed in range(200)) < 100


@pytest.mark.parametrize("text", ["", "ab", "z", "<"])
def test_what_is_no_letter_loses(text: str) -> None:
    made = Guess()
    made.reset({}, 1)
    step = made.step(turn(text))
    assert (step.reward, step.done, step.success) == (0.0, True, False)


@pytest.mark.parametrize(
    ("turns", "rewards", "success"),
    [
        ("4+", [1, 1], True),
        ("4-4", [1, 0, 1], True),
        ("4-7", [1, 0, -1], False),
        ("7-4", [0, 1, 2], True),
        ("7-8", [0, 1, 0], False),
        ("7+", [0, 0], False),
        ("7?", [0, 0], False),
        ("4?", [1, 0], True),
    ],
)
def test_turns_of_pag_earn_what_the_paper_says(
    turns: str, rewards: list[float], success: bool
) -> None:
    """Attempt, verdict, revision; what is no verdict earns nothing and asks for no revision."""
    made = Pag()
    assert made.reset({"answer": "4"}, 0) == Step()
    steps = [made.step(turn(each)) for each in turns]
    assert [step.reward for step in steps] == rewards
    assert [step.done for step in steps] == [False] * (len(turns) - 1) + [True]
    assert [said(step) for step in steps] == [*"VR"[: len(turns) - 1], ""]
    assert steps[-1].success is success


@pytest.mark.parametrize(("turns", "won"), [("4", True), ("7", False), ("4-", True), ("7-", False)])
def test_a_cut_episode_of_pag_is_won_by_its_last_whole_answer(turns: str, won: bool) -> None:
    """A true verdict on a wrong attempt earns 1, as a right answer does, and makes nothing right:
    where the revision is cut off, the sum of the rewards says nothing of the answer."""
    made = Pag()
    made.reset({"answer": "4"}, 0)
    steps = [made.step(turn(each)) for each in turns]
    assert sum(step.reward for step in steps) == float(turns in ("4", "4-", "7-"))
    assert (steps[-1].done, steps[-1].success) == (False, won)


def test_given_attempts_of_pag_are_judged_alike() -> None:
    given = []
    for seed in range(500):
        made = Pag(given=0.4)
        begun = made.reset({"answer": "4"}, seed)
        if opening := said(begun):
            given.append(opening[0])
            assert (opening[1], begun.act) == ("V", 1)
            step = made.step(turn("+"))
            assert step.reward == float(opening[0] == "4")
            recall = "right_recall" if opening[0] == "4" else "wrong_recall"
            assert step.metrics == {"revised": 0.0, recall: step.reward}
    assert 150 < len(given) < 250
    assert len(set(given)) == 10
    always = Pag(always=True)
    always.reset({"answer": "4"}, 0)
    always.step(turn("4"))
    step = always.step(turn("+"))
    assert (step.reward, said(step), step.done) == (1.0, "R", False)


@pytest.mark.parametrize("text", ["pass", "print(1); print()", "print('done')"])
def test_a_program_that_prints_no_result_says_so(text: str) -> None:
    played = command({}, base_url="", api_key="", run=[sys.executable, "-c", text])
    with pytest.raises(RuntimeError, match="printed is no JSON"):
        asyncio.run(played)
