"""Groups: dynamic sampling (golden case G8), what goes with each window, streaming by groups."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.scheduling.window_lifecycle import is_mixed
from coordinator.training.learner_updates import DropRatesByLength
from headrace.metrics.registry import METRICS
from headrace.protocol.messages.batches import GroupScores, PolicyWindow
from headrace.protocol.records.record_types import Forgotten, MaskedRun, WindowsDropped
from headrace.trajectory.trajectories import Trajectory
from headrace.trajectory.windows import Window, trajectory_of
from tests.coordinator.persistence.test_state import assert_books_match
from tests.coordinator.world import (
    World,
    counts,
    make_config,
    policy_windows,
    value_trajectories,
)

SIZE = 4
"""Trajectories of a group."""


def group_world(mode: str = "synchronous", *, batch: int = 12, **changes: object) -> World:
    algorithm: dict[str, object] = {"advantages": {"kind": "group"}, "value": None}
    schedule: dict[str, object] = {
        "mode": mode, "window": None, "unit": "group", "batch_windows": batch,
        "num_generations": SIZE, "max_staleness": 1,
    }  # fmt: skip
    for name, value in changes.items():
        own = ("admit", "advantages", "kl", "overlong", "value")
        (algorithm if name in own else schedule)[name] = value
    return World(make_config(algorithm=algorithm, schedule=schedule))


def answer(world: World, trajectory: Trajectory, reward: float | None, tokens: int = 3) -> None:
    world.chunk(trajectory, tokens, "stop")
    world.reward(trajectory, reward)


def play_group(world: World, members: list[Trajectory], right: int) -> None:
    for i, trajectory in enumerate(members):
        answer(world, trajectory, float(i < right))


def filtered(world: World) -> list[int]:
    drops = [r for r in world.records if isinstance(r, WindowsDropped) and r.reason == "filtered"]
    return groups_of(world, [i for drop in drops for i in drop.window_ids])


def groups_of(world: World, window_ids: list[int]) -> list[int]:
    keys = {trajectory_of(i)[0] for i in window_ids}
    return sorted({world.account.trajectories[key].group_id for key in keys})


RIGHT = [4, 1, 0, 3, 2, 2]
"""Golden case G8: right answers in groups p1 to p6."""


def test_dynamic_sampling_golden_case_8_in_rounds() -> None:
    """p1 and p3 are dropped, p2, p4 and p5 fill the batch; p6 is never begun."""
    world = group_world(admit="mixed_groups")
    leased: list[Trajectory] = world.fill(12)
    assert len(leased) == 12
    seen = 0
    while (prepared := world.take()) is None:
        groups = sorted({t.group_id for t in leased})
        for group_id in groups:
            play_group(world, world.account.members(group_id), RIGHT[group_id])
            seen += 1
        if (prepared := world.take()) is not None:
            break
        leased = world.fill(12)
        assert leased, "replacements are issued under the same weights"
    assert seen == 5
    assert groups_of(world, [w.window_id for w in prepared.taken.windows]) == [1, 3, 4]
    assert filtered(world) == [0, 2]
    assert world.account.ledger.dropped == {"filtered": 2 * SIZE * 3}
    assert world.account.ledger.balance() == 0
    assert world.admission.pop_metrics() == {
        "schedule/filtered_groups": 2.0,
        "schedule/admitted_share": pytest.approx(3 / 5),
    }


def test_dynamic_sampling_golden_case_8_in_a_stream() -> None:
    """The same in `streaming`: what is dropped makes room at once; p6 waits for the next batch."""
    world = group_world("streaming", admit="mixed_groups")
    assert len({t.group_id for t in world.fill(100)}) == 6
    in_play = world.scheduler.in_play()
    for group_id, right in enumerate(RIGHT):
        play_group(world, world.account.members(group_id), right)
    assert world.scheduler.in_play() == in_play - 2 * SIZE
    assert {t.group_id for t in world.fill(100)} == {6, 7}
    prepared = world.take()
    assert prepared is not None
    assert groups_of(world, [w.window_id for w in prepared.taken.windows]) == [1, 3, 4]
    assert filtered(world) == [0, 2]
    assert groups_of(world, list(world.account.ready)) == [5]


def stream_of_windows(**changes: object) -> World:
    given: dict[str, object] = {
        "unit": "window", "window": 3, "max_staleness": 4, "admit": "mixed_groups",
        "advantages": {"kind": "egae"}, "value": {},
    }  # fmt: skip
    return group_world("streaming", batch=4, **given | changes)


def test_windows_of_a_stream_train_once_two_scores_of_their_group_differ() -> None:
    """Those of answers that go on, too; those of equal groups are dropped, for both models."""
    world = stream_of_windows()
    mixed, equal = (
        world.account.members(key) for key in sorted({t.group_id for t in world.fill(8)})
    )
    for trajectory in (*mixed, *equal):
        world.chunk(trajectory, 3, None)
    answer(world, mixed[0], 0.0)
    assert not world.account.ready
    answer(world, mixed[1], 1.0)
    assert {w.state for t in mixed for w in t.windows} == {"ready"}
    assert not mixed[2].ended
    assert len(world.account.ready) == 4 + 2
    for trajectory in equal:
        answer(world, trajectory, 0.0)
    assert filtered(world) == [1]
    assert {w.state for t in equal for w in t.windows} == {"dropped"}
    assert {t.value for t in equal} == {"dropped"}
    assert list(world.account.values) == [t.trajectory_id for t in mixed[:2]]
    ledger = world.account.ledger
    assert ledger.value_accounts.total() == ledger.value_finished == (4 + 2) * 6
    assert ledger.balance() == 0
    assert_books_match(world)


def test_the_first_group_goes_on_where_the_learner_waits_and_the_bound_is_full() -> None:
    """Eight windows fill the bound, and none is judged: the older group's answers may end."""
    world = stream_of_windows(max_staleness=1)
    leased = world.fill(8)
    assert len(leased) == 8
    for trajectory in leased:
        world.chunk(trajectory, 3, None)
        assert world.must_hold(trajectory) == (trajectory.group_id == 1)
        if trajectory.group_id == 1:
            world.chunk(trajectory, 0, "held")
    assert world.take() is None
    play_group(world, world.account.members(0), right=1)
    assert world.take() is not None
    assert world.fill(8) == []


