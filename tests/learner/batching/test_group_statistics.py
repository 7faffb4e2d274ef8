"""Group advantages against golden numbers and one another."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.batching.group_statistics import Baseline, Scale, group_advantages
from tests.learner import reference
from tests.learner.algorithms.test_advantages import close, f64

EPS = 1e-6


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
        (
            [1] * 4 + [-1] * 12,
            [1.7320508076] * 4 + [-0.5773502692] * 12,
            [1.6770509831] * 4 + [-0.5590169944] * 12,
        ),
    ],
)
def test_golden_case_7(rewards: list[float], population: list[float], sample: list[float]) -> None:
    """Its numbers have no epsilon in the denominator; ours are smaller by std / (std + 1e-6)."""
    one = torch.zeros(len(rewards), dtype=torch.int64)
    scales: tuple[tuple[Scale, list[float]], ...] = (
        ("population_std", population),
        ("sample_std", sample),
    )
    for scale, expected in scales:
        made = group_advantages(f64(rewards), one, baseline="mean", scale=scale)
        spread = f64(rewards).std(correction=int(scale == "sample_std")).item()
        close(made, [x * spread / (spread + EPS) for x in expected], atol=1e-10)
        twin = reference.group_normalized(rewards, bessel=scale == "sample_std", eps=EPS)
        close(made, twin, atol=1e-12)


def test_golden_case_7_with_epsilon() -> None:
    one = torch.zeros(4, dtype=torch.int64)
    made = group_advantages(f64([1, -1, -1, -1]), one, baseline="mean", scale="sample_std")
    close(made, [1.4999985] + [-0.4999995] * 3, atol=1e-11)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=12), st.integers(1, 4))
def test_it_equals_the_papers_formulas_group_by_group(scores: list[float], size: int) -> None:
    """Members of a group need not stand together, and its number may be any."""
    rewards, groups = f64(scores), 7 - torch.arange(len(scores)) % size
    kinds: list[tuple[Baseline, Scale]]
    kinds = [("mean", "none"), ("mean", "sample_std"), ("leave_one_out", "none")]
    plain, scaled, others = (
        group_advantages(rewards, groups, baseline=baseline, scale=scale)
        for baseline, scale in kinds
    )
    for name in groups.unique():
        mine = groups == name
        alone = rewards[mine].tolist()
        close(plain[mine], [x - sum(alone) / len(alone) for x in alone], atol=1e-12)
        close(scaled[mine], reference.group_normalized(alone, bessel=True, eps=EPS), atol=1e-12)
        close(others[mine], reference.leave_one_out(alone), atol=1e-12)
    bare = group_advantages(rewards, groups, baseline="none", scale="none")
    assert bare.tolist() == scores


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["sample_std", "population_std", "none"])
@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("score", [0.1, -0.1])
def test_equal_scores_teach_nothing(
    baseline: Baseline, scale: Scale, size: int, score: float
) -> None:
    """The mean of three 0.1 is not 0.1 in float64; and one response has nothing to compare with."""
    one = torch.zeros(size, dtype=torch.int64)
    made = group_advantages(f64([score] * size), one, baseline=baseline, scale=scale)
    assert made.tolist() == [0.0] * size
