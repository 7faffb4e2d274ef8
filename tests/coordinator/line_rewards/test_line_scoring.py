"""Lines that are scored in time, late, never, or in vain, and what becomes of their windows."""

import random
from math import fsum
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.messages.batches import PolicyWindow
from headrace.protocol.records.record_types import LinesScored, Record, RewardArrived, WindowsReady
from headrace.protocol.token_spans import Reward
from headrace.trajectory.trajectories import Trajectory
from tests.coordinator.line_stage import DEADLINE_S, LineStage
from tests.coordinator.world import policy_windows, value_trajectories

ENDS = (1, 3, 6, 9)
"""Windows of 4: two lines end in the first one, one in the second, one in the third."""


def taken(stage: LineStage) -> list[PolicyWindow]:
    """The windows of the next batch, taken and trained."""
    prepared = stage.world.take()
    if prepared is None:
        return []
    stage.world.commit()
    return policy_windows(prepared)


def states(stage: LineStage) -> dict[int, str]:
    """What became of windows' lines, by their number in the only trajectory."""
    ready = [r for r in stage.world.records if isinstance(r, WindowsReady)]
    return {key & 0xFFFF: state for r in ready for key, state in r.lines.items()}


def outcome_of(trajectory: Trajectory, stage: LineStage) -> RewardArrived:
    (found,) = [r for r in stage.world.records if isinstance(r, RewardArrived)]
    assert found.trajectory_id == trajectory.trajectory_id
    return found


def pairs(rewards: list[Reward]) -> list[tuple[int, Any]]:
    return [(reward.position, pytest.approx(reward.value)) for reward in rewards]


def test_a_window_of_an_unfinished_answer_is_trained_with_what_its_lines_earned() -> None:
    stage = LineStage(ENDS)
    trajectory = stage.begin()
    stage.grow(trajectory, 4)
    (item,) = stage.ask()
    assert (item.unit, item.source, item.finished) == ("line", "lines", False)
    assert item.line_ends == [1, 3]
    assert item.lines == ["0 1\n", "2 3\n"]
    assert item.text == "0 1\n2 3\n"
    assert item.completion_ids is not None
    assert item.completion_ids.tolist() == [0, 1, 2, 3]
    assert item.prompt_ids is not None
    assert not stage.account.ready, "the window waits for its lines"
    stage.answer(item, 1.0, None)
    # 0.25 x 1.0 over the two lines that are expected; the other line is neutral.
    assert stage.scored()[-1].rewards == [Reward(0.125, 1)]
    (window,) = taken(stage)
    assert not window.finished
    assert window.rewards == [Reward(0.125, 1)]
    assert states(stage) == {0: "scored"}


def test_a_line_has_its_own_blanks() -> None:
    """Tokens of SmolLM2 hold a newline and blanks of the next line, and Llama 2's decoder drops a
    blank that a text begins with."""
    stage, words = LineStage(ENDS), ["if x:", "\n  ", " go", "\n"]
    prompts: Any = SimpleNamespace(
        decode=lambda ids: "".join(words[token] for token in ids).removeprefix(" ")
    )
    stage.scoring._items._prompts = prompts
    stage.grow(stage.begin(), 4)
    assert stage.ask()[0].lines == ["if x:\n", "   go\n"]


def test_the_last_token_settles_and_the_critic_sees_all_of_it() -> None:
    stage = LineStage(ENDS)
    trajectory = stage.begin()
    stage.grow(trajectory, 4)
    stage.answer(stage.ask()[0], 1.0, None)
    taken(stage)
    stage.grow(trajectory, 4)
    stage.grow(trajectory, 3, "stop")
    outcome, lines = stage.ask()
    assert (outcome.unit, lines.unit) == ("trajectory", "line")
    assert lines.line_ends == [6, 9, 10]
    assert lines.lines == ["4 5 6\n", "7 8 9\n", "10 "]
    assert stage.answer(outcome, reward=1.0, correct=True) == [], "its lines are being scored"
    assert stage.scoring.waiting() == 2
    assert stage.answer(lines, 0.6, -0.4, None) == [trajectory]
    assert stage.scoring.waiting() == 0
    # M = 3 lines that are not neutral, lambda = 0.025: 1/120 each for a score of 1.
    share = 0.025 / 3
    # Window 1 waited for its line, and the outcome was there when it came.
    assert pairs(trajectory.paid) == [(1, 0.125)]
    rest = share * 1.0 - 0.125
    record = outcome_of(trajectory, stage)
    assert (record.reward, record.correct, record.source) == (1.0, True, "outcome")
    assert pairs(record.rewards) == [
        (6, 0.6 * share), (9, -0.4 * share), (10, rest), (10, 1.0),
    ]  # fmt: skip
    assert fsum(r.value for r in trajectory.rewards) == pytest.approx(1.0 + share * 1.2)
    prepared = stage.world.take()
    assert prepared is not None
    stage.world.commit()
    last = stage.world.take()
    assert last is not None
    (window,) = policy_windows(last)
    assert (window.finished, window.correct) == (True, True)
    (value,) = value_trajectories(last)
    assert value.rewards == trajectory.rewards


