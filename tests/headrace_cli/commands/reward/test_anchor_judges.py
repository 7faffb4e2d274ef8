"""The best of some answers by a judge of pairs."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from headrace_cli.commands.reward.anchors import best_of

ANSWERS = st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=12)


def by_order(asked: list[tuple[str, str]]) -> Callable[[str, str], float]:
    """A judge for whom the last in the alphabet is the best, and who is never sure."""

    def beats(first: str, second: str) -> float:
        asked.append((first, second))
        return 0.9 if first > second else 0.1

    return beats


@given(answers=ANSWERS)
def test_the_best_of_an_order_wins_however_they_stand(answers: list[str]) -> None:
    asked: list[tuple[str, str]] = []
    best = best_of(answers, by_order(asked))
    assert answers[best.place] == max(answers)
    assert best.place == answers.index(max(answers))
    assert len(asked) <= max(2 * len(answers) - 3, 0)
    assert len({frozenset(pair) for pair in asked}) == len(asked)
    others = len(answers) - 1
    equal = answers.count(max(answers)) - 1
    if others:
        expected = (0.5 * equal + 0.9 * (others - equal)) / others
        assert abs(best.score - expected) < 1e-9


@given(answers=ANSWERS, data=st.data())
def test_more_answers_never_make_it_worse(answers: list[str], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(answers)))
    few, all_of_them = (best_of(some, by_order([])) for some in (answers[:count], answers))
    assert answers[all_of_them.place] >= answers[few.place]


def test_one_answer_is_the_best_of_itself() -> None:
    assert best_of(["a"], by_order([])) == (0, 0.5)
    assert best_of(["a", "a"], by_order([])) == (0, 0.5)