def test_a_warm_up_keeps_the_answers_of_equal_groups() -> None:
    """The value model is warmed up on all answers to its prompts, those of dropped groups too."""
    world = stream_of_windows(value={"warmup_updates": 1, "warmup_prompts": 2})
    world.fill(8)
    for group_id in (0, 1):
        play_group(world, world.account.members(group_id), right=2 * group_id)
    assert filtered(world) == [0]
    prepared = world.take()
    assert prepared is not None
    assert len(prepared.taken.value_trajectories) == 2 * SIZE


def test_groups_are_judged_by_scores_before_shaping() -> None:
    """Equal scores of unequal lengths are dropped, overlong penalty or not."""
    world = group_world(admit="mixed_groups", overlong={"cache": 4})
    for i, trajectory in enumerate(world.fill(4)):
        answer(world, trajectory, 1.0, tokens=6 + i)
    assert filtered(world) == [0]


def test_a_group_without_two_scores_is_not_mixed() -> None:
    world = group_world()
    members = world.fill(4)
    assert not is_mixed(members)
    answer(world, members[0], 1.0)
    answer(world, members[1], None)
    assert not is_mixed(members)
    answer(world, members[2], 0.0)
    assert is_mixed(members)


def test_what_a_dead_coordinator_had_not_judged_is_judged_after_the_replay() -> None:
    world = group_world(admit="mixed_groups")
    play_group(world, world.fill(4), right=4)
    kept = [r for r in world.records if not isinstance(r, WindowsDropped)]
    world.records = kept
    world.restart()
    assert world.account.closed
    for drop in list(world.admission.judge(world.admission.unjudged(), warming=False)):
        world.note(drop)
    assert not world.account.closed
    assert world.admission.unjudged() == []


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 10_000), st.sampled_from(["mask", "wait"]),
    st.sampled_from(["all", "mixed_groups"]),
)  # fmt: skip
def test_a_stream_of_groups_never_stalls(seed: int, stale: str, admit: str) -> None:
    """Whatever the scores, lengths and failures: batches keep coming, whole groups, books even."""
    rng = random.Random(seed)
    world = group_world("streaming", batch=8, stale=stale, admit=admit)
    batches = 0
    for step in range(600):
        world.fill(12 - len(world.leased()))
        assert world.scheduler.in_play() <= world.scheduler.bound
        live = world.leased()
        for trajectory in live[:5]:
            long = rng.random() < 0.25 and trajectory.length < 9
            world.chunk(trajectory, 3, None if long else "stop")
            if not long:
                world.reward(trajectory, rng.choice([None, *[0.0, 1.0] * 5]))
        prepared = world.take()
        if prepared is not None:
            batches += 1
            keys = {trajectory_of(w.window_id)[0] for w in prepared.taken.windows}
            groups = [world.account.trajectories[key] for key in keys]
            for group_id in {t.group_id for t in groups}:
                scored = [
                    t.trajectory_id
                    for t in world.account.members(group_id)
                    if t.reward_status == "ok"
                ]
                assert scored == sorted(t.trajectory_id for t in groups if t.group_id == group_id)
            world.commit()
        assert world.account.ledger.balance() == 0
        if batches == 3:
            break
        assert live or prepared is not None, f"nothing happens at step {step}"
    assert batches == 3
    assert_books_match(world)


