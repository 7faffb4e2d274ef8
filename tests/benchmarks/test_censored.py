"""Figures over runs of which some never got there: bounds are bounds."""

import math

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.censored import at_least, exactly, quotient


def test_quotient_of_bounds() -> None:
    assert quotient(exactly(60.0), exactly(20.0)) == (3.0, 3.0)
    assert quotient(at_least(60.0), exactly(20.0)) == (3.0, math.inf)
    assert quotient(exactly(60.0), at_least(20.0)) == (0.0, 3.0)
    assert quotient(at_least(60.0), at_least(20.0)) == (0.0, math.inf)


@given(*[st.tuples(st.floats(0.1, 100), st.floats(0.1, 100))] * 2)
def test_bounds_hold_whatever_the_times_would_have_been(
    over: tuple[float, float], under: tuple[float, float]
) -> None:
    """Each run has a true time and a time at which it was stopped."""
    seen = [exactly(true) if true <= stop else at_least(stop) for true, stop in (over, under)]
    low, high = quotient(*seen)
    assert low <= over[0] / under[0] <= high
