"""Figures over runs of which some never got there: no run is left out, bounds are bounds."""

import json
import math
import statistics

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.censored import at_least, bounds_text, exactly, quotient, spread, spread_text


def test_who_never_got_there_counts_as_later() -> None:
    seen = [exactly(46.0), exactly(49.0), exactly(71.0), exactly(90.0)]
    # The four that were seen have a median of 60; of all five it is the third.
    assert spread([*seen, at_least(95.0)]) == {
        "median": [71.0, 71.0], "min": [46.0, 46.0], "max": [95.0, None],
    }  # fmt: skip
    # Stopped at 67, the fifth may have come before or after 71.
    found = spread([*seen, at_least(67.0)])
    assert found == {"median": [67.0, 71.0], "min": [46.0, 46.0], "max": [90.0, None]}
    assert spread_text(found, ".0f") == "between 67 and 71 (46 to at least 90)"
    assert json.loads(json.dumps(found)) == found


def test_half_the_runs_never_got_there() -> None:
    assert spread_text(spread([exactly(10.0), at_least(20.0)]), ".0f") == (
        "at least 15 (10 to at least 20)"
    )


def test_quotient_of_bounds() -> None:
    assert quotient(exactly(60.0), exactly(20.0)) == (3.0, 3.0)
    assert quotient(at_least(60.0), exactly(20.0)) == (3.0, math.inf)
    assert quotient(exactly(60.0), at_least(20.0)) == (0.0, 3.0)
    assert quotient(at_least(60.0), at_least(20.0)) == (0.0, math.inf)


def test_words() -> None:
    assert bounds_text([2.0, 2.0], ".1f") == "2.0"
    assert bounds_text([2.0, None], ".1f") == "at least 2.0"
    assert bounds_text([0.0, 2.0], ".1f") == "at most 2.0"
    assert bounds_text([1.0, 2.0], ".1f") == "between 1.0 and 2.0"
    assert spread_text(None, ".1f") == "-"
    assert spread([]) is None
    assert spread_text(spread([exactly(1.0)] * 3), ".1f") == "1.0"


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=1))
def test_bounds_hold_whatever_the_times_would_have_been(runs: list[tuple[float, float]]) -> None:
    """Each run has a true time and a time at which it was stopped."""
    seen = [exactly(true) if true <= stop else at_least(stop) for true, stop in runs]
    found = spread(seen)
    assert found is not None
    times = [true for true, _ in runs]
    for name, figure in (("median", statistics.median), ("min", min), ("max", max)):
        low, high = found[name]
        assert low is not None
        assert low <= figure(times) <= (math.inf if high is None else high)
