"""Reward shaping. (The filter of overlong responses and the choice of groups, golden case G8, are
the coordinator's: tests/coordinator/test_groups.py.)"""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.algorithms.penalties import overlong_penalty
from tests.learner import reference
from tests.learner.algorithms.test_advantages import close, f64


def test_overlong_penalty_at_the_papers_lengths() -> None:
    """Golden case G6."""
    lengths = torch.tensor([16384, 16385, 17408, 18432, 19456, 20479, 20480, 20481])
    made = overlong_penalty(lengths, max_length=20480, cache=4096)
    expected = [0, -0.000244140625, -0.25, -0.5, -0.75, -0.999755859375, -1, -1]
    assert made.tolist() == expected
    shaped = f64([1.0, -1.0]) + made[3]
    assert shaped.tolist() == [0.5, -1.5]
    assert overlong_penalty(lengths, max_length=20480, cache=4096, factor=0.5)[6] == -0.5


def test_overlong_penalty_of_tiny_lengths() -> None:
    """Golden case G6, small."""
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
