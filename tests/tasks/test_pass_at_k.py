"""pass@k: golden numbers, and the definition it estimates."""

from itertools import combinations

import pytest

from tasks.pass_at_k import pass_at_k


@pytest.mark.parametrize(
    ("samples", "correct", "k", "expected"),
    [(10, 1, 1, 0.1), (10, 1, 5, 0.5), (10, 3, 5, 0.916667), (4, 2, 3, 1.0), (8, 0, 8, 0.0)],
)
def test_golden(samples: int, correct: int, k: int, expected: float) -> None:
    assert pass_at_k(samples, correct, k) == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("correct", range(7))
@pytest.mark.parametrize("k", range(1, 7))
def test_it_is_the_share_of_choices_of_k_with_a_right_one(correct: int, k: int) -> None:
    answers = [True] * correct + [False] * (6 - correct)
    choices = list(combinations(answers, k))
    assert pass_at_k(6, correct, k) == pytest.approx(sum(map(any, choices)) / len(choices))


@pytest.mark.parametrize(("samples", "correct", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 0), (4, 1, 5)])
def test_what_cannot_be_estimated_is_an_error(samples: int, correct: int, k: int) -> None:
    with pytest.raises(ValueError, match="no pass@"):
        pass_at_k(samples, correct, k)