def test_lines_that_are_scored_before_the_outcome_are_paid_on_account() -> None:
    stage = LineStage(ENDS)
    trajectory = stage.begin()
    stage.grow(trajectory, 4)
    stage.grow(trajectory, 3, "stop")
    outcome, lines = stage.ask()
    assert stage.answer(lines, 1.0, 1.0, -1.0) == []
    # The last window is not trained before the outcome is known; its line is not paid yet.
    assert pairs(trajectory.paid) == [(1, 0.25 / 3), (3, 0.25 / 3)]
    assert stage.answer(outcome, reward=0.0) == [trajectory]
    assert pairs(outcome_of(trajectory, stage).rewards) == [(6, -0.25 / 3), (6, 0.0)]


def test_a_late_window_is_trained_without_and_its_lines_are_settled_at_the_end() -> None:
    stage = LineStage(ENDS)
    trajectory = stage.begin()
    stage.grow(trajectory, 4)
    (item,) = stage.ask()
    stage.wait(DEADLINE_S - 0.1)
    assert not stage.account.ready
    stage.wait(0.1)
    assert states(stage) == {0: "late"}
    (window,) = taken(stage)
    assert window.rewards == []
    stage.answer(item, 1.0, 0.5)
    assert stage.scored()[-1].rewards == [], "no reward of a trained token changes"
    stage.grow(trajectory, 1, "stop")
    outcome, lines = stage.ask()
    stage.answer(lines, None)
    stage.answer(outcome, reward=0.0)
    assert pairs(outcome_of(trajectory, stage).rewards) == [(4, 0.25 * 1.5 / 2), (4, 0.0)]


def test_a_score_that_comes_before_a_late_window_is_taken_still_counts() -> None:
    stage = LineStage(ENDS)
    trajectory = stage.begin()
    stage.grow(trajectory, 4)
    (item,) = stage.ask()
    stage.wait(DEADLINE_S)
    stage.answer(item, 1.0, None)
    (window,) = taken(stage)
    assert window.rewards == [Reward(0.125, 1)]
    assert states(stage) == {0: "late"}, "it got ready without"
    assert trajectory.windows[0].lines == "late"


def test_a_failed_scoring_is_a_status_and_its_window_is_trained_without() -> None:
    stage = LineStage(ENDS)
    trajectory = stage.begin()
    stage.grow(trajectory, 4)
    stage.answer(stage.ask()[0], status="crashed", error="KeyError")
    (record,) = stage.scored()
    assert (record.status, record.error, record.through) == ("crashed", "KeyError", 4)
    assert (record.lines, record.rewards) == ([], [])
    assert (record.source, record.seconds) == ("lines", 0.25)
    assert states(stage) == {0: "failed"}
    assert stage.incidents == ["lines of trajectory 0: crashed by lines after 0.2 s: KeyError"]
    stage.grow(trajectory, 3, "stop")
    outcome, lines = stage.ask()
    assert lines.line_ends == [6], "what failed is not asked for again"
    stage.answer(lines, 1.0)
    stage.answer(outcome, reward=0.0)
    assert pairs(outcome_of(trajectory, stage).rewards) == [(6, 0.25), (6, 0.0)]


