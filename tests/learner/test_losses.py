"""Policy and value losses, penalties and aggregation: numbers, gradients, splits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learner.algorithms.aggregation import (
    fixed_length_weights,
    sample_mean_weights,
    token_mean_weights,
    weighted_sum,
)
from learner.algorithms.penalties import token_entropy
from learner.algorithms.policy_losses import (
    clipped_squared_error,
    clipped_surrogate,
    reinforce,
    squared_error,
)
from tests.learner import reference
from tests.learner.algorithms.test_advantages import close, f64

# Away from the kinks, where the one-sided derivatives differ and none is the gradient.
ratios = st.floats(0.05, 20.0).filter(
    lambda r: all(abs(r - kink) > 1e-6 for kink in (0.8, 1.28, 10.0))
)
advantage = st.floats(-3.0, 3.0).filter(lambda a: abs(a) > 1e-3)


# ---- policy losses

G9_RATIOS = [1.0, 1.5, 1.0, 0.5, 1.1, 1.4, 0.9, 1.0]
G9_ADVANTAGES = [1.0] * 2 + [-0.5] * 6
G9_SAMPLES = torch.tensor([0, 0, 1, 1, 1, 1, 1, 1])


def by_samples(mask: Tensor, ids: Tensor, samples: int) -> Tensor:
    """Weights where each sample's tokens lie in one micro-batch; at most ten samples."""
    own = torch.bincount(ids[mask], minlength=10)
    return sample_mean_weights(mask, ids, global_samples=samples, sample_tokens=own)


def test_token_and_sample_mean_of_the_clipped_loss_differ_in_sign() -> None:
    made = clipped_surrogate(f64(G9_RATIOS).log(), f64(G9_ADVANTAGES), clip_low=0.2, clip_high=0.28)
    close(-made.loss, [1, 1.28, -0.5, -0.4, -0.55, -0.7, -0.45, -0.5], atol=1e-12)
    assert made.clipped_high.tolist() == [False, True] + [False] * 6
    assert made.clipped_low.tolist() == [False] * 3 + [True] + [False] * 4
    assert not made.clipped_dual.any()
    mask = torch.ones(8, dtype=torch.bool)
    by_token = weighted_sum(made.loss, token_mean_weights(mask, global_tokens=8))
    by_sample = weighted_sum(made.loss, by_samples(mask, G9_SAMPLES, 2))
    assert by_token.item() == pytest.approx(0.1025, abs=1e-12)
    assert by_sample.item() == pytest.approx(-0.3116666667, abs=1e-10)
    samples = [made.loss[:2].tolist(), made.loss[2:].tolist()]
    assert by_token.item() == pytest.approx(reference.token_mean(samples), abs=1e-12)
    assert by_sample.item() == pytest.approx(reference.sample_mean(samples), abs=1e-12)


def test_symmetric_clip() -> None:
    made = clipped_surrogate(f64([1.5]).log(), f64([1.0]), clip_low=0.2, clip_high=0.2)
    close(-made.loss, [1.2], atol=1e-12)


def test_dual_clip_bounds_bad_tokens_only() -> None:
    made = clipped_surrogate(
        f64([15.0, 1.5, 0.5, 15.0]).log(),
        f64([-1.0, -1.0, -1.0, 1.0]),
        clip_low=0.2,
        clip_high=0.28,
        dual_clip=10.0,
    )
    close(made.loss, [10.0, 1.5, 0.8, -1.28], atol=1e-12)
    assert made.clipped_dual.tolist() == [True, False, False, False]
    assert made.clipped_low.tolist() == [False, False, True, False]
    assert made.clipped_high.tolist() == [False, False, False, True]
    for bound in (0.5, 1.0):
        with pytest.raises(ValueError, match="dual_clip"):
            clipped_surrogate(f64([0.0]), f64([1.0]), clip_low=0.2, clip_high=0.2, dual_clip=bound)
    made = clipped_surrogate(f64([1.0]), f64([-1.0]), clip_low=0.2, clip_high=0.2, dual_clip=1.5)
    assert made.loss.tolist() == [1.5]


def test_a_clip_is_reported_where_it_binds_and_not_at_its_border() -> None:
    """Advantages of both signs and 0; the borders are the ratios themselves, to the bit."""
    log_r = f64([math.log(0.5), math.log(1.5), math.log(10.0)])
    low, high, dual = log_r.exp().tolist()
    beyond = f64([-3.0, 3.0])
    every = torch.cat([log_r, beyond])

    def made(a: float) -> tuple[list[bool], list[bool], list[bool]]:
        found = clipped_surrogate(
            every, torch.full_like(every, a),
            clip_low=1.0 - low, clip_high=high - 1.0, dual_clip=dual,
        )  # fmt: skip
        return (
            found.clipped_low.tolist(),
            found.clipped_high.tolist(),
            found.clipped_dual.tolist(),
        )

    never = [False] * 5
    assert made(0.0) == (never, never, never)
    assert made(0.5) == (never, [False, False, True, False, True], never)
    assert made(-0.5) == ([False] * 3 + [True, False], never, [False] * 4 + [True])


