"""Sequences of many turns through the coordinator: windows, ledger, masks and batches, against the
script told token by token."""

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.scheduling.base import BatchSelection
from coordinator.training.batches import PreparedBatch, prepare
from coordinator.training.loss_masks import mask_window
from headrace.config.validation.batch_rules import BatchRules
from headrace.protocol.messages.batches import Shard
from headrace.protocol.messages.control import BatchPart
from headrace.protocol.token_spans import Reward
from headrace.protocol.transport.codec import message_codec
from headrace.trajectory.trajectories import Trajectory
from headrace.trajectory.windows import Window
from tests.coordinator.world import World, make_config, policy_windows, value_trajectories
from tests.headrace.trajectory.scripts import Token, chunks, script

WINDOW = 5
SEEDS = st.integers(0, 10**6)
CODEC = message_codec(max_bytes=1 << 30)


def rules(**changes: Any) -> BatchRules:
    usual = BatchRules(
        boundary_mask=2,
        skips_truncated=True,
        max_age=1,
        compares="group",
        value_logprobs=True,
        value_statistics=False,
        masked_marks=frozenset({"hot"}),
    )
    return replace(usual, **changes)


@dataclass
class Turns:
    """A world in which some groups of scripted sequences came in, and the scripts."""

    world: World
    scripts: dict[int, list[Token]]

    def sampled(self, trajectory: Trajectory) -> list[int]:
        """Positions that the policy wrote."""
        tokens = self.scripts[trajectory.trajectory_id]
        return [p for p, token in enumerate(tokens) if token.sampled]


def turns(seed: int, *, groups: int = 2, generations: int = 2) -> Turns:
    """Sequences whose chunks come in among each other; most end, and of those most are scored. The
    learner is at update 2, and the versions 0, 1 and 2 are from updates of that number."""
    rng = random.Random(seed)
    world = World(
        make_config(
            schedule={
                "mode": "streaming", "window": WINDOW, "num_generations": generations,
                "max_staleness": 1,
            },
            task={"kind": "chain_sums", "max_prompt_length": 8, "max_response_length": 1000},
        )
    )  # fmt: skip
    for version in (1, 2):
        world.publish(version, update=version)
    world.state.update = 2
    told = Turns(world, {})
    for trajectory in [t for _ in range(groups) for t in world.issue()]:
        key = trajectory.trajectory_id
        told.scripts[key] = script(rng, turns=rng.randint(1, 5), longest=8)
        world.lease(trajectory)
        for chunk in chunks(rng, told.scripts[key], trajectory_id=key):
            world.note(chunk)
            world.settle([trajectory])
        end = rng.choice(["finished", "finished", "truncated", None])
        if end is not None:
            world.end(trajectory, end)
            if rng.random() < 0.9:
                world.reward(trajectory, rng.choice([0.0, 0.5, 1.0]))
    return told


@settings(deadline=None, max_examples=80)
@given(SEEDS)
def test_windows_hold_so_many_sampled_tokens_and_what_was_inserted_besides(seed: int) -> None:
    told = turns(seed)
    generated = inserted = 0
    for trajectory in told.world.account.trajectories.values():
        positions, windows = told.sampled(trajectory), trajectory.windows
        generated += len(positions)
        inserted += trajectory.length - len(positions)
        assert [w.start for w in windows] == [0, *(w.end for w in windows)][: len(windows)]
        rest = positions
        for window in windows:
            own, rest = rest[: window.tokens], rest[window.tokens :]
            assert own == [p for p in positions if window.start <= p < window.end]
            assert window.end == own[-1] + 1
            versions = [told.scripts[trajectory.trajectory_id][p].version for p in own]
            assert (window.min_version, window.max_version) == (versions[0], versions[-1])
            last = window is windows[-1] and trajectory.ended
            assert 1 <= window.tokens <= WINDOW if last else window.tokens == WINDOW
            assert window.final == last
        assert len(rest) < WINDOW
        assert trajectory.open_tokens == len(rest)
        assert not (trajectory.ended and rest)
    ledger = told.world.account.ledger
    assert (ledger.generated, ledger.inserted, ledger.balance()) == (generated, inserted, 0)


