"""Curves put together and told apart, with numbers worked out by hand."""

import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.charts.curves import BAND_POINTS, Divergence, first_divergence, seed_band


def curve(*points: tuple[float, float]) -> pd.DataFrame:
    return pd.DataFrame(points, columns=["x", "value"])


FLAT = curve((0, 0), (10, 0), (20, 0), (30, 0))


def test_apart_for_good_from_the_first_point_after_which_nothing_comes_back() -> None:
    other = curve((0, 0), (10, 5), (20, 1), (30, 4))
    assert first_divergence(other, FLAT, 2) == Divergence(30, 4)  # at 20 they were together
    assert first_divergence(other, FLAT, 0.5) == Divergence(10, 4)
    assert first_divergence(FLAT, other, 0.5) == Divergence(10, -4)
    assert first_divergence(other, FLAT, 4) is None  # no further apart than the margin at the end


def test_changing_sides_is_no_staying_apart() -> None:
    crossing = curve((0, 9), (10, 9), (20, -9), (30, -9))
    assert first_divergence(crossing, FLAT, 1) == Divergence(20, -9)


def test_curves_of_other_points_are_apart_where_no_way_between_the_points_could_meet() -> None:
    rising = curve((0, 0), (30, 30))
    assert first_divergence(rising, FLAT, 12) == Divergence(30, 30)
    above = curve((0, 20), (40, 30))
    assert first_divergence(above, FLAT, 12) == Divergence(0, 27.5)
    assert first_divergence(FLAT, above, 12) == Divergence(0, -27.5)


def test_two_points_far_apart_in_height_say_nothing_of_what_lies_between() -> None:
    early, late = curve((0, 0.2), (160, 0.93)), curve((0, 0.2), (200, 0.92))
    assert first_divergence(early, late, 0.02) is None  # at 160 the other one may have been 0.92
    assert first_divergence(late, early, 0.02) is None
    often = curve((0, 0.2), (155, 0.6), (200, 0.65))
    found = first_divergence(early, often, 0.02)
    assert found is not None
    assert found.x == 160
    assert found.gap == pytest.approx(0.93 - 0.6 - 0.05 * 5 / 45)


@pytest.mark.parametrize(
    "other", [curve(), curve((40, 1), (50, 1)), curve((0, math.nan), (10, math.nan))]
)
def test_curves_that_are_never_side_by_side_are_not_apart(other: pd.DataFrame) -> None:
    assert first_divergence(FLAT, other, 0.1) is None
    assert first_divergence(other, FLAT, 0.1) is None


def test_apart_for_too_short_is_not_yet_for_good() -> None:
    late = curve((0, 0), (28, 0), (29, 5), (30, 5))
    assert first_divergence(late, FLAT, 1) == Divergence(29, 5)
    assert first_divergence(late, FLAT, 1, lasts=0.1) is None


def test_of_several_values_at_one_x_the_last_counts() -> None:
    again = curve((0, 0), (10, 9), (20, 9), (10, 0), (20, 0), (30, 0))  # gone over again
    assert first_divergence(again, FLAT, 1) is None


values = st.floats(-100, 100, allow_nan=False)
curves = st.lists(values, min_size=1, max_size=12).map(
    lambda found: curve(*((float(x), y) for x, y in enumerate(found)))
)


@given(curves, curves, st.floats(0, 10))
def test_from_there_on_they_are_apart_and_before_they_were_not(
    first: pd.DataFrame, second: pd.DataFrame, margin: float
) -> None:
    both = min(len(first), len(second))
    gap = first["value"].to_numpy()[:both] - second["value"].to_numpy()[:both]
    found = first_divergence(first, second, margin)
    mirrored = first_divergence(second, first, margin)
    assert (found is None) == (mirrored is None) == (abs(gap[-1]) <= margin)
    if found is not None and mirrored is not None:
        assert (found.x, found.gap) == (mirrored.x, -mirrored.gap)
        sign, start = np.sign(gap[-1]), int(found.x)
        assert (sign * gap[start:] > margin).all()
        assert start == 0 or sign * gap[start - 1] <= margin


def test_a_band_is_least_median_and_largest() -> None:
    band = seed_band([curve((0, 1), (10, 3)), curve((0, 2), (10, 9)), curve((0, 6), (10, 4))])
    assert band.to_dict("list") == {
        "x": [0, 10],
        "low": [1, 3],
        "value": [2, 4],
        "high": [6, 9],
        "runs": [3, 3],
    }


def test_a_run_counts_where_it_is_known() -> None:
    band = seed_band([curve((0, 0), (20, 20)), curve((0, 0), (10, 30))])
    assert band["x"].tolist() == [0, 10, 20]
    assert band["high"].tolist() == [0, 30, 20]
    assert band["value"].tolist() == [0, 20, 20]
    assert band["runs"].tolist() == [2, 2, 1]
    assert seed_band([curve(), curve()]).empty


def test_a_band_has_a_bounded_number_of_points() -> None:
    long = [curve(*((x + shift, x) for x in range(1000))) for shift in (0.0, 0.5)]
    band = seed_band(long)
    assert len(band) == BAND_POINTS
    assert (band["low"] <= band["value"]).all()
    assert all(b > a for a, b in pairwise(band["x"]))