@given(
    st.lists(st.tuples(ratios, advantage), min_size=1, max_size=12),
    st.sampled_from([None, 10.0]),
)
@settings(max_examples=60, deadline=None)
def test_clipped_surrogate_has_the_twins_value_and_gradient(
    tokens: list[tuple[float, float]], dual: float | None
) -> None:
    log_r = f64([math.log(r) for r, _ in tokens]).requires_grad_()
    a = f64([x for _, x in tokens])
    made = clipped_surrogate(log_r, a, clip_low=0.2, clip_high=0.28, dual_clip=dual)
    slow = log_r.detach().clone().requires_grad_()
    twin = torch.stack(
        [
            reference.clipped_surrogate(x, y.item(), 0.2, 0.28, dual) + 0 * x
            for x, y in zip(slow, a, strict=True)
        ]
    )
    torch.testing.assert_close(made.loss, twin, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        _gradient(made.loss, log_r), _gradient(twin, slow), rtol=0, atol=1e-12
    )
    held = made.clipped_low | made.clipped_high | made.clipped_dual
    assert (_gradient(made.loss, log_r) == 0).tolist() == held.tolist()


def test_on_policy_the_clipped_gradient_is_reinforce() -> None:
    new = f64([-1.0, -2.0, -0.3]).requires_grad_()
    old, a = new.detach(), f64([0.5, -1.0, 2.0])
    clipped = clipped_surrogate(new - old, a, clip_low=0.2, clip_high=0.28, dual_clip=10.0).loss
    plain = reinforce(new - old, a)
    assert torch.equal(_gradient(clipped, new), -a)
    assert torch.equal(_gradient(plain.loss, new), -a)
    assert plain.loss.tolist() == [0.0, 0.0, 0.0]
    assert not (plain.clipped_low | plain.clipped_high | plain.clipped_dual).any()


# ---- value losses


@pytest.mark.parametrize(
    ("value", "target", "half"), [(0.9, 1.0, 0.02), (-0.6, -1.0, 0.245), (0.5, 1.0, 0.125)]
)
def test_value_clip(value: float, target: float, half: float) -> None:
    made = clipped_squared_error(
        f64([value]), f64([0.2]), f64([target]), clip_low=0.5, clip_high=0.6
    )
    close(made, [half], atol=1e-12)


def _has_a_gradient(case: tuple[float, float, float]) -> bool:
    """Away from the kinks of value, old value and target: the clip's ends, and where the clipped
    and the plain error are as large, so that the larger of them has two slopes."""
    value, old, target = case
    clipped = min(max(value, old - 0.5), old + 0.6)
    at_end = min(abs(value - (old - 0.5)), abs(value - (old + 0.6))) < 1e-6
    tied = value != clipped and abs(abs(value - target) - abs(clipped - target)) < 1e-6
    return not (at_end or tied)


@given(
    st.lists(
        st.tuples(st.floats(-2, 2), st.floats(-1, 1), st.sampled_from([-1.0, 0.0, 1.0])).filter(
            _has_a_gradient
        ),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=60, deadline=None)
def test_value_losses_have_the_twins_value_and_gradient(
    tokens: list[tuple[float, float, float]],
) -> None:
    v = f64([x for x, _, _ in tokens]).requires_grad_()
    old, r = f64([x for _, x, _ in tokens]), f64([x for _, _, x in tokens])
    made = clipped_squared_error(v, old, r, clip_low=0.5, clip_high=0.6)
    slow = v.detach().clone().requires_grad_()
    twin = torch.stack(
        [
            reference.clipped_squared_error(x, y, z, 0.5, 0.6) + 0 * x
            for x, (_, y, z) in zip(slow, tokens, strict=True)
        ]
    )
    torch.testing.assert_close(made, twin, rtol=0, atol=1e-12)
    torch.testing.assert_close(_gradient(made, v), _gradient(twin, slow), rtol=0, atol=1e-12)
    plain = squared_error(v, r)
    torch.testing.assert_close(_gradient(plain, v), (v - r).detach(), rtol=0, atol=1e-12)


# ---- penalties


def test_likelihood_of_right_answers() -> None:
    new = f64([-0.1, -0.2, -0.3, -0.4, -0.5, -1.0])
    right = torch.tensor([True, True, False, False, False, True])
    weights = token_mean_weights(right, global_tokens=int(right.sum()))
    nll = weighted_sum(-new, weights)
    assert nll.item() == pytest.approx(0.4333333333, abs=1e-10)
    assert 0.1 * nll.item() == pytest.approx(0.0433333333, abs=1e-10)


def test_without_a_right_answer_there_is_no_likelihood_loss() -> None:
    weights = token_mean_weights(torch.zeros(3, dtype=torch.bool), global_tokens=0)
    assert weights.dtype == torch.float64
    assert weighted_sum(f64([1.0, 1.0, 1.0]), weights).item() == 0.0


def test_entropy() -> None:
    logits = f64([[0.0, 0.0, 0.0, 0.0], [2.0, 1.0, -1.0, float("-inf")]])
    made = token_entropy(logits.log_softmax(-1))
    close(made, [reference.entropy(torch.softmax(row, -1).tolist()) for row in logits], atol=1e-12)
    assert made[0].item() == pytest.approx(math.log(4), abs=1e-12)
    assert token_entropy(logits[1].log_softmax(-1)).item() == made[1].item()
    assert torch.equal(token_entropy(logits[None].log_softmax(-1)), made[None])
    free = f64([[0.3, -1.0, 0.7]]).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: token_entropy(z.log_softmax(-1)), (free,))
    forbidden = f64([[0.3, -1.0, float("-inf")]]).requires_grad_()
    made = token_entropy(forbidden.log_softmax(-1))
    assert torch.isfinite(_gradient(made, forbidden)).all()


