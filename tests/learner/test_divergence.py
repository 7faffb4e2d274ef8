"""Estimates of the divergence from the reference: values, bounds, and exact expected gradients.

A single choice among 16 tokens can be enumerated, so what an estimator's gradient is on average is
known to the last digit and can be held against the gradient of the divergence itself.
"""

import math
from typing import NamedTuple, get_args

import pytest
import torch
from torch import Tensor

from headrace.config.sections.algorithm import KlConfig
from learner.algorithms.penalties import KlEstimator, kl_divergence
from learner.models.forward import NEVER
from tests.learner import reference
from tests.learner.algorithms.test_advantages import close, f64

ESTIMATORS: tuple[KlEstimator, ...] = get_args(KlEstimator)
TOKENS, DRAWS = 16, 200


def gradient(y: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(y.sum(), x, retain_graph=True)[0]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_value_and_gradient_are_the_twins(estimator: KlEstimator) -> None:
    new = f64([-1.0, -0.2, -3.0]).requires_grad_()
    ref = f64([-1.5, -0.1, -3.0])
    made = kl_divergence(new, ref, estimator=estimator)
    slow = new.detach().clone().requires_grad_()
    twin = torch.stack(
        [reference.kl(x, y, estimator) for x, y in zip(slow, ref.tolist(), strict=True)]
    )
    torch.testing.assert_close(made, twin, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient(made, new), gradient(twin, slow), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("estimator", "values", "gradients"),
    [
        ("k1", [0.5, -1.0, 25 - 5.0, -20.0], [1, 1, 1, 1]),
        ("k1+", [0.5, -1.0, 20.0, -20.0], [0.5, -1, 20, -20]),
        ("k2", [0.125, 0.5, 200.0, 200.0], [0.5, -1, 20, -20]),
        ("k3", [math.exp(-0.5) - 0.5, math.e - 2, 10, 10], [1 - math.exp(-0.5), 1 - math.e, 0, 0]),
        ("k3+", [math.exp(-0.5) - 0.5, math.e - 2, 10, 10], [0.5, -1, 20, -20]),
    ],
)
def test_golden_numbers_and_bounds(
    estimator: KlEstimator, values: list[float], gradients: list[float]
) -> None:
    """log pi_new - log pi_ref of 0.5, -1, 25 and -25; the reference gets no gradient."""
    new = f64([-1.0, -2.0, -1.0, -26.0]).requires_grad_()
    ref = f64([-1.5, -1.0, -26.0, -1.0]).requires_grad_()
    made = kl_divergence(new, ref, estimator=estimator)
    close(made, values, atol=1e-12)
    close(gradient(made, new), gradients, atol=1e-12)
    torch.autograd.backward(made.sum())
    assert ref.grad is None


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_token_that_the_reference_never_samples_is_at_the_bound(estimator: KlEstimator) -> None:
    """Its logprob is so far away that float32 does not know 20 beside it."""
    new = torch.tensor([-1.0], requires_grad=True)
    never, bound = (
        kl_divergence(new, torch.tensor([x]), estimator=estimator) for x in (NEVER, -21.0)
    )
    assert torch.equal(never, bound)
    assert torch.equal(gradient(never, new), gradient(bound, new))


@pytest.mark.parametrize("estimator", ["k1", "k1+", "k3", "k3+"])
def test_unbiased_estimators_average_to_the_divergence(estimator: KlEstimator) -> None:
    p, q = f64([0.5, 0.3, 0.2]), f64([0.2, 0.2, 0.6])
    exact = (p * (p / q).log()).sum().item()
    mean = (p * kl_divergence(p.log(), q.log(), estimator=estimator)).sum().item()
    assert mean == pytest.approx(exact, abs=1e-12)


class Choice(NamedTuple):
    """One choice: the policy's logits with gradient, and both distributions' logarithms."""

    logits: Tensor
    new: Tensor
    ref: Tensor

    @property
    def exact(self) -> Tensor:
        """The gradient of KL(pi_new || pi_ref) = sum p (log p - log q) itself."""
        return gradient(self.new.exp() * (self.new - self.ref), self.logits)


def choice(seed: int, distance: float) -> Choice:
    """Normal logits of the reference, and the policy's a normal step of that size away."""
    rng = torch.Generator().manual_seed(seed)
    ref, step = torch.randn(2, TOKENS, generator=rng, dtype=torch.float64)
    logits = (ref + distance * step).requires_grad_()
    return Choice(logits, logits.log_softmax(-1), ref.log_softmax(-1))


def of_loss(c: Choice, estimator: KlEstimator) -> Tensor:
    """Expected gradient of the estimate as a loss: every token as often as it is sampled."""
    p = c.new.exp().detach()
    return gradient(p * kl_divergence(c.new, c.ref, estimator=estimator), c.logits)


def of_reward(c: Choice, estimator: KlEstimator) -> Tensor:
    """Expected policy gradient, sign changed, where each token earns minus its estimate."""
    p, earned = c.new.exp().detach(), kl_divergence(c.new, c.ref, estimator=estimator).detach()
    return gradient(p * earned * c.new, c.logits)


def cosine(a: Tensor, b: Tensor) -> float:
    return torch.cosine_similarity(a, b, dim=0).item()


@pytest.mark.parametrize("distance", [0.3, 1.0, 2.0])
def test_k2_and_the_corrected_forms_have_the_gradient_of_the_divergence(distance: float) -> None:
    """To rounding, in length and direction; and k1 has none at all."""
    for seed in range(DRAWS):
        c = choice(seed, distance)
        for estimator in ("k2", "k1+", "k3+"):
            torch.testing.assert_close(of_loss(c, estimator), c.exact, rtol=1e-9, atol=1e-12)
        assert of_loss(c, "k1").abs().max() < 1e-12


@pytest.mark.parametrize(
    ("distance", "mean", "worst"), [(0.3, 0.990, 0.958), (1.0, 0.933, 0.754), (2.0, 0.898, 0.496)]
)
def test_the_gradient_of_k3_turns_away_with_the_distance(
    distance: float, mean: float, worst: float
) -> None:
    """Nearly right beside the reference, and less and less so away from it: why it is not the
    default."""
    found = [cosine(of_loss(c, "k3"), c.exact) for c in (choice(s, distance) for s in range(DRAWS))]
    assert sum(found) / DRAWS == pytest.approx(mean, abs=0.001)
    assert min(found) == pytest.approx(worst, abs=0.001)


def test_the_gradient_of_k3_is_that_of_the_other_divergence() -> None:
    """KL(pi_ref || pi_new) = sum q (log q - log p), where no bound binds."""
    for seed in range(DRAWS):
        c = choice(seed, 0.3)
        other = gradient(c.ref.exp() * (c.ref - c.new), c.logits)
        torch.testing.assert_close(of_loss(c, "k3"), other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("distance", [0.3, 1.0, 2.0])
def test_in_the_reward_only_k1_has_the_gradient_of_the_divergence(distance: float) -> None:
    """k2 and k3 punish a token as much for being too rare as for being too frequent: the mean
    cosine of their gradient to the right one is nearer to a right angle than to it."""
    choices = [choice(seed, distance) for seed in range(DRAWS)]
    for c in choices:
        torch.testing.assert_close(of_reward(c, "k1"), c.exact, rtol=1e-9, atol=1e-12)
    limits: tuple[tuple[KlEstimator, float], ...] = (("k2", 0.65), ("k3", 0.2))
    for estimator, most in limits:
        found = [cosine(of_reward(c, estimator), c.exact) for c in choices]
        assert sum(found) / DRAWS < most
        assert min(found) < -0.9


def test_the_default_is_exact_wherever_it_stands() -> None:
    in_loss, in_reward = KlConfig(coef=0.1), KlConfig(coef=0.1, where="reward")
    assert (in_loss.chosen_estimator, in_reward.chosen_estimator) == ("k3+", "k1")
    c = choice(0, 1.0)
    for made in (
        of_loss(c, in_loss.chosen_estimator),
        of_reward(c, in_reward.chosen_estimator),
    ):
        torch.testing.assert_close(made, c.exact, rtol=1e-9, atol=1e-12)
    assert KlConfig(coef=0.1, estimator="k3").chosen_estimator == "k3"
