"""Diagnostics: figures by hand, and the same figures however the batch is split."""

import math

import pytest
import torch
from torch import Tensor

from headrace.metrics.registry import METRICS
from learner.algorithms.policy_losses import clipped_surrogate
from learner.algorithms.ratios import behaviour_ratio, tis_ratio
from learner.batching.segments import Segments, segments_of
from learner.updates.token_statistics import (
    Tally,
    as_vectors,
    from_vectors,
    merge,
    tally_egae,
    tally_hot,
    tally_mismatch,
    tally_policy,
    tally_reference,
    tally_values,
    tally_weights,
    window_cuts,
)
from learner.updates.token_statistics_table import ARRAYS, DIAGNOSTICS, finalise
from tests.learner import reference
from tests.learner.algorithms.test_advantages import f64
from tests.learner.recorded import numbers
from tests.metric_values import number


def random_window(n: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    names = ("new", "proximal", "behaviour", "advantages", "values", "targets", "entropy")
    made = {name: torch.randn(n, generator=generator, dtype=torch.float64) for name in names}
    made["mask"] = torch.rand(n, generator=generator) < 0.7
    return made


def tally_all(x: dict[str, Tensor], segments: Segments) -> Tally:
    ratio = tis_ratio(x["new"], x["proximal"], x["behaviour"], x["mask"], cap=2.0)
    loss = clipped_surrogate(
        ratio.log_ratio, x["advantages"], clip_low=0.2, clip_high=0.28, dual_clip=3.0
    )
    return merge(
        [
            tally_policy(ratio, loss, x["advantages"], x["mask"], x["new"], x["entropy"]),
            tally_weights(
                ratio, x["proximal"], x["behaviour"], x["mask"], dropped=ratio.weight == 0
            ),
            tally_mismatch(x["proximal"], x["behaviour"], x["mask"]),
            tally_hot(
                x["proximal"],
                x["behaviour"],
                x["advantages"] > 0.0,
                known=x["values"] > 0.0,
                trained=x["mask"],
                cap=1.5,
            ),
            tally_values(x["values"], x["targets"], x["mask"], segments, cuts=x["mask"]),
            tally_egae(x["values"], x["advantages"], segments, boundary_tokens=2),
        ]
    )


def part(x: dict[str, Tensor], tokens: slice) -> dict[str, Tensor]:
    return {name: tensor[tokens] for name, tensor in x.items()}


def test_figures_do_not_depend_on_the_split_nor_on_the_ranks() -> None:
    x = random_window(17, seed=1)
    whole = segments_of([9, 3, 5], finished=[True, False, False], lam=[0.95, 0.9, 0.99])
    first = segments_of([9], finished=[True], lam=0.95)
    rest = segments_of([3, 5], finished=[False, False], lam=[0.9, 0.99])
    nothing = tally_all(part(x, slice(0, 0)), segments_of([], finished=[]))
    one = merge([tally_all(part(x, slice(0, 9)), first), nothing])
    two = tally_all(part(x, slice(9, 17)), rest)
    # What all-reduce SUM and MAX do on two ranks.
    sums, maxima = zip(as_vectors(one), as_vectors(two), strict=True)
    reduced = from_vectors(one, sums[0] + sums[1], torch.maximum(*maxima))
    expected = finalise(tally_all(x, whole))
    for made in (finalise(merge([one, two])), finalise(reduced)):
        assert made.keys() == expected.keys()
        for name, value in made.items():
            wanted = pytest.approx(numbers(expected[name]), rel=1e-9, abs=1e-12, nan_ok=True)
            assert numbers(value) == wanted, name


def test_a_rank_without_tokens_has_the_same_names_and_no_figures() -> None:
    empty = tally_all(part(random_window(1, seed=0), slice(0, 0)), segments_of([], finished=[]))
    full = tally_all(random_window(4, seed=0), segments_of([4], finished=[False]))
    assert empty.sums.keys() == full.sums.keys()
    assert empty.maxima.keys() == full.maxima.keys()
    assert finalise(empty) == {}
    assert finalise(Tally({}, {})) == {}
    assert as_vectors(Tally({}, {}))[0].shape == (0,)


def test_every_figure_is_a_metric_with_a_meaning_and_a_healthy_band() -> None:
    """One name, one meaning, one band, in one place: headrace.metrics.registry."""
    for name in DIAGNOSTICS:
        assert METRICS[name].meaning
        assert METRICS[name].healthy, name


def test_reference_figure() -> None:
    new, reference = f64([-1.0, -2.0, -5.0]), f64([-1.5, -1.9, -1.0])
    made = finalise(tally_reference(new, reference, torch.tensor([True, True, False])))
    k3 = [math.exp(-d) + d - 1 for d in (0.5, -0.1)]
    assert made == pytest.approx({"actor/reference_kl": sum(k3) / 2})


def test_cuts_of_whole_responses() -> None:
    """Windows of 2: a response of 5 was cut after tokens 1 and 3, one of 4 after 1 alone."""
    segments = segments_of([5, 4, 1, 2], finished=[True, True, True, True])
    numbers = torch.tensor([*range(5), *range(4), 0, *range(2)])
    cuts = window_cuts(numbers, segments, window=2)
    assert cuts.nonzero().flatten().tolist() == [1, 3, 6]
    assert not window_cuts(numbers, segments, window=8).any()


def test_policy_figures() -> None:
    new = f64([math.log(r) for r in (1.0, 1.5, 0.5, 15.0, 7.0)])
    advantages = f64([1.0, 1.0, -1.0, -1.0, 9.0])
    mask = torch.tensor([True, True, True, True, False])
    ratio = behaviour_ratio(new, torch.zeros_like(new), mask)
    loss = clipped_surrogate(
        ratio.log_ratio, advantages, clip_low=0.2, clip_high=0.28, dual_clip=10
    )
    made = finalise(
        tally_policy(ratio, loss, advantages, mask, new, f64([0.4, 0.8, 0.4, 0.8, 99.0]))
    )
    k3 = [r - 1 - math.log(r) for r in (1.0, 1.5, 0.5, 15.0)]
    assert made == pytest.approx(
        {
            "actor/ppo_kl": sum(k3) / 4,
            "actor/pg_clipfrac": 0.5,
            "actor/pg_clipfrac_lower": 0.25,
            "actor/pg_clipfrac_upper": 0.25,
            "actor/pg_clipfrac_dual": 0.25,
            "actor/pg_clipped_probability": 1.5,
            "actor/ratio_max": 15.0,
            "actor/entropy": 0.6,
            "actor/advantage_mean": 0.0,
            "actor/advantage_std": 1.0,
        }
    )


def test_weight_figures() -> None:
    rho = [0.4, 1.0, 3.0, 6.0, 100.0]
    proximal, behaviour = f64(rho).log(), torch.zeros(5, dtype=torch.float64)
    mask = torch.tensor([True] * 4 + [False])
    ratio = tis_ratio(proximal, proximal, behaviour, mask, cap=2.0)
    made = finalise(tally_weights(ratio, proximal, behaviour, mask, dropped=ratio.weight == 0))
    assert made == pytest.approx(
        {
            "rollout/weight_mean": 5.4 / 4,
            "rollout/ess": 5.4**2 / (4 * (0.16 + 1 + 4 + 4)),
            "rollout/weight_over_cap": 0.5,
            "rollout/weight_dropped": 0.0,
            "rollout/weight_max": 6.0,
            "rollout/weight_above_2": 0.5,
            "rollout/weight_above_5": 0.25,
            "rollout/weight_below_1_over_2": 0.25,
            "rollout/weight_below_1_over_5": 0.0,
        }
    )
    masked = tis_ratio(proximal, proximal, behaviour, mask, cap=2.0, over_cap="mask")
    made = finalise(tally_weights(masked, proximal, behaviour, mask, dropped=masked.weight == 0))
    assert made["rollout/weight_dropped"] == pytest.approx(0.5)


def test_mismatch_figures() -> None:
    learner, sampler = f64([-1.0, -2.0, -5.0]), f64([-1.5, -1.9, -1.0])
    made = finalise(tally_mismatch(learner, sampler, torch.tensor([True, True, False])))
    k3 = [math.exp(d) - 1 - d for d in (0.5, -0.1)]
    assert made == pytest.approx(
        {
            "rollout/mismatch_kl": sum(k3) / 2,
            "rollout/logprob_diff": 0.3,
            "rollout/logprob_diff_max": 0.5,
        }
    )


def test_value_figures() -> None:
    values = f64([0.5, 0.25, 0.75, -0.5, 0.5, 7.0])
    targets = f64([1.0, 1.0, 1.0, -1.0, -1.0, 0.0])
    mask = torch.tensor([True] * 5 + [False])
    segments = segments_of([3, 2, 1], finished=[True, True, False])
    cuts = torch.tensor([False, True, False, False, False, True])
    made = finalise(tally_values(values, targets, mask, segments, cuts=cuts))
    errors = (values - targets)[:5].tolist()
    assert made["critic/vf_explained_var"] == pytest.approx(
        reference.explained_variance(values[:5].tolist(), targets[:5].tolist()), abs=1e-12
    )
    assert made["critic/value_bias"] == pytest.approx(sum(errors) / 5)
    assert made["critic/value_rmse"] == pytest.approx(
        math.sqrt(sum(e * e for e in errors) / 5), abs=1e-12
    )
    assert made["critic/value_error_max"] == pytest.approx(1.5)
    assert made["value/cut_bias"] == pytest.approx(-0.75)
    assert made["value/cut_rmse"] == pytest.approx(0.75)
    # Positions 0, 1/3, 2/3 of the first response and 0, 1/2 of the second.
    biases = made["value/bias"]
    assert isinstance(biases, list)
    assert [b for b, bias in enumerate(biases) if bias is not None] == [0, 3, 5, 6]
    assert [b for b in biases if b is not None] == pytest.approx([0.0, -0.75, 1.5, -0.25])
    errors_by_place = made["value/rmse"]
    assert isinstance(errors_by_place, list)
    assert errors_by_place[0] == pytest.approx(0.5)
    assert errors_by_place[1] is None


def test_an_array_has_a_formula_for_each_bin() -> None:
    for name, formulas in ARRAYS.items():
        assert len(formulas) == len(METRICS[name].bins)


def test_explained_variance_of_equal_returns_is_absent() -> None:
    values, returns = f64([0.1, 0.3, 0.2]), f64([0.1, 0.1, 0.1])
    mask, segments = torch.ones(3, dtype=torch.bool), segments_of([3], finished=[True])
    flat = tally_values(values, returns, mask, segments, cuts=~mask)
    assert "critic/vf_explained_var" not in finalise(flat)
    perfect = finalise(tally_values(values, values, mask, segments, cuts=~mask))
    assert perfect["critic/vf_explained_var"] == 1.0
    assert "value/cut_bias" not in perfect


def test_hot_figures() -> None:
    """Three hot tokens: pi / q is 1/2 and 4 where pi is known, two are trained, one is cut."""
    yes, no = True, False
    made = finalise(
        tally_hot(
            f64([0.25, 0.5, math.nan, 0.1]).log(), f64([0.5, 0.125, 0.5, 0.9]).log(),
            torch.tensor([yes, yes, yes, no]),
            known=torch.tensor([yes, yes, no, yes]),
            trained=torch.tensor([no, yes, yes, yes]),
            cap=3.0,
        )
    )  # fmt: skip
    assert made == pytest.approx({
        "rollout/hot_tokens": 3,
        "rollout/hot_ratio_mean": 4.5 / 2,
        "rollout/hot_over_cap": 1 / 2,
    })  # fmt: skip


def test_egae_figures() -> None:
    segments = segments_of(
        [4, 2, 1],
        finished=[False, True, False],
        lam=[0.95, 0.5, 0.99],
        length_so_far=[64, 2, 70],
    )
    values = f64([0.1, 0.2, 0.3, 0.4, 0.9, 0.9, -0.2])
    advantages = f64([1.0, 1.0, -0.3, 0.1, 2.0, 2.0, -0.1])
    made = finalise(tally_egae(values, advantages, segments, boundary_tokens=2))
    lambdas = made.pop("egae/lambda_by_length")
    assert lambdas == [pytest.approx(1.45 / 2), pytest.approx(0.99), None, None, None, None]
    assert made == pytest.approx(
        {
            "egae/bootstrap_tokens": 5 / 7,
            "egae/bootstrap_share": 2 / 3,
            "value/at_cut": 0.1,
            "egae/boundary_advantage": -0.1,
            "egae/boundary_advantage_abs": 0.5 / 3,
            "egae/advantage_abs": 6.5 / 7,
            "egae/lambda": 2.44 / 3,
        }
    )


def test_a_nan_shows() -> None:
    nan = f64([float("nan"), 0.0])
    mask = torch.ones(2, dtype=torch.bool)
    made = finalise(tally_mismatch(nan, f64([0.0, 0.0]), mask))
    assert all(math.isnan(number(x)) for x in made.values())