@pytest.mark.parametrize("asked", [False, True])
def test_entropy_keeps_its_bits_where_nothing_is_forbidden(asked: bool) -> None:
    """Value and gradient are those of the plain formula."""
    torch.manual_seed(0)
    pair = [(10 * torch.randn(50, 200)).requires_grad_(asked)]
    pair.append(pair[0].detach().clone().requires_grad_(asked))
    log_p = pair[1].log_softmax(-1)
    made, plain = token_entropy(pair[0].log_softmax(-1)), -(log_p.exp() * log_p).sum(-1)
    assert torch.equal(made, plain)
    if asked:
        assert torch.equal(_gradient(made, pair[0]), _gradient(plain, pair[1]))


# ---- aggregation


def test_fixed_length_weights() -> None:
    mask = torch.tensor([True, True, False, True])
    weights = fixed_length_weights(mask, global_samples=2, length=10)
    close(weights, [0.05, 0.05, 0.0, 0.05], atol=1e-15)
    close(fixed_length_weights(mask, global_samples=2, length=1), [0.5, 0.5, 0.0, 0.5], atol=0.0)


def test_an_empty_batch_has_no_loss() -> None:
    mask = torch.zeros(3, dtype=torch.bool)
    ids = torch.tensor([0, 0, 1])
    nan = f64([float("nan")] * 3)
    for weights in (
        token_mean_weights(mask, global_tokens=0),
        by_samples(mask, ids, 0),
        by_samples(mask, ids, 4),
        fixed_length_weights(mask, global_samples=0, length=5),
        by_samples(mask[:0], ids[:0], 4),
    ):
        assert weighted_sum(nan[: weights.numel()], weights).item() == 0.0


@given(
    st.lists(
        st.lists(st.tuples(st.floats(-3, 3), st.booleans()), min_size=1, max_size=8),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 6),
)
@settings(max_examples=60, deadline=None)
def test_how_the_batch_is_split_changes_nothing(
    samples: list[list[tuple[float, bool]]], cut: int
) -> None:
    """Micro-batches take whole samples; their weighted sums add up to the loss of the batch."""
    kept = [[x for x, m in sample if m] for sample in samples]
    kept = [sample for sample in kept if sample]
    tokens, count = sum(len(sample) for sample in kept), len(kept)
    parts = [samples[:cut], samples[cut:]]
    by_token, by_sample, by_length = 0.0, 0.0, 0.0
    for part in parts:
        loss = f64([x for sample in part for x, _ in sample])
        mask = torch.tensor([m for sample in part for _, m in sample], dtype=torch.bool)
        ids = torch.tensor([i for i, s in enumerate(part) for _ in s], dtype=torch.int64)
        by_token += weighted_sum(loss, token_mean_weights(mask, global_tokens=tokens)).item()
        by_sample += weighted_sum(loss, by_samples(mask, ids, count)).item()
        by_length += weighted_sum(
            loss, fixed_length_weights(mask, global_samples=count, length=8)
        ).item()
    if not kept:
        assert by_token == by_sample == by_length == 0.0
        return
    assert by_token == pytest.approx(reference.token_mean(kept), abs=1e-12)
    assert by_sample == pytest.approx(reference.sample_mean(kept), abs=1e-12)
    assert by_length == pytest.approx(sum(map(sum, kept)) / (8 * count), abs=1e-12)


def test_one_sample_in_two_micro_batches() -> None:
    lengths = torch.tensor([3])
    whole = f64([1.0, 2.0, 6.0])
    ids = torch.zeros(3, dtype=torch.int64)
    total = sum(
        weighted_sum(
            whole[part],
            sample_mean_weights(
                torch.ones_like(ids[part], dtype=torch.bool),
                ids[part],
                global_samples=1,
                sample_tokens=lengths,
            ),
        ).item()
        for part in (slice(0, 2), slice(2, 3))
    )
    assert total == pytest.approx(3.0, abs=1e-12)


def _gradient(loss: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(loss.sum(), x, retain_graph=True)[0]
