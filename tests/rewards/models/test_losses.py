"""The losses against worked examples: Pairwise-RL's reward and consistency, errors of lines."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rewards.models.scorer import pair_score
from rewards.models.training.objectives import (
    bradley_terry,
    consistency,
    line_error,
    pairwise,
    probability_of_yes,
)

WIDE = torch.float64
PROBABILITY = st.floats(0.01, 0.99)


def logs(*p: float) -> torch.Tensor:
    return torch.tensor([p], dtype=WIDE).log()


def test_two_orders_make_one_reward() -> None:
    yes, no = torch.tensor([1.2, -0.5], dtype=WIDE), torch.tensor([0.4, 0.1], dtype=WIDE)
    front, back = probability_of_yes(yes, no).tolist()
    assert front == pytest.approx(0.689974, abs=1e-6)
    assert back == pytest.approx(0.354344, abs=1e-6)
    score = pair_score(front, back)
    assert score.r == pytest.approx(0.667815, abs=1e-6)
    assert score.p_front == pytest.approx(0.689974, abs=1e-6)
    assert score.p_back == pytest.approx(0.645656, abs=1e-6)


def test_the_loss_of_a_pair_in_both_orders() -> None:
    assert pair_score(0.7, 0.5).r == pytest.approx(0.60)
    assert consistency(torch.tensor(0.7), torch.tensor(0.5)).item() == pytest.approx(0.04)
    log_yes, log_no = logs(0.7, 0.5), logs(0.3, 0.5)
    is_yes = torch.tensor([[True, False]])
    entropy = pairwise(log_yes, log_no, is_yes, weight=0.0).item()
    assert entropy == pytest.approx((0.356675 + 0.693147) / 2, abs=1e-6)
    assert entropy == pytest.approx(0.524911, abs=1e-6)
    assert pairwise(log_yes, log_no, is_yes, weight=0.1).item() == pytest.approx(0.528911, abs=1e-6)


def test_a_saturated_model_has_little_slope() -> None:
    margins = torch.tensor([0.0, 2.0, 4.0, 6.0], dtype=WIDE, requires_grad=True)
    p = probability_of_yes(margins, torch.zeros_like(margins))
    p.sum().backward()
    assert margins.grad is not None
    torch.testing.assert_close(
        p.detach(), torch.tensor([0.5, 0.8808, 0.9820, 0.9975], dtype=WIDE), atol=5e-5, rtol=0
    )
    torch.testing.assert_close(
        margins.grad, torch.tensor([0.25, 0.1050, 0.0177, 0.0025], dtype=WIDE), atol=5e-5, rtol=0
    )


def test_equal_answers_are_worth_half_whatever_the_bias() -> None:
    assert pair_score(0.9, 0.9).r == pytest.approx(0.5)
    assert consistency(torch.tensor(0.9), torch.tensor(0.9)).item() == pytest.approx(0.64)


@given(front=PROBABILITY, back=PROBABILITY)
def test_a_pair_and_its_mirror_share_one(front: float, back: float) -> None:
    """What beats is worth as much more than half as what is beaten is worth less."""
    assert pair_score(front, back).r + pair_score(back, front).r == pytest.approx(1.0)


def test_one_order_alone_has_nothing_to_contradict() -> None:
    found = pairwise(logs(0.7), logs(0.3), torch.tensor([[True]]), weight=5.0)
    assert found.item() == pytest.approx(-math.log(0.7))


def test_words_beside_yes_and_no_cost() -> None:
    """Training scores the word against the whole vocabulary, not against the other word alone."""
    sure = pairwise(logs(0.7), logs(0.3), torch.tensor([[True]]), weight=0.0)
    shared = pairwise(logs(0.35), logs(0.15), torch.tensor([[True]]), weight=0.0)
    assert shared.item() == pytest.approx(sure.item() + math.log(2))
    assert probability_of_yes(logs(0.35), logs(0.15)).item() == pytest.approx(0.7)


def test_line_errors() -> None:
    labels = torch.tensor([1.0, 1, 1, -1, -1, -1, -1, -1])
    scores = torch.tensor([0.9, 0.8, 0.4, 0.1, -0.5, -0.9, -1, -1])
    assert line_error(scores, labels).mean().item() == pytest.approx(0.235, abs=1e-6)


def test_bradley_terry_with_and_without_a_margin() -> None:
    chosen, rejected = torch.tensor([2.0, 0.0, 2.0]), torch.tensor([1.0, 0.0, 1.0])
    found = bradley_terry(chosen, rejected, torch.tensor([0.0, 0.0, 1.0]))
    expected = [-math.log(1 / (1 + math.exp(-1))), math.log(2), math.log(2)]
    torch.testing.assert_close(found, torch.tensor(expected))
