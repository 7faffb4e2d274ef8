"""The audited share: a second source scores it too, and nothing waits for that or trains on it."""

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.scoring.group_diversity import chosen
from coordinator.scoring.score_requests import Scoring
from headrace.protocol.messages.control import Score, ScoreItem, Scores
from headrace.protocol.records.record_types import AuditArrived, RewardArrived
from headrace.trajectory.trajectories import Trajectory
from tests.coordinator.scoring.test_score_requests import CHAT, Front

SOURCES = {"judge": {"kind": "function", "function": "m:f"}, "truth": {"kind": "exact"}}
TO_JUDGE, TO_TRUTH = '{"of": "judge"}', '{"of": "truth"}'


def audited(share: float = 1.0, seed: int = 0, **reward: Any) -> Front:
    audit = {"source": "truth", "share": share, "seed": seed}
    return Front(sources=SOURCES, route={"column": "of"}, audit=audit, **reward)


def say(front: Front, item: ScoreItem, reward: float, status: Any = "ok") -> list[Trajectory]:
    """The worker's answer to an item."""
    score = Score(
        trajectory_id=item.trajectory_id, status=status, reward=reward, audit=item.audit,
        correct=reward > 0.5, error="broken" if status != "ok" else None, source=item.source,
    )  # fmt: skip
    return front.scoring.receive("reward-0", Scores(scores=[score]))


def rewarded(front: Front, answers: int) -> None:
    """So many answers that the judge scored."""
    for _ in range(answers):
        front.finish(info=TO_JUDGE)
    for item in front.dispatch():
        say(front, item, 1.0)


def records(front: Front) -> list[AuditArrived]:
    return [r for r in front.world.records if isinstance(r, AuditArrived)]


def test_an_audit_follows_the_reward_and_changes_nothing_else() -> None:
    front = audited()
    front.finish(info=TO_JUDGE)
    (item,) = front.dispatch()
    assert (item.source, item.audit) == ("judge", False)
    assert front.scoring.in_flight() == {"judge": 1, "truth": 0}
    assert front.monitors.gauges()["rewards/judge/in_flight"] == 1
    assert front.dispatch() == []
    assert len(say(front, item, 0.9)) == 1
    (second,) = front.dispatch()
    assert (second.trajectory_id, second.source, second.audit) == (0, "truth", True)
    assert front.scoring.waiting() == 0
    assert front.scoring.queues() == {"judge": 0, "truth": 1}
    before = front.account.trajectories[0]
    state = (before.reward, before.correct, before.rewards, before.value, before.windows)
    assert say(front, second, 0.0) == []
    after = front.account.trajectories[0]
    assert (after.reward, after.correct, after.rewards, after.value, after.windows) == state
    assert after.audit_status == "ok"
    (record,) = records(front)
    assert (record.source, record.reward, record.correct) == ("truth", 0.0, False)
    assert front.monitors.at_commit()["rewards/judge/gap"] == pytest.approx(0.9)
    assert front.scoring.queues() == {"judge": 0, "truth": 0}


def test_a_judge_that_audits_sees_the_chat_of_a_prompt() -> None:
    sources = {"truth": {"kind": "exact"}, "judge": {"kind": "judge"}}
    audit = {"source": "judge", "share": 1.0}
    front = Front(sources=sources, route={"default": "truth"}, audit=audit)
    front.finish()
    (item,) = front.dispatch()
    say(front, item, 1.0)
    (second,) = front.dispatch()
    assert (second.source, second.audit) == ("judge", True)
    assert (item.messages, second.messages) == ("", CHAT)


def test_prompts_of_the_audits_own_source_and_failed_rewards_have_no_audit() -> None:
    front = audited()
    for info in (TO_TRUTH, TO_JUDGE):
        front.finish(info=info)
    for item in front.dispatch():
        say(front, item, 1.0, "ok" if item.source == "truth" else "timeout")
    assert front.dispatch() == []


def test_the_share_goes_by_the_prompts_id_and_the_seed() -> None:
    """All of the scripted prompts are called p: all or none of them are audited."""
    for seed in range(40):
        front = audited(share=0.5, seed=seed, batch=8)
        rewarded(front, 2)
        assert len(front.dispatch()) == (2 if chosen(f"{seed}/p", 0.5) else 0)


def test_failed_audits_stop_nothing_and_are_told_once_in_a_row() -> None:
    front = audited(batch=64, max_consecutive_failures=2)
    rewarded(front, 6)
    audits = front.dispatch()
    for number, item in enumerate(audits):
        say(front, item, 1.0, "ok" if number == 3 else "crashed")
    assert front.failed is None
    assert front.incidents == ["audit_failed", "audit_failed"]
    assert [r.status for r in records(front)] == ["crashed"] * 3 + ["ok"] + ["crashed"] * 2
    assert front.monitors.at_commit()["rewards/judge/audits_failed"] == pytest.approx(5 / 6)


def test_audits_of_a_lost_worker_go_to_the_next() -> None:
    front = audited(batch=64)
    rewarded(front, 3)
    first = front.dispatch()
    worker = front.peers.rewards["reward-0"]
    front.scoring.forget_worker("reward-0")
    front.scoring.join(worker.hello)
    again = front.dispatch()
    assert [item.trajectory_id for item in again] == [item.trajectory_id for item in first]
    assert all(item.audit for item in again)


def test_what_was_not_asked_for_is_ignored() -> None:
    front = audited()
    front.finish(info=TO_JUDGE)
    (item,) = front.dispatch()
    say(front, item, 1.0)
    (second,) = front.dispatch()
    say(front, second, 0.0)
    say(front, second, 1.0)
    assert len(records(front)) == 1
    assert front.rejections.counts["score_not_asked"] == 1


def test_a_forgotten_answer_is_passed_over_and_its_late_score_still_on_record() -> None:
    front = audited(batch=64)
    rewarded(front, 2)
    del front.account.trajectories[0]
    (item,) = front.dispatch()
    del front.account.trajectories[1]
    say(front, item, 0.0)
    assert [r.trajectory_id for r in records(front)] == [1]
    assert "rewards/judge/gap" not in front.monitors.at_commit()


def test_a_replay_knows_what_was_audited_and_an_audit_outlives_its_trajectory() -> None:
    front = audited()
    front.finish(info=TO_JUDGE)
    (item,) = front.dispatch()
    say(front, item, 1.0)
    (second,) = front.dispatch()
    say(front, second, 0.0)
    state = front.world.replayed()
    assert state.account.trajectories[0].audit_status == "ok"
    front.world.account.apply(
        AuditArrived(at=0.0, trajectory_id=99, source="truth", status="ok", reward=1.0)
    )
    assert 99 not in front.world.account.trajectories


def test_a_coordinator_that_takes_over_audits_what_is_still_to_be_audited() -> None:
    front = audited(batch=64)
    rewarded(front, 2)
    first, _ = front.dispatch()
    say(front, first, 1.0)
    front.world.restart()
    again = audited(batch=64)
    again.world, again.account = front.world, front.world.account
    hub: Any = again
    prompts: Any = SimpleNamespace(decode=str)
    again.scoring = Scoring(hub, prompts)
    for trajectory in again.account.trajectories.values():
        again.scoring.add(trajectory)
    (item,) = again.dispatch()
    assert (item.trajectory_id, item.audit) == (1, True)
    assert [r for r in front.world.records if isinstance(r, RewardArrived)]
