"""Crossings, restricted means and intervals: golden numbers worked out by hand."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.kit.time_to_target import (
    Crossing,
    TimeToTarget,
    compare_times,
    crossing,
    interval,
    largest_fall,
    quotient,
    ratio_by_log,
    ratio_of_means,
    restricted_mean,
    smooth,
    survival,
    time_to,
)


def times(*values: float, censored: tuple[float, ...] = ()) -> list[TimeToTarget]:
    return [TimeToTarget(v, True) for v in values] + [TimeToTarget(v, False) for v in censored]


def test_the_largest_fall_is_from_the_best_so_far_on_the_smoothed_line() -> None:
    points = list(enumerate([0.2, 0.4, 0.6, 0.5, 0.1, 0.3, 0.6]))
    line = [value for _, value in smooth(points)]
    assert line == pytest.approx([0.3, 0.4, 0.5, 0.4, 0.3, 1 / 3, 0.45])
    assert largest_fall(points) == pytest.approx(0.2)
    assert largest_fall(points, until=3) == pytest.approx(0.1)
    assert largest_fall(points, until=2) == 0.0


def test_smoothing_is_the_mean_of_three_and_of_two_at_the_ends() -> None:
    points = [(0.0, 0.0), (1.0, 0.3), (2.0, 0.9), (4.0, 0.6)]
    found = smooth(points)
    assert [at for at, _ in found] == [0.0, 1.0, 2.0, 4.0]
    assert [value for _, value in found] == pytest.approx([0.15, 0.4, 0.6, 0.75])


def test_a_crossing_is_where_the_smoothed_line_reaches_the_target() -> None:
    points = [(10.0, 0.0), (11.0, 0.3), (12.0, 0.9), (14.0, 0.6)]
    # 0.15, 0.4, 0.6, 0.75 at 10, 11, 12, 14: 0.5 is half way from 11 to 12.
    assert crossing(points, 0.5) == Crossing(at=11.5, place=1.5, gap=2.0)
    found = crossing(points, 0.7)
    assert found is not None
    assert (found.at, found.place, found.gap) == pytest.approx((12 + 2 * 2 / 3, 2 + 2 / 3, 2.0))
    assert crossing(points, 0.8) is None
    assert crossing(points, 0.1) == Crossing(10.0, 0.0, 1.0)


def test_one_lucky_evaluation_is_no_crossing() -> None:
    points = [(float(i), 0.9 if i == 3 else 0.5) for i in range(8)]
    assert crossing(points, 0.8) is None


def test_a_run_without_a_crossing_was_seen_until_its_last_evaluation() -> None:
    """Its last update ended 18 s before the limit that ended the run."""
    evaluations = [[1, 20.0, 0.6, 9.0], [2, 130.0, 0.7, 9.0], [2, 180.15, 0.7, 9.0]]
    row = {"train_time_s": 162.37, "evaluations": evaluations}
    assert time_to(row, 0.8) == TimeToTarget(180.15, False)
    # The mean of the first two, 0.65 at 20 s, and of all three, 2 / 3 at 130 s.
    assert time_to(row, 0.66) == pytest.approx((20 + 110 * 0.6, True))


@pytest.mark.parametrize(("every", "dense"), [(1.0, True), (5.0, False)])
def test_evaluations_are_dense_when_a_tenth_of_the_time_lies_between(
    every: float, dense: bool
) -> None:
    points = [(20.0 + every * i, 0.1 * i) for i in range(10)]
    found = crossing(points, 0.35)
    assert found is not None
    assert found.is_dense == dense


def test_survival_is_that_of_kaplan_and_meier() -> None:
    # 46 and 49 of five, then one is lost from sight at 67, 71 of the two that are left, 90.
    found = survival(times(46, 49, 71, 90, censored=(67,)))
    assert [at for at, _ in found] == [46, 49, 71, 90]
    assert [share for _, share in found] == pytest.approx([0.8, 0.6, 0.3, 0.0])
    # Freireich's 6-mercaptopurine arm (Kaplan-Meier of every textbook): 0.857 after 6 weeks,
    # 0.807 after 7, 0.627 after 13, 0.448 after 23.
    weeks = times(6, 6, 6, 7, 10, 13, 16, 22, 23,
                  censored=(6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35))  # fmt: skip
    shares = dict(survival(weeks))
    golden = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    assert shares == {week: pytest.approx(share, abs=5e-4) for week, share in golden.items()}


def test_the_restricted_mean_is_the_plain_one_where_all_crossed() -> None:
    assert restricted_mean(times(10, 20, 60)) == pytest.approx(30.0)


def test_who_never_crossed_counts_at_least_with_its_whole_time() -> None:
    # 46 + 0.8 x 3 + 0.6 x 22 + 0.3 x 19
    found = restricted_mean(times(46, 49, 71, 90, censored=(67,)))
    assert found == pytest.approx(67.3)
    assert restricted_mean(times(censored=(40, 60))) == 60.0


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1, max_size=12))
def test_a_restricted_mean_lies_between_those_without_and_with_patience(
    runs: list[tuple[int, bool]],
) -> None:
    seen = [TimeToTarget(float(value), reached) for value, reached in runs]
    mean = sum(time.value for time in seen) / len(seen)
    longest = max(time.value for time in seen)
    assert mean - 1e-9 <= restricted_mean(seen) <= longest + 1e-9


def test_an_interval_holds_the_ratio_and_is_the_same_every_time() -> None:
    pairs = {
        seed: (TimeToTarget(30.0 + seed, True), TimeToTarget(10.0 + seed, True))
        for seed in range(5)
    }
    found = interval(pairs)
    assert found is not None
    low, high = found
    ratio = ratio_of_means(pairs.values())
    assert low < ratio < high
    assert interval(pairs) == found
    # The extremes are samples of one seed five times.
    assert low >= 34 / 14
    assert high <= 30 / 10


def test_an_interval_is_of_pairs() -> None:
    """Slow seeds are slow for both: the ratio is the same in each, and so in every resample."""
    pairs = {
        seed: (TimeToTarget(3.0 * 2**seed, True), TimeToTarget(1.0 * 2**seed, True))
        for seed in range(5)
    }
    same = interval(pairs)
    assert same is not None
    assert same == pytest.approx((3.0, 3.0))
    draw = random.Random(1)
    mixed = {
        s: (TimeToTarget(draw.uniform(20, 40), True), TimeToTarget(draw.uniform(5, 20), True))
        for s in pairs
    }
    found = interval(mixed)
    assert found is not None
    assert found[1] - found[0] > 0.5


def test_by_log_every_seed_counts_alike() -> None:
    """Of the quotients 2 and 8, the slow seed's decides the quotient of the means alone."""
    fast, slow = (TimeToTarget(2.0, True), TimeToTarget(1.0, True)), TimeToTarget(800.0, True)
    pairs = {1: fast, 2: (slow, TimeToTarget(100.0, True))}
    assert ratio_by_log(pairs.values()) == pytest.approx(4.0)
    assert interval(pairs, ratio_by_log) == pytest.approx((2.0, 8.0))
    assert ratio_of_means(pairs.values()) > 7.9