def groups_in(world: World) -> tuple[list[PolicyWindow], list[GroupScores]]:
    prepared = world.take()
    assert prepared is not None
    (shards,) = prepared.parts
    return policy_windows(prepared), [g for shard in shards for g in shard.groups]


def test_a_batch_carries_whole_groups() -> None:
    """Scores and lengths of all scored members; the learner makes the advantages of them."""
    world = group_world(batch=4)
    members = world.fill(4)
    for i, trajectory in enumerate(members):
        answer(world, trajectory, None if i == 1 else float(i), tokens=3 + i)
    windows, (group,) = groups_in(world)
    assert sorted(w.trajectory_id for w in windows) == group.trajectory_ids == [0, 2, 3]
    assert group.scores.tolist() == [0.0, 2.0, 3.0]
    assert group.lengths.tolist() == [3, 5, 6]
    earned = {w.trajectory_id: sum(r.value for r in w.rewards) for w in windows}
    assert earned == {0: 0.0, 2: 2.0, 3: 3.0}


def test_without_a_baseline_a_trajectory_stands_alone() -> None:
    config = make_config(
        algorithm={"advantages": {"kind": "group", "baseline": "none", "scale": "none"},
                   "value": None},
        schedule={
            "mode": "synchronous", "window": None, "unit": "trajectory", "batch_windows": 2,
            "num_generations": 2,
        },
    )  # fmt: skip
    world = World(config)
    for trajectory in world.fill(2):
        answer(world, trajectory, 1.0 + trajectory.trajectory_id)
    _, groups = groups_in(world)
    assert sorted(g.scores.tolist() for g in groups) == [[1.0], [2.0]]
    assert len({g.group_id for g in groups}) == 2
    # Nobody trains a value model: nothing waits for one.
    assert not world.account.values
    world.commit()
    world.note(Forgotten(at=0.0, update=1))
    assert not world.account.trajectories


def test_critic_recipes_carry_no_group() -> None:
    world = World(make_config(schedule={"mode": "synchronous", "batch_windows": 1}))
    (trajectory,) = world.fill(1)
    answer(world, trajectory, 1.0)
    windows, groups = groups_in(world)
    assert (len(windows), groups) == (1, [])


def test_overlong_responses_are_left_out_where_asked_for() -> None:
    world = group_world(batch=4, overlong={"filter": True})
    members = world.fill(4)
    world.chunk(members[0], 12, "length")
    world.reward(members[0], 0.0)
    for trajectory in members[1:]:
        answer(world, trajectory, 1.0)
    windows, (group,) = groups_in(world)
    assert sorted(w.trajectory_id for w in windows) == [1, 2, 3]
    assert group.scores.tolist() == [0.0, 1.0, 1.0, 1.0]
    world.commit()
    assert world.account.ledger.dropped == {"overlong": 12}