@settings(deadline=None, max_examples=80)
@given(SEEDS, st.integers(0, 3), st.integers(0, 2), st.booleans(), st.booleans())
def test_masks_say_the_first_reason_of_each_sampled_token_and_nothing_of_others(
    seed: int, boundary: int, max_age: int, filters: bool, hot: bool
) -> None:
    told = turns(seed)
    state = told.world.state
    chosen = rules(
        boundary_mask=boundary,
        max_age=max_age,
        skips_truncated=filters,
        masked_marks=frozenset({"hot"} if hot else ()),
    )
    for trajectory in state.account.trajectories.values():
        tokens = told.scripts[trajectory.trajectory_id]
        positions = told.sampled(trajectory)
        if positions:
            trajectory.logprobs[positions[0]] = float("nan")
        for window in trajectory.windows:
            spans = trajectory.spans_between(window.start, window.end)
            ages = state.versions.ages(spans, window.start, window.end, state.update)
            masked = mask_window(trajectory, window, ages, chosen)
            own = [p for p in positions if window.start <= p < window.end]
            expected: dict[int, str] = {}
            for p in own:
                version = tokens[p].version
                assert version is not None
                if p == positions[0]:
                    expected[p] = "non_finite"
                elif 2 - version > max_age:
                    expected[p] = "stale"
                elif not window.final and p in own[len(own) - boundary :]:
                    expected[p] = "boundary_mask"
                elif filters and trajectory.status == "truncated":
                    expected[p] = "overlong"
                elif tokens[p].weight == 0 or (hot and tokens[p].hot):
                    expected[p] = "zero_weight"
            found = {p: run.reason for run in masked.runs for p in range(run.start, run.end)}
            assert found == expected
            assert all(run.tokens == run.end - run.start for run in masked.runs)
            for offset, weight in enumerate(masked.weights.tolist()):
                p = window.start + offset
                trained = p in own and p not in expected
                assert masked.trained[offset] == trained
                assert weight == (tokens[p].weight if trained else 0.0)


def batch(
    told: Turns, seed: int, chosen: BatchRules, *, ranks: int, max_bytes: int
) -> PreparedBatch:
    """A batch of some ready windows and some scored trajectories."""
    rng, account = random.Random(seed), told.world.account
    windows = [w for w in account.ready.values() if rng.random() < 0.8]
    if chosen.compares != "nobody":
        scored = {i for i, t in account.trajectories.items() if t.reward is not None}
        windows = [w for w in windows if w.trajectory_id in scored]
    values = [t for t in account.values.values() if rng.random() < 0.8]
    selection = BatchSelection(windows, values)
    return prepare(selection, told.world.state, chosen, ranks=ranks, max_bytes=max_bytes)


def num_bytes(shard: Shard) -> int:
    """What a part takes on the wire."""
    part = BatchPart(batch_id=2**53, rank=2**15, index=2**15, shard=shard)
    return sum(map(len, CODEC.encode(part)))


@settings(deadline=None, max_examples=80)
@given(
    SEEDS,
    st.integers(1, 4),
    st.sampled_from([1, 2000, 6000, 1 << 20]),
    st.sampled_from(["nobody", "itself", "group"]),
    st.sampled_from([2, 40]),
)
def test_each_trained_token_is_in_one_window_of_one_part(
    seed: int, ranks: int, max_bytes: int, compares: str, generations: int
) -> None:
    told = turns(seed, groups=4 if generations == 2 else 1, generations=generations)
    trajectories = told.world.account.trajectories
    chosen = rules(compares=compares)
    prepared = batch(told, seed, chosen, ranks=ranks, max_bytes=max_bytes)
    assert len(prepared.parts) == ranks
    in_loss = {
        item.window_id: told.world.account.window(item.window_id)
        for item in prepared.taken.windows
        if sum(run.tokens for run in item.masked) < told.world.account.window(item.window_id).tokens
    }
    found = Counter(window.window_id for window in policy_windows(prepared))
    assert found == Counter(in_loss.keys())
    valued = [value.trajectory_id for value in value_trajectories(prepared)]
    assert Counter(valued) == Counter(prepared.taken.value_trajectories)
    ranks_of: dict[int, set[int]] = {}
    for rank, shards in enumerate(prepared.parts):
        for shard in shards:
            assert shard.windows or shard.values
            ids = [sequence.trajectory_id for sequence in shard.sequences]
            assert len(set(ids)) == len(ids), "a trajectory's segments share one sequence"
            for window in shard.windows:
                ranks_of.setdefault(window.trajectory_id, set()).add(rank)
                check_window(told, shard, window.window_id, in_loss[window.window_id])
            for value in shard.values:
                trajectory = trajectories[value.trajectory_id]
                assert ids[value.sequence] == value.trajectory_id
                assert value.length == len(told.sampled(trajectory))
                assert value.logprobs.size == trajectory.length
            check_sequences(told, shard)
            groups = {group.group_id for group in shard.groups}
            needed = {shard.sequences[w.sequence].group_id for w in shard.windows}
            assert groups == (needed if compares != "nobody" else set())
            if len(shard.sequences) > 1:
                assert num_bytes(shard) <= max_bytes
    assert all(len(found) == 1 for found in ranks_of.values())


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(2, 4))
def test_windows_stay_with_the_rank_of_their_trajectory(seed: int, ranks: int) -> None:
    """In whichever batches they are, and whatever else is in these; members of a group and groups
    issued in a row are spread evenly."""
    told = turns(seed, groups=4)
    chosen = rules(compares="nobody", stays_with_rank=True)
    found: dict[int, set[int]] = {}
    for other in range(3):
        prepared = batch(told, seed + other, chosen, ranks=ranks, max_bytes=1 << 20)
        for rank, shards in enumerate(prepared.parts):
            for window in [window for shard in shards for window in shard.windows]:
                found.setdefault(window.trajectory_id, set()).add(rank)
    assert all(len(places) == 1 for places in found.values())
    every = Counter(key % ranks for key in told.world.account.trajectories)
    assert max(every.values()) - min(every.values()) <= 1
    assert all(places == {key % ranks} for key, places in found.items())


