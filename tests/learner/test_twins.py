"""Losses against slow twins in the papers' notation: value, and gradient by autograd of the twin.

One function at a time; `test_update_twin` has the loss of a whole update.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learner.algorithms.aggregation import fixed_length_weights, token_mean_weights, weighted_sum
from learner.algorithms.policy_losses import clipped_surrogate
from learner.algorithms.ratios import geometric_filter, interpolated_proximal, tis_ratio
from tests.learner import reference
from tests.learner.algorithms.test_advantages import close, f64

LOW, HIGH, DUAL = 0.2, 0.28, 10.0

logprob = st.floats(-4.0, -0.01)
# New, proximal, behaviour; advantage away from 0.
token = st.tuples(
    logprob, logprob, logprob, st.floats(-3.0, 3.0).filter(lambda a: abs(a) > 1e-3)
).filter(lambda x: all(abs(x[0] - x[1] - math.log(k)) > 1e-6 for k in (1 - LOW, 1 + HIGH, DUAL)))
responses = st.lists(st.lists(token, min_size=1, max_size=6), min_size=1, max_size=4)
over_caps = st.sampled_from(["clamp", "mask"])
caps = st.sampled_from([0.7, 1.5, 2.0, 1e9])


def columns(pack: Sequence[Sequence[tuple[float, ...]]]) -> tuple[Tensor, ...]:
    """Each number of all tokens, and the response of each token."""
    flat = [x for response in pack for x in response]
    ids = [i for i, response in enumerate(pack) for _ in response]
    return *(f64(list(x)) for x in zip(*flat, strict=True)), torch.tensor(ids)


def number(x: Any) -> float:
    return float(x.item()) if isinstance(x, Tensor) else float(x)


def gradient(loss: Any, x: Tensor) -> Tensor:
    return torch.autograd.grad(loss + 0 * x.sum(), x)[0]


@given(responses, caps, over_caps)
@settings(max_examples=60, deadline=None)
def test_decoupled_and_tis_loss(
    pack: list[list[tuple[float, ...]]],
    cap: float,
    over_cap: Literal["clamp", "mask"],
) -> None:
    new, proximal, behaviour, a, _ = columns(pack)
    mine, slow = new.clone().requires_grad_(), new.clone().requires_grad_()
    everything = torch.ones_like(new, dtype=torch.bool)
    ratio = tis_ratio(mine, proximal, behaviour, everything, cap=cap, over_cap=over_cap)
    surrogate = clipped_surrogate(
        ratio.log_ratio, a, clip_low=LOW, clip_high=HIGH, dual_clip=DUAL
    ).loss
    share = token_mean_weights(everything, global_tokens=new.numel())
    made = weighted_sum(ratio.weight * surrogate, share)
    twin = reference.token_mean(
        [
            [
                reference.decoupled(x, p.item(), b.item(), y.item(), LOW, HIGH, DUAL, cap, over_cap)
                for x, p, b, y in zip(slow, proximal, behaviour, a, strict=True)
            ]
        ]
    )
    close(made.detach(), number(twin), atol=1e-12)
    close(gradient(made, mine), gradient(twin, slow).tolist(), atol=1e-12)


@given(responses, caps, over_caps)
@settings(max_examples=60, deadline=None)
def test_sequence_weights_and_geometric_filter(
    pack: list[list[tuple[float, ...]]], cap: float, over_cap: Literal["clamp", "mask"]
) -> None:
    _, old, mu, _, ids = columns(pack)
    everything = torch.ones_like(ids, dtype=torch.bool)
    made = tis_ratio(
        old, old, mu, everything,
        cap=cap, over_cap=over_cap, segment_ids=ids, num_segments=len(pack),
    )  # fmt: skip
    kept = geometric_filter(old, mu, everything, ids, len(pack), low=0.5, high=1.5)
    for i, response in enumerate(pack):
        ours, theirs = [x[1] for x in response], [x[2] for x in response]
        product, mean = (
            reference.sequence_weight(ours, theirs, 1e99, "clamp"),
            reference.geometric_mean(ours, theirs),
        )
        if min(abs(product - cap), abs(mean - 0.5), abs(mean - 1.5)) < 1e-9:
            continue
        twin = reference.sequence_weight(ours, theirs, cap, over_cap)
        torch.testing.assert_close(
            made.weight[ids == i], torch.full_like(old[ids == i], twin), rtol=1e-10, atol=0
        )
        assert kept[ids == i].tolist() == [0.5 <= mean <= 1.5] * len(response)


@given(st.lists(st.tuples(logprob, logprob, st.integers(0, 8)), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_interpolated_proximal(tokens: list[tuple[float, float, int]]) -> None:
    made = interpolated_proximal(
        f64([x for x, _, _ in tokens]),
        f64([x for _, x, _ in tokens]),
        torch.tensor([v for _, _, v in tokens]),
        learner_version=6,
    )
    twin = [reference.interpolated_proximal(*x, 6) for x in tokens]
    # alpha is a float32.
    close(made, twin, atol=1e-6)


@given(
    st.lists(
        st.tuples(st.lists(logprob, min_size=1, max_size=6), st.booleans()),
        min_size=1, max_size=5,
    )
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_likelihood_of_right_answers_and_fixed_length(
    answers: list[tuple[list[float], bool]],
) -> None:
    logps = f64([x for answer, _ in answers for x in answer])
    ids = torch.tensor([i for i, (answer, _) in enumerate(answers) for _ in answer])
    everything = torch.ones_like(ids, dtype=torch.bool)
    right = torch.tensor([good for _, good in answers])[ids]
    by_length = fixed_length_weights(everything, global_samples=len(answers), length=9)
    for weights, formula in (
        (
            token_mean_weights(right, global_tokens=int(right.sum())),
            lambda parts: reference.positive_nll(
                [p for p, (_, good) in zip(parts, answers, strict=True) if good]
            ),
        ),
        (by_length, lambda parts: reference.fixed_length([[-x for x in p] for p in parts], 9)),
    ):
        mine, slow = logps.clone().requires_grad_(), logps.clone().requires_grad_()
        made = weighted_sum(-mine, weights)
        twin = formula([slow[ids == i].unbind() for i in range(len(answers))])
        close(made.detach(), number(twin), atol=1e-12)
        close(gradient(made, mine), gradient(twin, slow).tolist(), atol=1e-12)
