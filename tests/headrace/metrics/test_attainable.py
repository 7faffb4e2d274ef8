"""The attainable share of returns."""

import numpy as np
import pytest

from headrace.metrics.attainable import attainable, attainable_interval


def test_a_prefix_that_decides_all_leaves_nothing() -> None:
    assert attainable([(0, [1.0, 1.0]), (1, [0.0, 0.0])]) == 1.0
    assert np.isnan(attainable([(0, [1.0, 1.0]), (1, [1.0, 1.0])]))


def test_golden() -> None:
    """Within: variances 1/2 and 0, so 1/4 on average; of 0, 1, 1, 1 it is 3/16."""
    assert attainable([(0, [0.0, 1.0]), (1, [1.0, 1.0])]) == pytest.approx(1 - (1 / 4) / (3 / 16))


def test_it_finds_the_share_that_was_put_in() -> None:
    """Returns are a prefix's own mean and noise, of variances 0.36 and 0.64."""
    draw = np.random.default_rng(0)
    prefixes = [
        (i // 3, (0.6 * mean + 0.8 * draw.normal(size=4)).tolist())
        for i, mean in enumerate(draw.normal(size=3000))
    ]
    share = attainable(prefixes)
    low, high = attainable_interval(prefixes[:300])
    assert share == pytest.approx(0.36, abs=0.03)
    assert low < 0.36 < high
    assert high - low > 0.05