def test_the_scores_of_large_groups_count_in_a_part() -> None:
    world = World(make_config(schedule={"mode": "streaming", "num_generations": 300}))
    for trajectory in [t for _ in range(6) for t in world.issue()]:
        world.lease(trajectory)
        world.chunk(trajectory, 1, "stop")
        world.reward(trajectory)
    windows = [w for w in world.account.ready.values() if w.trajectory_id % 300 == 0]
    chosen = rules(compares="group", boundary_mask=0)
    selection = BatchSelection(windows, [])
    prepared = prepare(selection, world.state, chosen, ranks=1, max_bytes=9000)
    (shards,) = prepared.parts
    assert sum(len(shard.groups) for shard in shards) == 6
    assert all(num_bytes(shard) <= 9000 for shard in shards)
    assert len(shards) > 1


def check_window(told: Turns, shard: Shard, window_id: int, known: Window) -> None:
    """Its streams say of each position what the script says."""
    (window,) = [w for w in shard.windows if w.window_id == window_id]
    trajectory = told.world.account.trajectories[window.trajectory_id]
    tokens = told.scripts[window.trajectory_id]
    assert (window.start, window.end) == (known.start, known.end)
    assert shard.sequences[window.sequence].trajectory_id == window.trajectory_id
    assert window.logprobs.tolist() == [t.logprob for t in tokens[known.start : known.end]]
    assert window.loss_weights.size == known.end - known.start
    assert window.length == sum(p < known.end for p in told.sampled(trajectory))
    versions = {p: s.version for s in window.spans for p in range(s.start, s.end)}
    here = range(known.start, known.end)
    assert versions == {p: tokens[p].version for p in here if tokens[p].sampled}
    hot = {p for mark in window.marks for p in range(mark.start, mark.end)} & set(here)
    assert hot == {p for p in here if tokens[p].hot}
    assert all(reward.position in here for reward in window.rewards)
    assert window.finished == known.final


def check_sequences(told: Turns, shard: Shard) -> None:
    """Complete from the first token to the last one that a segment of the part reads."""
    for index, sequence in enumerate(shard.sequences):
        trajectory = told.world.account.trajectories[sequence.trajectory_id]
        tokens = told.scripts[sequence.trajectory_id]
        ends = [w.end for w in shard.windows if w.sequence == index]
        ends += [trajectory.length for v in shard.values if v.sequence == index]
        ids = [*trajectory.opening.tolist(), *(t.token_id for t in tokens[: max(ends)])]
        assert sequence.token_ids.tolist() == ids
        assert sequence.opening == trajectory.opening.size
        sampled = {p for first, last in sequence.sampled for p in range(first, last)}
        assert sampled == {p for p in range(max(ends)) if tokens[p].sampled}


@settings(deadline=None, max_examples=40)
@given(SEEDS)
def test_all_that_a_trajectory_earned_is_in_its_windows_once(seed: int) -> None:
    """A reward behind the last sampled token counts there."""
    told = turns(seed, groups=3)
    prepared = batch(told, seed, rules(compares="nobody"), ranks=1, max_bytes=1 << 20)
    for value in value_trajectories(prepared):
        trajectory = told.world.account.trajectories[value.trajectory_id]
        last = trajectory.spans[-1].end - 1
        windows = [w for w in policy_windows(prepared) if w.trajectory_id == value.trajectory_id]
        if len(windows) < len(trajectory.windows):
            continue
        earned = Counter((r.value, min(r.position, last)) for r in value.rewards)
        assert Counter((r.value, r.position) for w in windows for r in w.rewards) == earned


@pytest.mark.parametrize("cut", [True, False])
def test_the_score_is_earned_by_the_last_sampled_token(cut: bool) -> None:
    """Whether the tool's last words came with the policy's or behind them."""
    told = [Token(5, "policy", "assistant", 0, None, 0, -0.5)] * WINDOW
    told += [Token(6, "tool", "tool", 0, None, None, 0.0)] * 2
    world = World(make_config(schedule={"mode": "streaming", "window": WINDOW}))
    (trajectory,) = world.issue()
    for chunk in chunks(random.Random(0), told, cuts=[WINDOW] if cut else []):
        world.note(chunk)
        world.settle([trajectory])
    world.end(trajectory, "finished")
    world.reward(trajectory, 0.5)
    (window,) = trajectory.windows
    assert (window.start, window.end, window.final) == (0, WINDOW, True)
    assert trajectory.rewards == [Reward(0.5, WINDOW - 1)]
    assert window.state == "ready"
