"""The least-squares head: numpy's own solution, its penalty, its memory, ranks."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from learner.algorithms.least_squares import PENALTIES, LeastSquaresHead

CPU = torch.device("cpu")


def answers(seed: int, *, noise: float, tokens: int = 600) -> tuple[Tensor, Tensor, Tensor]:
    """Features on scales of their own, one of them constant; returns; answers of ten tokens."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(tokens, 5)) * [1.0, 100.0, 0.01, 1.0, 0.0] + [0, 5, 0, -3, 2]
    r = 0.5 + x @ [0.3, -0.004, 20.0, 0.0, 0.0] + noise * draw.normal(size=tokens)
    return torch.tensor(x), torch.tensor(r), torch.arange(tokens) // 10


def fitted(*batches: tuple[Tensor, Tensor, Tensor], keep: float = 1.0) -> LeastSquaresHead:
    head = LeastSquaresHead(batches[0][0].shape[1], CPU)
    for batch in batches:
        head.refit(head.products(*batch), keep=keep)
    return head


def test_it_is_the_ridge_solution_of_all_tokens() -> None:
    """In the textbook's notation, on standardised features, over two updates."""
    parts = answers(1, noise=0.3), answers(2, noise=0.3)
    head = fitted(*parts)
    x, r = (np.concatenate([p[i].numpy() for p in parts]) for i in (0, 1))
    scale = x[:, :4].std(axis=0)
    z = (x[:, :4] - x[:, :4].mean(axis=0)) / scale
    penalty = head.penalty * len(r) * np.eye(4)
    beta = np.linalg.solve(z.T @ z + penalty, z.T @ (r - r.mean()))
    assert head.penalty == PENALTIES[0]
    np.testing.assert_allclose(head.weights[:4].numpy(), beta / scale, rtol=1e-6)
    assert head.weights[4] == 0
    np.testing.assert_allclose(
        head.values(torch.tensor(x)).numpy(), r.mean() + z @ beta, rtol=1e-6, atol=1e-9
    )


def test_where_nothing_can_be_predicted_it_is_the_mean_return() -> None:
    x, _, numbers = answers(1, noise=0.0)
    draw = np.random.default_rng(3)
    r = torch.tensor(np.repeat(draw.random(60) < 0.4, 10).astype(float))
    head = fitted((x, r, numbers))
    assert head.penalty == math.inf
    assert head.values(x).numpy() == pytest.approx(float(r.mean()))


def test_a_fold_holds_all_answers_of_a_group() -> None:
    """Answers of the prompts 0 to 3 have the feature 0, 1, 2, 3 and return 0, 1, 0, 1: a line fits
    them better than their mean, and tells less of a prompt that it has not seen."""
    prompts = torch.arange(40) // 10
    x, r = prompts.double()[:, None], (prompts % 2).double()
    assert fitted((x, r, prompts)).penalty == math.inf
    assert math.isfinite(fitted((x, r, torch.arange(40))).penalty)


def test_one_answer_alone_gives_its_return() -> None:
    x, r, numbers = (part[:10] for part in answers(1, noise=0.0))
    assert fitted((x, r, numbers)).values(x).numpy() == pytest.approx(float(r.mean()))
    assert fitted((x[:0], r[:0], numbers[:0])).values(x).tolist() == [0.0] * 10


def test_earlier_answers_fade() -> None:
    """With `keep` 0 the last batch alone counts, with one half the earlier one half as much."""
    first, last = answers(1, noise=0.1), answers(2, noise=0.1)
    torch.testing.assert_close(fitted(first, last, keep=0.0).weights, fitted(last).weights)
    assert not torch.allclose(fitted(first, last).weights, fitted(last).weights)
    half = fitted(first, last, keep=0.5).weights
    torch.testing.assert_close(half, fitted(last, last, first).weights, rtol=1e-6, atol=1e-9)


def test_sums_of_ranks_are_those_of_one() -> None:
    x, r, numbers = answers(1, noise=0.3)
    head, whole = LeastSquaresHead(5, CPU), fitted((x, r, numbers))
    halves = [head.products(x[s], r[s], numbers[s]) for s in (slice(0, 250), slice(250, None))]
    head.refit(halves[0] + halves[1], keep=1.0)
    torch.testing.assert_close(head.weights, whole.weights, rtol=1e-6, atol=1e-9)
    again = LeastSquaresHead(5, CPU)
    again.load_state(head.state())
    assert torch.equal(again.values(x), head.values(x))
