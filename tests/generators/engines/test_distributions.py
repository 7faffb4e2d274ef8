"""The hot distribution and the narrowed one: golden numbers, a slow twin, what holds always."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from generators.engines.distributions import hot_logprobs, narrow
from headrace.protocol.messages.control import FireSampling
from tests.generators.fixed_model import HOT, HOT_TOP_2, REGULAR, Z


def fire(top_k: int = -1, temperature: float = 30.0, **others: object) -> FireSampling:
    return FireSampling(temperature=temperature, top_k=top_k, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (fire(temperature=1.0), REGULAR),
        (fire(), HOT),
        (fire(top_k=2), HOT_TOP_2),
        (fire(top_k=2, temperature=1.0), (0.95257, 0.04743, 0.0, 0.0)),
    ],
)
def test_golden_distributions(sampling: FireSampling, expected: tuple[float, ...]) -> None:
    q = hot_logprobs(torch.tensor(Z), sampling, ()).exp()
    assert q.tolist() == pytest.approx(expected, abs=5e-6)


def test_a_banned_end_token_leaves_its_place_to_the_next_candidate() -> None:
    """End token 0 is the likeliest: the two candidates are then 1 and 2."""
    q = hot_logprobs(torch.tensor(Z), fire(top_k=2), (0,)).exp()
    odds = math.exp(2 / 30)
    assert q.tolist() == pytest.approx([0, odds / (1 + odds), 1 / (1 + odds), 0], abs=1e-6)
    allowed = hot_logprobs(torch.tensor(Z), fire(top_k=2, ban_eos=False), (0,)).exp()
    assert allowed.tolist() == pytest.approx(HOT_TOP_2, abs=5e-6)


def test_the_nucleus_is_taken_after_the_temperature() -> None:
    """0.28 + 0.25 + 0.24 is the first sum over 0.6; at temperature 1 it were token 0 alone."""
    q = hot_logprobs(torch.tensor(Z), fire(top_p=0.6), ()).exp()
    kept = HOT[:3]
    assert q.tolist() == pytest.approx([p / sum(kept) for p in kept] + [0], abs=1e-5)


def slow_hot(z: list[float], sampling: FireSampling, ends: set[int]) -> list[float]:
    """q(y) = softmax(topk(z) / T_hot), then the nucleus, as the paper writes them."""
    candidates = [y for y in range(len(z)) if not (sampling.ban_eos and y in ends)]
    candidates.sort(key=lambda y: -z[y])
    if sampling.top_k > 0:
        candidates = candidates[: sampling.top_k]
    largest = max(z[y] for y in candidates)
    weights = {y: math.exp((z[y] - largest) / sampling.temperature) for y in candidates}
    total, reached = sum(weights.values()), 0.0
    nucleus = {}
    for y in candidates:
        if reached < sampling.top_p:
            nucleus[y] = weights[y]
        reached += weights[y] / total
    return [nucleus.get(y, 0.0) / sum(nucleus.values()) for y in range(len(z))]


@given(
    z=st.lists(st.integers(-40, 40), min_size=3, max_size=12, unique=True),
    top_k=st.sampled_from([-1, 1, 2, 3, 50]),
    top_p=st.sampled_from([0.33, 0.71, 1.0]),
    temperature=st.sampled_from([0.7, 5.0, 30.0]),
    ban_eos=st.booleans(),
)
def test_fast_is_slow(
    z: list[int], top_k: int, top_p: float, temperature: float, ban_eos: bool
) -> None:
    sampling = fire(top_k, temperature, top_p=top_p, ban_eos=ban_eos)
    rows = torch.tensor([z, z[::-1]], dtype=torch.float32)
    fast = hot_logprobs(rows, sampling, {1}).exp()
    for row, values in zip(fast, rows.tolist(), strict=True):
        assert row.tolist() == pytest.approx(slow_hot(values, sampling, {1}), abs=1e-5)


def test_narrow_keeps_exactly_k_of_equal_tokens() -> None:
    q = narrow(torch.zeros(6), 3, 1.0).exp()
    assert sorted(q.tolist()) == pytest.approx([0, 0, 0, 1 / 3, 1 / 3, 1 / 3])