@pytest.mark.parametrize("given", [(), (1.0,), (1.0, 2.0, 3.0)])
def test_another_number_of_scores_than_lines_is_invalid(given: tuple[float, ...]) -> None:
    stage = LineStage(ENDS)
    stage.grow(stage.begin(), 4)
    stage.answer(stage.ask()[0], *given)
    (record,) = stage.scored()
    assert (record.status, record.error) == ("invalid", f"{len(given)} scores for 2 lines")
    assert states(stage) == {0: "failed"}


def test_a_score_that_is_not_finite_is_invalid() -> None:
    stage = LineStage(ENDS)
    stage.grow(stage.begin(), 4)
    stage.answer(stage.ask()[0], 1.0, float("nan"))
    assert stage.scored()[-1].status == "invalid"


def test_lines_that_nobody_ever_scores_hold_an_outcome_no_longer_than_their_deadline() -> None:
    stage = LineStage(ENDS)
    trajectory = stage.begin()
    stage.grow(trajectory, 3, "stop")
    outcome, _ = stage.ask()
    assert stage.answer(outcome, reward=1.0) == []
    assert stage.wait(DEADLINE_S / 2) == []
    assert stage.wait(DEADLINE_S / 2) == [trajectory]
    assert outcome_of(trajectory, stage).rewards == [Reward(1.0, 2)]
    assert states(stage) == {0: "late"}
    (window,) = taken(stage)
    assert window.finished


def test_an_outcome_that_failed_waits_for_nothing() -> None:
    stage = LineStage(ENDS)
    trajectory = stage.begin()
    stage.grow(trajectory, 3, "stop")
    outcome, lines = stage.ask()
    assert stage.answer(outcome, status="timeout") == [trajectory]
    assert trajectory.windows[0].state == "dropped"
    stage.answer(lines, 1.0, 1.0)
    assert stage.scored()[-1].rewards == []


def test_windows_before_a_failed_outcome_still_get_what_their_lines_earn() -> None:
    stage = LineStage(ENDS)
    trajectory = stage.begin()
    stage.grow(trajectory, 4)
    stage.grow(trajectory, 2, "stop")
    outcome, lines = stage.ask()
    stage.answer(outcome, status="crashed")
    assert [w.state for w in trajectory.windows] == ["closed", "dropped"]
    stage.answer(lines, 1.0, 1.0, 1.0)
    assert [w.state for w in trajectory.windows] == ["ready", "dropped"]
    (window,) = taken(stage)
    assert [r.position for r in window.rewards] == [1, 3]


def test_windows_get_ready_in_order() -> None:
    """One without lines waits for those before it, and for nothing else."""
    stage = LineStage((5,))
    trajectory = stage.begin()
    stage.grow(trajectory, 4)
    assert [w.state for w in trajectory.windows] == ["ready"]
    stage.grow(trajectory, 4)
    stage.now += 1.0
    stage.grow(trajectory, 4)
    assert [w.state for w in trajectory.windows] == ["ready", "closed", "closed"]
    stage.wait(DEADLINE_S - 1.0)
    assert [w.state for w in trajectory.windows] == ["ready", "ready", "ready"]
    assert states(stage) == {1: "late"}


def test_one_question_about_a_trajectory_is_out_at_a_time() -> None:
    stage = LineStage(ENDS)
    trajectory = stage.begin()
    stage.grow(trajectory, 4)
    (first,) = stage.ask()
    stage.grow(trajectory, 4)
    stage.grow(trajectory, 4)
    assert stage.ask() == []
    stage.answer(first, 1.0, 1.0)
    (second,) = stage.ask()
    assert second.line_ends == [6, 9], "what closed meanwhile goes together"


def test_what_a_lost_worker_was_asked_goes_to_the_next_one() -> None:
    stage = LineStage(ENDS)
    stage.grow(stage.begin(), 4)
    (first,) = stage.ask()
    worker = stage.peers.rewards["reward-0"]
    stage.scoring.forget_worker("reward-0")
    assert stage.ask() == []
    stage.scoring.join(worker.hello)
    (again,) = stage.ask()
    assert again.line_ends == first.line_ends


