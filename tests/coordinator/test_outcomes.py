"""No window's advantages come from a critic that has seen how its answer ends, over whole runs."""

import random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coordinator.training.replayed_batch import sent_batch
from headrace.config.preflight.checks import problems
from headrace.config.validation.batch_rules import batch_rules
from headrace.protocol.records.record_types import (
    BatchReturned,
    BatchTaken,
    CheckpointWritten,
    Forgotten,
    LineageBegan,
    Record,
    UpdateCommitted,
)
from headrace.protocol.token_spans import Reward, Streams
from headrace.trajectory.windows import trajectory_of
from tests.coordinator.world import (
    World,
    counts,
    make_config,
    policy_windows,
    value_trajectories,
)

LIMIT = 12
"""Longest answer."""


def play(world: World, seed: int, steps: int, *, deaths: float) -> None:
    """A stream of answers with random lengths, late and failed scores, skipped updates, and now and
    then a learner that goes back to an earlier update or a coordinator that dies."""
    rng, checkpoint = random.Random(seed), 0
    late: list[int] = []
    for _ in range(steps):
        world.fill(10 - len(world.leased()))
        live = world.leased()
        for trajectory in rng.sample(live, min(4, len(live))):
            goal = random.Random(f"{seed} {trajectory.trajectory_id}").randint(1, LIMIT)
            border = trajectory.open_start + world.config.window
            end = rng.randint(trajectory.length + 1, min(goal, border))
            stops = end == border and world.scheduler.stops_at_border()
            finish = "stop" if end == goal else "window" if stops else None
            world.chunk(trajectory, end - trajectory.length, finish)
            if end == goal:
                late.append(trajectory.trajectory_id)
            elif finish is None and world.must_hold(trajectory):
                world.chunk(trajectory, 0, "held")
        for key in rng.sample(late, rng.randint(0, len(late))):
            late.remove(key)
            score = rng.choice([0.0, 1.0, 1.0, 1.0, None])
            world.reward(world.account.trajectories[key], score)
        if world.account.taken is None:
            world.take()
        elif rng.random() < 0.7:
            trains, skipped = bool(world.taken().windows), rng.random() < 0.1
            world.commit(skipped="nan" if skipped else None, publish=trains)
            if rng.random() < 0.1:
                checkpoint = world.state.update
                world.note(CheckpointWritten(at=0.0, update=checkpoint, lineage=0, path="p"))
                world.note(Forgotten(at=0.0, update=checkpoint))
        if rng.random() < deaths:
            committed = world.state.update - (world.account.taken is not None)
            world.roll_back(rng.randint(checkpoint, committed))
        if rng.random() < deaths:
            world.restart()


