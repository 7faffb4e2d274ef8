"""Statistics of a sampler's logprobs: golden rows, and windows against whole answers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.trajectory.logprob_statistics import START, before_each, state_after


def test_golden() -> None:
    """Least, unlikely ones, whether any, sum over 10, the last two: before each and behind."""
    rows = before_each(np.array([-0.5, -2.0, np.nan, -9.0], np.float32), START)
    assert rows.tolist() == [
        pytest.approx(row)
        for row in (
            [0.0, 0, 0, 0.0, 0.0, 0.0],
            [-0.5, 0, 0, -0.05, -0.5, 0.0],
            [-2.0, 1, 1, -0.25, -2.0, -0.5],
            [-2.0, 1, 1, -0.25, 0.0, -2.0],
            [-8.0, 2, 1, -1.15, -8.0, 0.0],
        )
    ]


@given(
    st.lists(st.floats(-30, 0, width=32) | st.just(float("nan")), max_size=40),
    st.integers(0, 40),
)
def test_windows_have_those_of_the_whole_answer(logprobs: list[float], cut: int) -> None:
    whole, cut = np.array(logprobs, np.float32), min(cut, len(logprobs))
    first, second = np.split(whole, [cut])
    rows = before_each(whole, START)
    np.testing.assert_allclose(before_each(first, START)[:-1], rows[:cut])
    np.testing.assert_allclose(before_each(second, state_after(first)), rows[cut:], rtol=1e-6)


@given(st.lists(st.floats(-30, 0, width=32), min_size=1, max_size=20), st.data())
def test_what_stands_before_a_token_does_not_depend_on_it(
    logprobs: list[float], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(logprobs) - 1))
    other = [*logprobs[:place], -7.0, *logprobs[place + 1 :]]
    one, two = (before_each(np.array(x, np.float32), START) for x in (logprobs, other))
    np.testing.assert_array_equal(one[: place + 1], two[: place + 1])
