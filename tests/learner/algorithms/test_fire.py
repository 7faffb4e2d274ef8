"""Corrections of hot tokens: golden ratios, a slow twin, and what each does to the gradient."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.algorithms.fire import Correction, hot_streams
from learner.algorithms.policy_losses import clipped_surrogate
from learner.algorithms.ratios import behaviour_ratio
from tests.learner.algorithms.test_advantages import close, f64

Z = (5.0, 2.0, 0.0, -1.0)
MODES: tuple[Correction, ...] = ("ratio", "recompute")
FIRST = torch.tensor([True])


def pi() -> torch.Tensor:
    """softmax(z) at temperature 1, over all four tokens."""
    return f64(Z).softmax(0)


def q() -> torch.Tensor:
    """softmax(top-2 of z / 30), over tokens 0 and 1."""
    return (f64(Z[:2]) / 30).softmax(0)


def test_golden_ratios() -> None:
    """The policy's mass outside the two candidates cannot be reached: the mean ratio is below 1."""
    log_pi, log_q = pi()[:2].log(), q().log()
    hot = torch.ones(2, dtype=torch.bool)
    made, _ = hot_streams(torch.ones_like(log_q), log_q, log_pi, hot, correction="ratio", cap=10.0)
    close(made, [1.79871, 0.09897], atol=5e-6)
    close((q() * made).sum(), pi()[:2].sum().item(), atol=1e-12)
    close(pi()[:2].sum(), 0.99129, atol=1e-5)


def test_the_cap_cuts_the_weight() -> None:
    log_pi, log_q = pi()[:2].log(), q().log()
    hot = torch.ones(2, dtype=torch.bool)
    weight, _ = hot_streams(torch.ones_like(log_q), log_q, log_pi, hot, correction="ratio", cap=1.5)
    close(weight, [1.5, 0.09897], atol=5e-6)


def slow(
    weight: float, behaviour: float, start: float, hot: bool, mode: Correction, cap: float
) -> tuple[float, float]:
    """(w, log mu) of one token."""
    if not hot:
        return weight, behaviour
    if mode == "ratio":
        return weight * min(math.exp(start) / math.exp(behaviour), cap), start
    return weight, start


Tokens = list[tuple[float, float, float, bool]]
TOKENS: st.SearchStrategy[Tokens] = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        st.floats(-9, 0),
        st.floats(-9, 0),
        st.booleans(),
    ),
    min_size=1,
    max_size=20,
)


@given(tokens=TOKENS, mode=st.sampled_from(MODES), cap=st.sampled_from([1.0, 2.0, 10.0]))
def test_fast_is_slow(tokens: Tokens, mode: Correction, cap: float) -> None:
    weight, behaviour, start = (f64([token[i] for token in tokens]) for i in range(3))
    hot = torch.tensor([token[3] for token in tokens])
    made, anchor = hot_streams(weight, behaviour, start, hot, correction=mode, cap=cap)
    expected = [slow(*token, mode, cap) for token in tokens]
    close(made, [w for w, _ in expected], atol=1e-12)
    close(anchor, [logprob for _, logprob in expected], atol=0)
    assert torch.equal(made[~hot], weight[~hot])
    assert torch.equal(anchor[~hot], behaviour[~hot])
    assert not made[weight == 0].any()


@pytest.mark.parametrize("mode", MODES)
def test_what_is_not_finite_elsewhere_reaches_no_hot_token(mode: Correction) -> None:
    hot = torch.tensor([True, False])
    nan = f64([-1.0, math.nan])
    weight, _ = hot_streams(f64([1.0, 0.0]), nan, nan, hot, correction=mode, cap=2.0)
    assert weight.isfinite().all()


def gradient(mode: Correction, token: int, cap: float = 10.0) -> torch.Tensor:
    """Gradient of the loss with respect to z, on policy but for the hot token, advantage 1."""
    z = f64(Z).requires_grad_()
    new = z.log_softmax(0)[token : token + 1]
    log_q = q().log()[token : token + 1]
    weight, anchor = hot_streams(f64([1.0]), log_q, new.detach(), FIRST, correction=mode, cap=cap)
    ratio = behaviour_ratio(new, anchor, FIRST)
    loss = clipped_surrogate(ratio.log_ratio, f64([1.0]), clip_low=0.2, clip_high=0.28).loss
    (ratio.weight * weight * loss).sum().backward()
    assert z.grad is not None
    return z.grad


def test_the_ratio_gives_the_policy_gradient_within_reach() -> None:
    """sum_y q(y) (pi / q) grad = the gradient of what the candidates contribute under pi itself."""
    expected = torch.zeros(4, dtype=torch.float64)
    for token in range(2):
        expected += pi()[token] * gradient("recompute", token)
    found = sum(q()[token] * gradient("ratio", token) for token in range(2))
    assert isinstance(found, torch.Tensor)
    close(found, expected.tolist(), atol=1e-12)


def test_recompute_has_the_gradient_of_an_own_token() -> None:
    onehot = torch.eye(4, dtype=torch.float64)[1]
    close(gradient("recompute", 1), (pi() - onehot).tolist(), atol=1e-12)
