"""Draws by (seed, position)."""

import statistics

from generators.engine import mix, uniform
from generators.rollout.cpu_affinity import WorkTime

GOLDEN = [13559592256819170517, 3959813011084891817, 5994294346378712867]


def test_draws_are_uniform_and_do_not_repeat() -> None:
    draws = [uniform(seed, position) for seed in range(40) for position in range(250)]
    assert len(set(draws)) == len(draws)
    assert 0 <= min(draws) < max(draws) < 1
    assert abs(statistics.fmean(draws) - 0.5) < 0.01
    assert abs(statistics.pvariance(draws) - 1 / 12) < 0.003
    neighbours = [
        (uniform(s, p) - 0.5) * (uniform(s, p + 1) - 0.5) for s in range(40) for p in range(250)
    ]
    assert abs(statistics.fmean(neighbours)) < 0.004


def test_draws_never_change() -> None:
    assert [mix(0, 0), mix(1, 0), mix(0, 1)] == GOLDEN
    assert 0 <= mix(2**70, 5) < 2**64


def test_seconds_are_busy_paused_or_idle() -> None:
    now = 0.0
    spent = WorkTime(lambda: now)
    now = 2.0
    spent.set_live(True)
    now = 5.0
    spent.add_pause(0.5)
    now = 6.0
    spent.set_live(False)
    spent.add_pause(0.25)
    now = 7.0
    assert (spent.idle_s, spent.pause_s, spent.busy_s) == (3.0, 0.5, 3.5)
