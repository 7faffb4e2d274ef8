"""Monitors of rewards and their alerts: golden figures, and one alert a crossing."""

from typing import Any

import numpy as np
import pytest

from coordinator.incidents.alerts import MeanEstimate, RewardAlerts, RewardStatistics, estimate
from coordinator.incidents.reward_monitors import RewardMonitors, surprise
from headrace.config.sections.reward import RewardConfig
from headrace.config.sections.reward_monitors import AlertConfig
from headrace.metrics.health_ranges import MIN_UPDATES_BACK
from headrace.metrics.registry import METRICS, pattern_of
from headrace.protocol.records.record_types import AuditArrived, RewardArrived
from headrace.trajectory.trajectories import Trajectory
from tests.coordinator.world import World, make_config

TWO = {"math": {"kind": "math"}, "judge": {"kind": "function", "function": "m:f"}}


class Watched:
    """Monitors of two sources, and answers to score."""

    def __init__(self, **alerts: Any) -> None:
        config = RewardConfig.model_validate({"sources": TWO, "alerts": alerts})
        self.alerts: list[str] = []
        self.monitors = RewardMonitors(config, self.alert)
        self.world = World(make_config(schedule={"num_generations": 1}))

    def alert(self, kind: str, text: str) -> None:
        assert kind == "reward_alert"
        self.alerts.append(text)

    def answer(self, tokens: int) -> Trajectory:
        (trajectory,) = self.world.issue()
        self.world.lease(trajectory)
        self.world.chunk(trajectory, tokens, finish="stop")
        return trajectory

    def score(self, source: str, reward: float | None, tokens: int = 3) -> None:
        """One more answer; its tokens have logprobs of -0.5."""
        trajectory = self.answer(tokens)
        arrived = RewardArrived(
            at=0.0, trajectory_id=trajectory.trajectory_id, source=source, seconds=0.25,
            status="ok" if reward is not None else "timeout", reward=reward,
        )  # fmt: skip
        self.monitors.scored(trajectory, arrived)

    def audit(self, source: str, reward: float, truth: float | None) -> None:
        arrived = AuditArrived(
            at=0.0, trajectory_id=0, source="math",
            status="ok" if truth is not None else "crashed", reward=truth,
        )  # fmt: skip
        self.monitors.audited(source, reward, arrived)


def test_golden_gap_of_four_audits() -> None:
    watched = Watched()
    for proxy, truth in zip([0.9, 0.8, 0.95, 0.85], [1.0, 0.0, 1.0, 0.0], strict=True):
        watched.audit("judge", proxy, truth)
    watched.audit("judge", 0.5, None)
    made = watched.monitors.at_commit()
    assert made["rewards/judge/gap"] == pytest.approx(0.375)
    assert made["rewards/judge/audited_mean"] == pytest.approx(0.5)
    assert (made["rewards/judge/audits"], made["rewards/judge/audits_failed"]) == (5, 0.2)
    assert "rewards/math/gap" not in made


def test_figures_of_a_source_are_its_own_and_begin_anew() -> None:
    watched = Watched()
    for reward, tokens in ((1.0, 8), (0.0, 2), (1.0, 6), (None, 4)):
        watched.score("judge", reward, tokens)
    watched.score("math", 1.0)
    watched.monitors.spread("judge", 4)
    watched.monitors.spread("judge", 6)
    watched.monitors.queues = lambda: {"judge": 3, "math": 0}
    made = watched.monitors.at_commit()
    assert {name: made[f"rewards/judge/{name}"] for name in ("count", "failed", "seconds")} == {
        "count": 4, "failed": 0.25, "seconds": 0.25,
    }  # fmt: skip
    assert made["rewards/judge/mean"] == pytest.approx(2 / 3)
    assert made["rewards/judge/length"] == 5
    assert made["rewards/judge/entropy_estimate"] == pytest.approx(0.5)
    assert made["rewards/judge/edit_distance"] == 5
    assert made["rewards/judge/queue"] == 3
    expected = np.corrcoef([8, 2, 6], [1, 0, 1])[0, 1]
    assert made["rewards/judge/length_correlation"] == pytest.approx(expected)
    assert made["rewards/math/count"] == 1
    assert "rewards/math/length_correlation" not in made
    assert {pattern_of(name) for name in made} <= METRICS.keys()
    again = watched.monitors.at_commit()
    assert again["rewards/judge/count"] == 0
    assert "rewards/judge/mean" not in again
    assert again["rewards/judge/length_correlation"] == pytest.approx(expected)


