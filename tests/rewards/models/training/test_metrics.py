"""Figures of held-out examples, by hand and by brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.models.training.metrics import area, calibration, flat, of_lines, of_orders, of_scores


def test_figures_of_scores() -> None:
    found = of_scores([(2.0, 0.0), (0.0, 1.0), (1.0, 1.0)], [0.0, 0.0, 0.0])
    assert found["accuracy"] == pytest.approx(0.5)
    assert found["loss"] == pytest.approx(np.logaddexp(0, [-2.0, 1.0, 0.0]).mean())
    assert found["mean_difference"] == pytest.approx(1 / 3)


def test_figures_of_two_orders() -> None:
    found = of_orders([(0.7, 0.5, 0.524911), (0.9, 0.2, 0.1)], weight=0.1)
    assert found["accuracy"] == 1.0
    bias = found["position_bias"]
    assert bias["accuracy_better_first"] == 1.0
    assert bias["accuracy_better_second"] == 0.5
    assert bias["gap"] == 0.5
    assert bias["bias"] == pytest.approx(abs((1.2 + 1.1) / 2 - 1))
    assert found["loss"] == pytest.approx((0.528911 + 0.101) / 2)


def test_figures_of_lines() -> None:
    labels = (1.0, 1, 1, -1, -1, -1, -1, -1)
    scores = (0.9, 0.8, 0.4, 0.1, -0.5, -0.9, -1.0, -1.0)
    found = of_lines([scores], [labels])
    assert found["mse"] == pytest.approx(0.235)
    assert found["auc"] == 1.0
    assert found["accuracy"] == pytest.approx(7 / 8)
    assert found["mse_of_mean"] == pytest.approx(np.var(labels))
    with_neutral = of_lines([(*scores, 0.5)], [(*labels, 0.0)])
    assert with_neutral["accuracy"] == found["accuracy"]
    assert with_neutral["mse"] == pytest.approx((8 * 0.235 + 0.25) / 9)


def test_a_calibrated_forecast_has_no_error() -> None:
    forecasts = np.array([0.25] * 4 + [0.75] * 4)
    outcomes = np.array([1.0, 0, 0, 0, 1, 1, 1, 0])
    found = calibration(forecasts, outcomes)
    assert found["ece"] == pytest.approx(0.0)
    assert found["brier"] == pytest.approx(0.1875)
    assert [part["count"] for part in found["bins"]] == [4, 4]
    assert calibration(np.array([1.0]), np.array([0.0]))["ece"] == 1.0


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_the_area_counts_pairs(points: list[tuple[int, bool]]) -> None:
    good = [score for score, is_good in points if is_good]
    bad = [score for score, is_good in points if not is_good]
    scores = np.array([score for score, _ in points], np.float64)
    found = area(scores, np.array([float(is_good) for _, is_good in points]))
    if not good or not bad:
        assert found is None
    else:
        wins = sum((g > b) + 0.5 * (g == b) for g in good for b in bad)
        assert found == pytest.approx(wins / (len(good) * len(bad)))


def test_single_numbers_of_nested_figures() -> None:
    found = flat(of_orders([(0.7, 0.5, 0.5)], weight=0.1))
    assert {"loss", "accuracy", "gap", "bias", "ece", "brier"} <= set(found)
    assert "bins" not in found
