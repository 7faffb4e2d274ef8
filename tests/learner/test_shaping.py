"""Reward shaping and the choice of groups."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.shaping import mixed_groups, overlong_filter, overlong_penalty, rewards_with_kl
from tests.learner import reference
from tests.learner.test_advantages import close, f64


def test_overlong_penalty_at_the_papers_lengths() -> None:
    lengths = torch.tensor([16384, 16385, 17408, 18432, 19456, 20479, 20480, 20481])
    made = overlong_penalty(lengths, max_length=20480, cache=4096)
    expected = [0, -0.000244140625, -0.25, -0.5, -0.75, -0.999755859375, -1, -1]
    assert made.tolist() == expected
    free = overlong_penalty(lengths, max_length=20480, cache=4096, clamp=False)
    assert free.tolist() == [*expected[:-1], -1.000244140625]
    shaped = f64([1.0, -1.0]) + made[3]
    assert shaped.tolist() == [0.5, -1.5]
    assert overlong_penalty(lengths, max_length=20480, cache=4096, factor=0.5)[6] == -0.5


def test_overlong_penalty_of_tiny_lengths() -> None:
    made = overlong_penalty(torch.arange(6, 12), max_length=10, cache=4)
    assert made.tolist() == [0, -0.25, -0.5, -0.75, -1, -1]
    with pytest.raises(ValueError, match="cache"):
        overlong_penalty(torch.arange(3), max_length=10, cache=0)


@given(st.integers(0, 80), st.integers(1, 40), st.integers(0, 30))
def test_overlong_penalty_equals_the_papers_cases(length: int, cache: int, room: int) -> None:
    longest = cache + room
    made = overlong_penalty(torch.tensor([length]), max_length=longest, cache=cache)
    exact: Fraction = reference.overlong(length, longest, cache)
    close(made, [float(exact)], atol=1e-12)


def test_overlong_filter_drops_truncated_trajectories() -> None:
    mask = torch.tensor([True, False, True, True])
    made = overlong_filter(mask, torch.tensor([False, True]), torch.tensor([0, 0, 1, 1]))
    assert made.tolist() == [True, False, False, False]


def test_kl_in_the_reward_carries_no_gradient() -> None:
    kl = f64([0.5, 0.25]).requires_grad_()
    made = rewards_with_kl(f64([0.0, 1.0]), kl, coefficient=0.1)
    close(made, [-0.05, 0.975], atol=1e-12)
    assert not made.requires_grad


def test_dynamic_sampling_fills_the_buffer_with_mixed_groups() -> None:
    right = [4, 1, 0, 3, 2, 2]
    scores = f64([1.0 if i < n else -1.0 for n in right for i in range(4)])
    groups = torch.arange(6).repeat_interleave(4)
    kept = mixed_groups(scores, groups)
    prompts = groups[kept].unique().add(1).tolist()
    assert prompts == [2, 4, 5, 6]
    assert (prompts[:3], prompts[3:]) == ([2, 4, 5], [6])
    assert kept.view(6, 4).all(1).tolist() == kept.view(6, 4).any(1).tolist()


def test_groups_are_chosen_before_shaping() -> None:
    scores, groups = f64([1.0, 1.0]), torch.tensor([9, 9])
    shaped = scores + overlong_penalty(torch.tensor([5, 9]), max_length=10, cache=4)
    assert shaped[0] != shaped[1]
    assert not mixed_groups(scores, groups).any()


def test_a_group_of_one_has_no_spread() -> None:
    assert mixed_groups(f64([1.0, -1.0, 1.0]), torch.tensor([1, 2, 2])).tolist() == [
        False,
        True,
        True,
    ]
