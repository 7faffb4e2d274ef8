"""Rewards of lines: the golden cases of process rewards for code, and what always holds."""

from math import fsum, isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.line_rewards.process_rewards import (
    line_rewards,
    num_scored,
    on_account,
    settled,
)
from headrace.config.sections.reward import ProcessConfig
from headrace.protocol.records.record_types import LineScore
from headrace.protocol.token_spans import Reward

RATES = ProcessConfig(failing=0.25, passing=0.025)
GOLDEN = [LineScore(0, 0.8), LineScore(1, 0.6), LineScore(2, 0.0), LineScore(3, -0.4)]
"""Golden case 3: the third line is a comment that the case counts among its four lines."""


def values(rewards: list[Reward]) -> list[float]:
    return [reward.value for reward in rewards]


@pytest.mark.parametrize(
    ("passed", "lines", "total", "advantages"),
    [
        (False, [0.05, 0.0375, 0.0, -0.025], 0.0625, [0.0625, 0.0125, -0.025, -0.025]),
        (True, [0.005, 0.00375, 0.0, -0.0025], 1.00625, [1.00625, 1.00125, 0.9975, 0.9975]),
    ],
)
def test_golden_case_3(
    passed: bool, lines: list[float], total: float, advantages: list[float]
) -> None:
    """Nothing was paid before the end, so every line has the formula's own reward."""
    earned = settled(GOLDEN, [], RATES, passed=passed, payable=range(4), last=3)
    assert values(earned) == pytest.approx(lines)
    earned.append(Reward(float(passed), 3))
    assert fsum(values(earned)) == pytest.approx(total)
    # With V = 0 and gamma = lambda = 1 an advantage is what is still to come.
    later = [fsum(r.value for r in earned if r.position >= at) for at in range(4)]
    assert later == pytest.approx(advantages)


def test_golden_case_4_more_lines_do_not_pay() -> None:
    """Eight lines of 0.8 earn what four earn; without the division they would earn twice as
    much."""
    for count in (4, 8):
        lines = [LineScore(at, 0.8) for at in range(count)]
        assert fsum(values(line_rewards(lines, 0.25, count))) == pytest.approx(0.2)
        assert fsum(values(line_rewards(lines, 0.25, 1))) == pytest.approx(0.2 * count)


def test_a_neutral_line_earns_nothing_and_is_not_counted() -> None:
    lines = [LineScore(3, 1.0), LineScore(7, None), LineScore(9, 0.5)]
    assert num_scored(lines) == 2
    assert settled(lines, [], RATES, passed=False, payable=range(10), last=9) == [
        Reward(0.125, 3), Reward(0.0625, 9),
    ]  # fmt: skip


def test_on_account_divides_by_the_lines_that_are_expected_or_more() -> None:
    lines = [LineScore(3, 1.0), LineScore(7, None)]
    assert on_account(lines, RATES, so_far=2, expected=10) == [Reward(0.025, 3)]
    assert on_account(lines, RATES, so_far=5, expected=2.5) == [Reward(0.05, 3)]
    assert on_account(lines, RATES, so_far=0, expected=0.0) == [Reward(0.25, 3)]


def test_what_was_paid_too_much_is_paid_back_at_the_last_token() -> None:
    lines = [LineScore(3, 1.0), LineScore(7, 1.0)]
    paid = on_account(lines[:1], RATES, so_far=1, expected=1)
    earned = settled(lines, paid, RATES, passed=True, payable=range(4, 9), last=8)
    assert values(earned) == pytest.approx([0.0125, 0.0125 - 0.25])
    assert [r.position for r in earned] == [7, 8]


def test_a_line_that_came_too_late_for_its_own_token_is_paid_at_the_last() -> None:
    earned = settled([LineScore(3, 1.0)], [], RATES, passed=False, payable=range(4, 9), last=8)
    assert earned == [Reward(0.25, 8)]


score = st.none() | st.floats(-1, 1, allow_subnormal=False)


@given(
    scores=st.lists(score, max_size=12),
    windows=st.lists(st.integers(1, 4), max_size=8),
    trained=st.lists(st.booleans(), min_size=12, max_size=12),
    expected=st.floats(0, 20),
    passed=st.booleans(),
)
def test_all_rewards_together_are_always_the_formulas(
    scores: list[float | None],
    windows: list[int],
    trained: list[bool],
    expected: float,
    passed: bool,
) -> None:
    """However the lines fall into windows, whichever are paid on account, trained without a reward,
    or not paid before the end."""
    lines = [LineScore(10 * at, value) for at, value in enumerate(scores)]
    paid: list[Reward] = []
    taken: set[int] = set()
    begin = 0
    for number, size in enumerate(windows):
        part = lines[begin : begin + size]
        begin += size
        if trained[number]:  # without its rewards
            taken |= {line.position for line in part}
            continue
        so_far = num_scored(lines[:begin])
        paid += on_account(part, RATES, so_far=so_far, expected=expected)
        taken |= {line.position for line in part}
    last = 10 * len(lines) + 5
    payable = {line.position for line in lines} - taken
    earned = settled(lines, paid, RATES, passed=passed, payable=payable, last=last)
    assert not {r.position for r in earned} & taken, "a trained token's reward never changes"
    wanted = [s for s in scores if s is not None]
    total = (RATES.passing if passed else RATES.failing) * fsum(wanted) / max(len(wanted), 1)
    assert isclose(fsum(values(paid) + values(earned)), total, rel_tol=1e-9, abs_tol=1e-12)