def test_who_never_crossed_is_not_ahead_of_who_crossed_after_its_end() -> None:
    """The first crosses at 190 s; the second never does, and its tokens are spent after 110 s."""
    late, never = TimeToTarget(190.0, True), TimeToTarget(110.0, False)
    assert quotient((late, never)) == quotient((never, late)) == 1.0
    # Who crossed while the other was seen without is ahead, by that time at least.
    early = TimeToTarget(44.0, True)
    assert quotient((early, never)) == pytest.approx(0.4)
    assert quotient((never, early)) == pytest.approx(2.5)
    # Of two that never crossed neither is ahead.
    assert quotient((never, TimeToTarget(300.0, False))) == 1.0
    pairs = {1: (late, never), 2: (late, early)}
    found = compare_times(pairs)
    assert found["ratio_of_seed"] == {1: 1.0, 2: pytest.approx(190 / 44)}
    assert found["log_ratio"] == pytest.approx(math.sqrt(190 / 44))
    assert (found["censored"], found["censored_sides"]) == (1, [0, 1])


def test_one_seed_has_no_interval() -> None:
    assert interval({1: (TimeToTarget(2.0, True), TimeToTarget(1.0, True))}) is None


def test_a_side_that_was_seen_for_less_time_is_not_faster_for_that() -> None:
    """100 s in each of five runs; the other side crossed once, at 58 s, and ended at 60 s."""
    slow, fast = times(*[100.0] * 5), times(58.0, censored=(60.0,) * 4)
    # Up to 60 s: 60 over 58 + 0.8 x 2.
    assert ratio_of_means(zip(slow, fast, strict=True)) == pytest.approx(60 / 59.6)