class Critic:
    """Which outcomes the value model's weights have seen, update by update, on the surviving line
    of weights: told from the records alone, by nothing but their order."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        """Trajectory: the update whose value half held it."""
        self.out: BatchTaken | None = None
        self.windows = 0

    def see(self, record: Record) -> None:
        """One record; AssertionError where a window comes too late."""
        match record:
            case BatchTaken():
                self.out = record
                for item in record.windows:
                    key, index = trajectory_of(item.window_id)
                    assert key not in self.seen, (
                        f"window {index} of trajectory {key} is taken by update {record.update}, "
                        f"and the critic saw its end in update {self.seen[key]}"
                    )
                    self.windows += 1
            case UpdateCommitted() if self.out is not None:
                if record.skipped is None:
                    self.seen |= dict.fromkeys(self.out.value_trajectories, record.update)
                self.out = None
            case BatchReturned():
                self.out = None
            case LineageBegan():
                self.seen = {key: u for key, u in self.seen.items() if u <= record.update}


RUNS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["streaming", "streaming", "streaming", "windowed"]),
        "unit": st.sampled_from(["window", "trajectory", "group"]),
        "batch_windows": st.integers(1, 6),
        "num_generations": st.integers(1, 3),
        "max_staleness": st.integers(0, 3),
        "value_batch_tokens": st.none() | st.integers(1, 60),
    }
)


@settings(deadline=None, max_examples=120)
@given(RUNS, st.integers(0, 2), st.sampled_from([0.0, 0.05]), st.integers(0, 10_000))
def test_no_advantage_comes_from_a_critic_that_saw_the_outcome(
    schedule: dict[str, Any], warmup: int, deaths: float, seed: int
) -> None:
    if schedule["mode"] == "windowed":
        schedule |= {"max_staleness": 0}
    value = {"warmup_updates": warmup}
    config = make_config(
        schedule=schedule, algorithm={"advantages": {"kind": "egae"}, "value": value}
    )
    assume(problems(config) == [])
    world, critic = World(config), Critic()
    play(world, seed, 80, deaths=deaths)
    for record in world.records:
        critic.see(record)
    assert critic.windows or warmup


def test_a_coordinator_that_dies_in_a_warm_up_does_not_shorten_it() -> None:
    """A batch is out when it dies, and the learner brings it home to the next one."""
    config = make_config(
        schedule={"mode": "streaming", "batch_windows": 2, "max_staleness": 4},
        algorithm={"advantages": {"kind": "egae"}, "value": {"warmup_updates": 2}},
    )
    world = World(config)
    for update in (1, 2):
        assert world.scheduler.warming
        for trajectory in world.fill(2):
            world.chunk(trajectory, 3, "stop")
            world.reward(trajectory)
        prepared = world.take()
        assert prepared is not None
        assert not prepared.taken.windows
        if update == 1:
            world.restart()
        world.commit(publish=False)
    assert not world.scheduler.warming


@pytest.mark.parametrize("ends_first", [False, True], ids=["taken before", "taken after"])
def test_a_cut_window_stays_cut_whenever_it_is_taken(ends_first: bool) -> None:
    """The answer goes on behind the window and ends, rightly: the window knows nothing of it."""
    config = make_config(
        schedule={"mode": "streaming", "batch_windows": 1, "max_staleness": 2},
        algorithm={"advantages": {"kind": "egae", "boundary_mask": 1}, "value": {}},
    )
    world = World(config)
    (trajectory, *_) = world.fill(1)
    world.chunk(trajectory, 4)

    def end() -> None:
        world.chunk(trajectory, 3, "stop")
        world.reward(trajectory, 1.0)

    if ends_first:
        end()
    prepared = world.take()
    assert prepared is not None
    (window,) = policy_windows(prepared)
    assert (window.start, window.end, window.length) == (0, 4, 4)
    assert (window.finished, window.correct, window.rewards) == (False, False, [])
    assert window.loss_weights.tolist() == [1, 1, 1, 0]
    (item,) = prepared.taken.windows
    assert counts(item.masked) == {"boundary_mask": 1}
    assert value_trajectories(prepared) == []
    if not ends_first:
        end()
    world.commit()
    last = world.take()
    assert last is not None
    (window,) = policy_windows(last)
    assert (window.finished, window.loss_weights.tolist()) == (True, [1, 1, 1])
    assert [reward.value for reward in window.rewards] == [1.0]
    assert [v.trajectory_id for v in value_trajectories(last)] == [trajectory.trajectory_id]


@pytest.mark.parametrize("boundary", ["copy", "outcome"])
@pytest.mark.parametrize("known", ["nothing", "its end", "its reward", "it failed"])
def test_a_cut_window_brings_the_reward_that_came_before_it_was_taken(
    boundary: str, known: str
) -> None:
    """Only where advantages read it, and only once the answer is scored; a replay brings it too."""
    config = make_config(
        schedule={"mode": "streaming", "batch_windows": 1, "max_staleness": 2},
        algorithm={"advantages": {"kind": "egae", "boundary": boundary}, "value": {}},
    )
    world = World(config)
    (trajectory, *_) = world.fill(1)
    world.chunk(trajectory, 4)
    if known != "nothing":
        world.chunk(trajectory, 3, "stop")
    if known in ("its reward", "it failed"):
        world.reward(trajectory, 0.5 if known == "its reward" else None)
    state = world.replayed()
    prepared = world.take()
    assert prepared is not None
    (window,) = policy_windows(prepared)
    is_sent = (boundary, known) == ("outcome", "its reward")
    assert window.outcome == (0.5 if is_sent else None)
    assert (window.finished, window.rewards) == (False, [])
    assert not is_sent or window.answer_length == 7
    again = sent_batch(prepared.taken, state, batch_rules(config), config, {})
    assert policy_windows(again.prepared)[0].outcome == window.outcome


def test_what_follows_a_cut_is_what_was_earned_from_its_border_on() -> None:
    """A window's own rewards are no part of it, and that of the very next position is."""
    config = make_config(
        schedule={"mode": "streaming", "batch_windows": 1, "max_staleness": 2},
        algorithm={"advantages": {"kind": "egae", "boundary": "outcome"}, "value": {}},
    )
    world = World(config)
    (trajectory, *_) = world.fill(1)
    world.chunk(trajectory, 4, streams=Streams(rewards=[Reward(0.25, 3)]))
    world.chunk(trajectory, 1, "stop")
    world.reward(trajectory, 0.5)
    prepared = world.take()
    assert prepared is not None
    (window,) = policy_windows(prepared)
    assert window.rewards == [Reward(0.25, 3)]
    assert window.outcome == 0.5
