"""Ratios and importance weights: decoupled PPO, TIS, MIS, interpolation."""

import math
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.algorithms.policy_losses import clipped_surrogate
from learner.algorithms.ratios import (
    behaviour_ratio,
    geometric_filter,
    interpolated_proximal,
    interpolation_alpha,
    log_ratio,
    tis_ratio,
)
from tests.learner.algorithms.test_advantages import close, f64

ALL = torch.ones(1, dtype=torch.bool)


@pytest.mark.parametrize(
    ("theta", "prox", "behaviour", "advantage", "cap", "expected"),
    [
        (0.30, 0.25, 0.20, 1.0, 1e9, -1.5),
        (0.50, 0.25, 0.20, 1.0, 1e9, -1.6),
        (0.10, 0.25, 0.05, -1.0, 1e9, 4.0),
        (0.10, 0.25, 0.05, -1.0, 2.0, 1.6),
        (0.40, 0.25, 0.05, -1.0, 1e9, 8.0),
        (0.40, 0.25, 0.05, -1.0, 2.0, 3.2),
    ],
)
def test_decoupled_loss_of_one_token(
    theta: float,
    prox: float,
    behaviour: float,
    advantage: float,
    cap: float,
    expected: float,
) -> None:
    new, proximal, mu = (f64([math.log(p)]) for p in (theta, prox, behaviour))
    ratio = tis_ratio(new, proximal, mu, ALL, cap=cap)
    loss = clipped_surrogate(ratio.log_ratio, f64([advantage]), clip_low=0.2, clip_high=0.28).loss
    close(ratio.weight * loss, [expected], atol=1e-12)
    assert ratio.over_cap.item() is (cap == 2.0)


def test_decoupled_with_proximal_equal_to_behaviour_is_ppo() -> None:
    new, mu = f64([-1.0, -0.5]), f64([-1.2, -0.1])
    mask = torch.tensor([True, True])
    plain, decoupled = behaviour_ratio(new, mu, mask), tis_ratio(new, mu, mu, mask, cap=2.0)
    assert torch.equal(plain.log_ratio, decoupled.log_ratio)
    assert torch.equal(plain.weight, decoupled.weight)
    assert plain.weight.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", ["behaviour", "tis"])
def test_only_new_logprobs_get_a_gradient_and_only_inside_the_mask(kind: str) -> None:
    new, prox, mu = (torch.full((3,), -1.0, requires_grad=True) for _ in range(3))
    mask = torch.tensor([True, False, True])
    if kind == "behaviour":
        ratio = behaviour_ratio(new, mu, mask)
    else:
        ratio = tis_ratio(new, prox, mu, mask, cap=2.0)
    torch.autograd.backward((ratio.weight * ratio.log_ratio.exp()).sum())
    assert new.grad is not None
    assert new.grad.tolist() == [1.0, 0.0, 1.0]
    assert prox.grad is None
    assert mu.grad is None


def test_what_lies_outside_the_mask_is_not_read() -> None:
    nan = float("nan")
    new = torch.tensor([-1.0, nan], requires_grad=True)
    mask = torch.tensor([True, False])
    ratio = tis_ratio(new, torch.tensor([-1.0, nan]), torch.tensor([-1.5, nan]), mask, cap=2)
    torch.autograd.backward((ratio.weight * ratio.log_ratio.exp()).sum())
    assert ratio.log_ratio.tolist() == [0.0, 0.0]
    assert ratio.weight[1] == 0.0
    assert new.grad is not None
    assert torch.isfinite(new.grad).all()


def test_a_nan_inside_the_mask_stays_visible() -> None:
    ratio = tis_ratio(f64([-1.0]), f64([-1.0]), f64([float("nan")]), ALL, cap=2.0)
    assert ratio.weight.isnan().all()


def test_log_ratios_are_clipped_before_exp() -> None:
    mask = torch.ones(2, dtype=torch.bool)
    assert log_ratio(f64([0.0, -99.0]), f64([-99.0, 0.0]), mask).tolist() == [20.0, -20.0]


@pytest.mark.parametrize(
    ("over_cap", "expected"), [("clamp", [0.5, 2.0, 2.0, 0.0]), ("mask", [0.5, 2.0, 0.0, 0.0])]
)
def test_token_weights(over_cap: Literal["clamp", "mask"], expected: list[float]) -> None:
    behaviour = f64([0.2, 0.2, 0.1, 0.1]).log()
    proximal = behaviour + f64([0.5, 2.0, 4.0, 4.0]).log()
    mask = torch.tensor([True, True, True, False])
    made = tis_ratio(proximal, proximal, behaviour, mask, cap=2.0 + 1e-9, over_cap=over_cap)
    close(made.weight, expected, atol=1e-8)
    assert made.over_cap.tolist() == [False, False, True, False]


