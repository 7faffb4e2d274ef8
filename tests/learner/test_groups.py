"""Group advantages against golden numbers and one another."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.advantages import group_normalized, leave_one_out
from learner.groups import Baseline, Scale, group_advantages
from tests.learner.test_advantages import close, f64

ONE = torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("rewards", "population", "sample"),
    [
        ([1, -1, -1, -1], [1.7320508076, *[-0.5773502692] * 3], [1.5, -0.5, -0.5, -0.5]),
        ([1, 1, 1, -1], [0.5773502692] * 3 + [-1.7320508076], [0.5, 0.5, 0.5, -1.5]),
        ([1, 1, -1, -1], [1, 1, -1, -1], [0.8660254038] * 2 + [-0.8660254038] * 2),
        (
            [1, 0.5, -1, -1.75],
            [1.1832159566, 0.7324670208, -0.6197797868, -1.2959031906],
            [1.0246950766, 0.6343350474, -0.5367450401, -1.1222850839],
        ),
    ],
)
def test_golden_case_7(rewards: list[float], population: list[float], sample: list[float]) -> None:
    scales: tuple[tuple[Scale, list[float]], ...] = (
        ("population_std", population),
        ("sample_std", sample),
    )
    for scale, expected in scales:
        made = group_advantages(f64(rewards), ONE, baseline="mean", scale=scale)
        close(made, expected, atol=3e-6)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=12), st.integers(1, 4))
def test_it_agrees_with_the_named_functions(scores: list[float], size: int) -> None:
    rewards = f64(scores)
    groups = torch.arange(len(scores)) // size
    plain = group_advantages(rewards, groups, baseline="mean", scale="none")
    close(plain, group_normalized(rewards, groups, std="none").tolist(), atol=1e-12)
    scaled = group_advantages(rewards, groups, baseline="mean", scale="sample_std")
    close(scaled, group_normalized(rewards, groups).tolist(), atol=1e-12)
    others = group_advantages(rewards, groups, baseline="leave_one_out", scale="none")
    close(others, leave_one_out(rewards, groups).tolist(), atol=1e-12)
    alone = group_advantages(rewards, groups, baseline="none", scale="none")
    assert alone.tolist() == scores


def test_equal_scores_teach_nothing() -> None:
    baselines: tuple[Baseline, ...] = ("mean", "leave_one_out")
    for baseline in baselines:
        made = group_advantages(f64([0.1] * 4), ONE, baseline=baseline, scale="sample_std")
        assert made.tolist() == [0.0] * 4