def test_sampler_logprobs_go_with_value_targets_where_the_reward_has_a_divergence() -> None:
    for kl, expected in ((None, 0), ({"coef": 0.1, "where": "reward"}, 3)):
        world = World(
            make_config(algorithm={"kl": kl}, schedule={"mode": "synchronous", "batch_windows": 1})
        )
        (trajectory,) = world.fill(1)
        answer(world, trajectory, 1.0)
        prepared = world.take()
        assert prepared is not None
        assert value_trajectories(prepared)[0].logprobs.size == expected


def test_drop_and_mask_shares_by_length() -> None:
    """Twenty responses of 1 to 20 tokens: those over 16 were too old; of each from 9 to 16 two
    tokens were masked, for two other reasons."""
    shares = DropRatesByLength()
    for length in range(1, 21):
        window = Window(length, 0, 0, length, length, min_version=0, max_version=0)
        if length > 16:
            window.state, window.reason = "dropped", "stale"
        elif length > 8:
            window.masked = [MaskedRun("boundary_mask", 0, 1, 1), MaskedRun("non_finite", 1, 2, 1)]
        shares.add(window, length)
    made = shares.pop_metrics()

    assert made["staleness/drop_share"] == [0.0] * 8 + [1.0] * 2
    expected = [0.0] * 4 + [4 / (2 * mean) for mean in (9.5, 11.5, 13.5, 15.5)] + [0.0] * 2
    assert made["staleness/mask_share"] == pytest.approx(expected)
    assert made["staleness/length"] == list(np.arange(1.5, 21, 2))
    assert made.keys() <= METRICS.keys()
    assert shares.pop_metrics() == {}


def test_each_reason_is_in_one_of_the_two_shares() -> None:
    """Every reason that a batch masks for, of real windows: two tokens stale, three at the cut."""
    config = make_config(
        algorithm={"advantages": {"kind": "egae", "boundary_mask": 3}},
        schedule={"mode": "streaming", "window": 6, "batch_windows": 1, "max_staleness": 0},
    )
    world = World(config)
    (trajectory,) = world.fill(1)
    world.chunk(trajectory, 2)
    world.state.update = 1
    world.publish(1)
    world.chunk(trajectory, 4)
    prepared = world.take()
    assert prepared is not None
    (window,) = prepared.taken.windows
    left_out = counts(window.masked)
    assert left_out == {"stale": 2, "boundary_mask": 3}
    shares = DropRatesByLength()
    shares.add(world.account.window(window.window_id), trajectory.length)
    made = shares.pop_metrics()
    assert made["staleness/drop_share"] == [pytest.approx(2 / 6)] + [None] * 9
    assert made["staleness/mask_share"] == [pytest.approx(3 / 6)] + [None] * 9


def test_a_warm_up_that_ended_early_is_over_after_a_restart() -> None:
    config = make_config(
        schedule={"mode": "streaming", "batch_windows": 2, "max_staleness": 4},
        algorithm={"advantages": {"kind": "egae"},
                   "value": {"warmup_updates": 9, "warmup_explained_variance": 0.5}},
    )  # fmt: skip
    world = World(config)

    def update(explained: float) -> None:
        for trajectory in world.fill(2):
            answer(world, trajectory, 1.0)
        assert world.take() is not None
        world.commit(explained=explained)

    update(0.9)
    assert not world.scheduler.warming
    world.restart()  # between the warm-up and the policy's first update
    assert not world.scheduler.warming
    for trajectory in world.fill(2):
        answer(world, trajectory, 1.0)
    assert world.take() is not None
    world.roll_back(1)  # in it
    assert not world.scheduler.warming
    update(0.9)
    assert world.state.first_policy_update == 2
    world.scheduler.restart()
    assert not world.scheduler.warming