@pytest.mark.parametrize(("over_cap", "second"), [("clamp", 5.0), ("mask", 0.0)])
def test_sequence_weights_are_products_over_the_masked_tokens(
    over_cap: Literal["clamp", "mask"], second: float
) -> None:
    log_rho = f64([1.5, 2.0, 9.0, 2.0, 2.0, 2.0]).log()
    ids = torch.tensor([0, 0, 0, 1, 1, 1])
    mask = torch.tensor([True, True, False, True, True, True])
    made = tis_ratio(
        log_rho,
        log_rho,
        torch.zeros(6).double(),
        mask,
        cap=5,
        over_cap=over_cap,
        segment_ids=ids,
        num_segments=2,
    )
    close(made.weight, [3.0, 3.0, 0.0, second, second, second], atol=1e-12)
    assert made.over_cap.tolist() == [False] * 3 + [True] * 3


@pytest.mark.parametrize(("over_cap", "largest"), [("clamp", 5.0), ("mask", 0.0)])
def test_a_tokens_weight_over_the_cap_is_cut_or_dropped(
    over_cap: Literal["clamp", "mask"], largest: float
) -> None:
    """rho = 2, 5 (the cap itself, which is not over it) and 8."""
    behaviour = torch.zeros(3).double()
    proximal = f64([2.0, 5.0, 8.0]).log()
    mask = torch.ones(3, dtype=torch.bool)
    cap = proximal.exp()[1].item()
    made = tis_ratio(proximal, proximal, behaviour, mask, cap=cap, over_cap=over_cap)
    close(made.weight, [2.0, 5.0, largest], atol=1e-12)
    assert made.over_cap.tolist() == [False, False, True]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_product_over_a_long_sequence_does_not_overflow(sign: float) -> None:
    log_rho, zeros = torch.full((5000,), sign), torch.zeros(5000)
    ids = torch.zeros(5000, dtype=torch.int64)
    made = tis_ratio(log_rho, log_rho, zeros, ids == 0, cap=1e12, segment_ids=ids, num_segments=1)
    assert made.weight[0].item() == pytest.approx(math.exp(sign * 20.0), rel=1e-6)


def test_geometric_filter_judges_the_mean_of_each_sequence() -> None:
    log_rho = f64([0.01, -0.01, 0.002, 0.002, 0.5])
    ids = torch.tensor([0, 0, 1, 1, 2])
    mask = torch.tensor([True, True, True, True, False])
    kept = geometric_filter(log_rho, torch.zeros(5).double(), mask, ids, 3)
    assert kept.tolist() == [True, True, False, False, False]
    means, alone = f64([-0.002, -0.0005, 0.0005, 0.002]), torch.arange(4)
    kept = geometric_filter(means, torch.zeros(4).double(), alone >= 0, alone, 4)
    assert kept.tolist() == [False, True, True, False]
    many, one = torch.full((4,), 0.0008, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    assert geometric_filter(many, torch.zeros(4).double(), one == 0, one, 1).all()
    same = torch.zeros(4).double()
    assert geometric_filter(same, same, one == 0, one, 1, low=1.0).all()
    assert geometric_filter(same, same, one == 0, one, 1, high=1.0).all()


def test_interpolated_proximal_golden_case_16() -> None:
    """The learner's part of it; staleness, mask and capacity are the coordinator's:
    tests/coordinator/test_staleness.py."""
    versions = torch.tensor([3, 3, 4, 5])
    close(interpolation_alpha(versions, learner_version=6), [2 / 3, 2 / 3, 0.5, 0.0], atol=1e-7)
    behaviour, new = f64([math.log(0.2)]), f64([math.log(0.3)])
    proximal = interpolated_proximal(new, behaviour, torch.tensor([3]), learner_version=6)
    assert proximal.exp().item() == pytest.approx(0.2620741394, abs=1e-8)
    ahead = interpolation_alpha(torch.tensor([6, 7, -1]), learner_version=6)
    close(ahead, [0.0, 0.0, 6 / 7], atol=1e-7)
    grown = interpolated_proximal(
        new.clone().requires_grad_(), behaviour, torch.tensor([3]), learner_version=6
    )
    assert not grown.requires_grad


@given(
    st.lists(st.tuples(st.floats(-4, 0), st.floats(-4, 0), st.booleans()), min_size=1, max_size=20),
    st.floats(1.0, 5.0),
)
@settings(max_examples=50, deadline=None)
def test_token_weights_equal_one_by_one(
    tokens: list[tuple[float, float, bool]], cap: float
) -> None:
    proximal, behaviour = f64([t[0] for t in tokens]), f64([t[1] for t in tokens])
    mask = torch.tensor([t[2] for t in tokens])
    made = tis_ratio(proximal, proximal, behaviour, mask, cap=cap)
    close(made.weight, [min(math.exp(p - b), cap) if m else 0.0 for p, b, m in tokens], atol=1e-12)
    dropped = tis_ratio(proximal, proximal, behaviour, mask, cap=cap, over_cap="mask")
    expected = [math.exp(p - b) if m and math.exp(p - b) <= cap else 0.0 for p, b, m in tokens]
    close(dropped.weight[~made.over_cap], f64(expected)[~made.over_cap].tolist(), atol=1e-12)
    assert not dropped.weight[made.over_cap].any()