def test_rewards_that_do_not_vary_have_no_correlation() -> None:
    watched = Watched()
    for tokens in (2, 5, 7):
        watched.score("judge", 0.1, tokens)
    assert "rewards/judge/length_correlation" not in watched.monitors.at_commit()


def test_surprise_is_an_unbiased_estimate_of_the_entropy_of_an_answer() -> None:
    p = np.array([0.5, 0.25, 0.25], np.float32)
    entropy = float(-(p * np.log(p)).sum())
    drawn = np.random.default_rng(0).choice(3, size=(20_000, 2), p=p)
    found = np.mean([surprise(np.log(p)[answer]) for answer in drawn])
    assert found == pytest.approx(2 * entropy, rel=0.01)
    assert surprise(np.array([-0.5, -np.inf, np.nan, 0.0], np.float32)) == 0.5


def test_a_growing_gap_is_told_once_for_each_crossing() -> None:
    watched = Watched(answers=64)

    def audits(number: int, gap: float) -> None:
        for i in range(number):
            truth = float(i % 2)
            watched.audit("judge", truth + gap, truth)
        watched.monitors.at_commit()

    audits(8, 0.0)
    for _ in range(3):
        audits(64, 0.2)
    assert len(watched.alerts) == 1
    assert watched.alerts[0].startswith("judge: its rewards exceed the audited ones by 0.200, and")
    audits(64, 0.0)
    audits(64, 0.4)
    assert len(watched.alerts) == 1, "back for a moment"
    for _ in range(MIN_UPDATES_BACK):
        audits(64, 0.0)
    assert len(watched.alerts) == 1
    audits(64, 0.4)
    assert len(watched.alerts) == 2


def test_length_that_pays_is_told_where_answers_grow() -> None:
    """From what they were once the long ones of a stream's beginning had ended, too."""
    watched = Watched(answers=16)
    for tokens in [1] * 16 + [2, 3] * 8:
        watched.score("judge", float(tokens), tokens)
    watched.monitors.at_commit()
    assert not watched.alerts, "length and reward go together, and answers do not grow"
    for tokens in (5, 6, 7, 8) * 4:
        watched.score("judge", float(tokens), tokens)
    watched.monitors.at_commit()
    (text,) = watched.alerts
    assert text.startswith("judge: reward and length go together (1.00) while answers grow, from ")
    assert "to 6 tokens" in text


def fixed(mean: float) -> MeanEstimate:
    return MeanEstimate(mean, 0.01, 100)


@pytest.mark.parametrize(
    ("alerts", "seen", "told"),
    [
        ({}, RewardStatistics(edit_distance=0.0), "answers of a prompt have become one"),
        ({}, RewardStatistics(edit_distance=0.5), ""),
        ({"edit_distance": None}, RewardStatistics(edit_distance=0.0), ""),
        ({}, RewardStatistics(entropy=0.009), "hardly tries"),
        ({}, RewardStatistics(entropy=0.01), ""),
        ({}, RewardStatistics(gap=fixed(0.3), first_gap=fixed(0.1)), "what is paid for"),
        ({}, RewardStatistics(gap=fixed(0.2), first_gap=fixed(0.1)), ""),
        ({}, RewardStatistics(gap=MeanEstimate(0.3, 0.2, 4), first_gap=fixed(0.1)), ""),
        ({"gap_rise": None}, RewardStatistics(gap=fixed(0.9), first_gap=fixed(0.1)), ""),
        ({}, RewardStatistics(), ""),
    ],
)
def test_each_rule_and_its_switch(
    alerts: dict[str, Any], seen: RewardStatistics, told: str
) -> None:
    texts = list(RewardAlerts(AlertConfig.model_validate(alerts)).judge("s", seen))
    assert len(texts) == bool(told)
    assert all(told in text for text in texts)


def test_what_was_not_seen_is_not_back_on_the_good_side() -> None:
    alerts = RewardAlerts(AlertConfig())
    one, many = RewardStatistics(edit_distance=0.0), RewardStatistics(edit_distance=3.0)
    seen = [one, *[RewardStatistics()] * MIN_UPDATES_BACK, one, *[many] * MIN_UPDATES_BACK, one]
    told = [len(list(alerts.judge("s", each))) for each in seen]
    assert told == [1, *[0] * MIN_UPDATES_BACK, 0, *[0] * MIN_UPDATES_BACK, 1]


def test_the_error_of_an_estimate() -> None:
    found = estimate([0.0, 1.0, 0.0, 1.0])
    assert found.mean == 0.5
    assert found.error == pytest.approx((1 / 3 / 4) ** 0.5)
    assert estimate([1.0]).error == float("inf")