@pytest.mark.parametrize("unit", ["trajectory", "group"])
def test_where_nothing_is_trained_before_the_end_each_line_has_the_formulas_reward(
    unit: str,
) -> None:
    stage = LineStage(ENDS, schedule={"unit": unit})
    trajectory = stage.begin()
    stage.grow(trajectory, 4)
    stage.answer(stage.ask()[0], 0.8, 0.6)
    assert stage.scored()[-1].rewards == []
    stage.grow(trajectory, 6, "stop")
    outcome, lines = stage.ask()
    stage.answer(lines, 0.0, -0.4)
    stage.answer(outcome, reward=0.0)
    wanted = [(1, 0.05), (3, 0.0375), (6, 0.0), (9, -0.025), (9, 0.0)]
    assert pairs(trajectory.rewards) == wanted
    assert set(states(stage).values()) == {"scored"}


def test_evaluations_have_no_lines() -> None:
    stage = LineStage(ENDS)
    (trajectory,) = stage.world.issue("eval")
    stage.world.lease(trajectory)
    stage.grow(trajectory, 5, "stop")
    (item,) = stage.ask()
    assert item.unit == "trajectory"
    stage.answer(item, reward=1.0, correct=True)
    assert outcome_of(trajectory, stage).rewards == []


def test_without_a_configured_number_the_mean_of_the_last_answers_is_expected() -> None:
    stage = LineStage(ENDS, process={"lines": None})
    first = stage.begin()
    stage.grow(first, 4)
    stage.answer(stage.ask()[0], 1.0, None)
    assert first.paid == [Reward(0.25, 1)], "nobody knows better than one line so far"
    stage.grow(first, 6, "stop")
    outcome, lines = stage.ask()
    stage.answer(lines, 1.0, 1.0)
    stage.answer(outcome, reward=0.0)
    second = stage.begin()
    stage.grow(second, 4)
    stage.answer(stage.ask()[0], 1.0, None)
    assert pairs(second.paid) == [(1, 0.25 / 3)]
    stage.restart()
    third = stage.begin()
    stage.grow(third, 4)
    stage.answer(stage.ask()[0], 1.0, None)
    assert pairs(third.paid) == [(1, 0.25 / 3)], "a successor knows them, too"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from(["window", "trajectory"]))
def test_whatever_happens_the_total_is_the_formulas_and_trained_rewards_stay(
    seed: int, unit: str
) -> None:
    """Answers of chance, lines scored in time, late, failed or never, batches trained, given back,
    rolled back, a coordinator that dies with its workers: in the end the replay agrees."""
    rng = random.Random(seed)
    ends = [token for token in range(60) if rng.random() < 0.3]
    schedule = {"unit": unit, "batch_windows": rng.choice([1, 2])}
    stage = LineStage(ends, schedule=schedule)
    trained = stage.play(rng, rng.randrange(20, 60))
    world = stage.world
    for window_id, rewards in trained.items():
        window = world.account.window(window_id)
        if window.state != "trained":  # rolled back
            continue
        trajectory = world.account.trajectories[window.trajectory_id]
        inside = [r for r in trajectory.rewards if window.start <= r.position < window.end]
        assert inside == rewards, "what was trained with is what stands there"
    for trajectory in world.account.trajectories.values():
        if trajectory.reward_status == "ok":
            at = [r for r in world.records if isinstance(r, RewardArrived)]
            (record,) = [r for r in at if r.trajectory_id == trajectory.trajectory_id]
            before = world.records[: world.records.index(record)]
            known = _scores_in(before, trajectory.trajectory_id)
            rate = 0.025 if record.correct else 0.25
            assert record.reward is not None
            wanted = record.reward + rate * fsum(known) / max(len(known), 1)
            assert fsum(r.value for r in trajectory.rewards) == pytest.approx(wanted)
    replayed = world.replayed().account
    assert replayed.trajectories.keys() == world.account.trajectories.keys()
    for key, trajectory in world.account.trajectories.items():
        other = replayed.trajectories[key]
        assert other.rewards == trajectory.rewards
        assert other.paid == trajectory.paid
        assert (other.lines, other.lines_through) == (trajectory.lines, trajectory.lines_through)
        assert [w.lines for w in other.windows] == [w.lines for w in trajectory.windows]
    assert replayed.ledger == world.account.ledger


def _scores_in(records: list[Record], trajectory_id: int) -> list[float]:
    """Scores that are not neutral of a trajectory's lines in some records."""
    return [
        line.score
        for r in records
        if isinstance(r, LinesScored) and r.trajectory_id == trajectory_id
        for line in r.lines
        if line.score is not None
    ]
