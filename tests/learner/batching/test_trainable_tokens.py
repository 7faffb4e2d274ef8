"""Streams by position and by sampled token, against loops over the positions of scripted sequences
in which the policy and others take turns."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.protocol.messages.batches import PolicyWindow, Shard, ValueTrajectory
from headrace.protocol.token_spans import Coefficient, Mark, Reward, Span
from learner.batching.batch import PolicyBatch, groups_of, policy_batch, value_batch
from learner.batching.shards import merge_shards
from learner.batching.trainable_tokens import count_before, runs_between
from tests.learner.recorded import alone, cut, record

CPU = torch.device("cpu")
PENALTY = 0.25


def shape(rewards: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """A token of length costs a quarter."""
    return rewards - PENALTY * lengths.to(rewards.dtype)


def half_of(shard: Shard) -> PolicyBatch:
    return policy_batch(
        shard, version=1, lambdas=lambda length, _: length.double(), shape=shape, kl_coef=0.1,
        device=CPU,
    )  # fmt: skip


def own_of(sampled: Sequence[tuple[int, int]]) -> list[int]:
    return [p for a, b in sampled for p in range(a, b)]


@given(st.integers(0, 500), st.integers(0, 60), st.integers(0, 60))
def test_runs_are_sets_of_positions(seed: int, start: int, end: int) -> None:
    sampled = record(seed=seed, trajectories=1, turns=True).sequences[0].sampled
    wanted = [p for p in own_of(sampled) if start <= p < end]
    assert own_of(runs_between(sampled, start, end)) == wanted
    assert count_before(sampled, start) == sum(p < start for p in own_of(sampled))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 20))
def test_every_stream_stands_at_its_token(seed: int, window: int) -> None:
    """Each sampled token of each window, one by one: reward, weight, mask, coefficient, mark,
    version, which is another at each; and the way back by position."""
    shard = record(seed=seed, trajectories=4, window=window, turns=True)
    marks = [Mark("hot", 0, 1), Mark("hot", 7, 9)]
    windows = []
    for w in shard.windows:
        own = own_of([(span.start, span.end) for span in w.spans])
        windows.append(replace(w, marks=marks, spans=[Span(p % 3, p, p + 1) for p in own]))
    shard = replace(shard, windows=windows)
    half, t = half_of(shard), 0
    assert isinstance(half.kl_coef, torch.Tensor)
    numbered = np.arange(half.mask.numel(), dtype=np.float32)
    for window_, spread in zip(shard.windows, half.sampled.spread(numbered), strict=True):
        sequence = shard.sequences[window_.sequence]
        at = [p for p in own_of(sequence.sampled) if window_.start <= p < window_.end]
        assert spread.size == window_.end - window_.start
        for i, p in enumerate(at):
            until = at[i + 1] if i + 1 < len(at) else math.inf
            earned = sum(r.value for r in window_.rewards if p <= r.position < until)
            if window_.finished and i + 1 == len(at):
                earned -= PENALTY * window_.length
            weight = float(window_.loss_weights[p - window_.start])
            assert half.rewards[t].item() == pytest.approx(earned, rel=1e-5, abs=1e-5)
            assert half.mask[t].item() == (weight > 0)
            assert half.weights is None or half.weights[t].item() == weight
            assert half.kl_coef[t].item() == pytest.approx(0.3 if 1 <= p < 5 else 0.1)
            assert half.hot[t].item() == (p == 0 or 7 <= p < 9)
            assert half.behaviour[t].item() == window_.logprobs[p - window_.start]
            assert half.reads.targets[t] == sequence.token_ids[sequence.opening + p]
            assert half.reads.position_of[t] == sequence.opening + p
            assert half.versions[t].item() == p % 3
            fresh = not window_.start and all(q % 3 == 1 for q in at[: i + 1])
            assert half.same_version[t].item() == fresh
            assert spread[p - window_.start] == t
            t += 1
        inserted = set(range(window_.start, window_.end)) - set(at)
        assert all(math.isnan(spread[p - window_.start]) for p in inserted)
    assert t == half.mask.numel()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_no_reward_of_an_answer_is_lost(seed: int) -> None:
    """All that was paid after the first sampled token, and the price of the length, is in the
    value half; the windows have the same but for what was paid at a window's beginning before its
    first sampled token."""
    shard = record(seed=seed, trajectories=5, turns=True, unfinished=0.0)
    half = value_batch(shard, shape=shape, kl_coef=0.1, device=CPU)
    stops = half.segments.cu_lengths.tolist()
    for i, value in enumerate(shard.values):
        own = own_of(shard.sequences[value.sequence].sampled)
        paid = sum(r.value for r in value.rewards if own and r.position >= own[0])
        wanted = paid - PENALTY * len(own) if own else 0.0
        found = half.rewards[stops[i] : stops[i + 1]].sum().item()
        assert found == pytest.approx(wanted, rel=1e-4, abs=1e-4)


def test_what_is_paid_to_a_tool_is_earned_by_the_token_before() -> None:
    """Policy at 0 to 2, a tool at 3 and 4, policy at 5; paid at 1, 4 and 5, and before anything was
    sampled."""
    shard = record(seed=1, trajectories=1, longest=6, unfinished=0.0)
    sequence = replace(
        shard.sequences[0], token_ids=np.arange(8, dtype=np.int32), opening=1,
        sampled=[(1, 3), (5, 6)],
    )  # fmt: skip
    points = [Reward(9.0, 0), Reward(1.0, 1), Reward(2.0, 4), Reward(4.0, 5), Reward(8.0, 6)]
    value = replace(shard.values[0], length=3, rewards=points)
    half = value_batch(
        replace(shard, sequences=[sequence], windows=[], values=[value]),
        shape=shape, kl_coef=0.0, device=CPU,
    )  # fmt: skip
    assert half.rewards.tolist() == [1.0, 2.0, 12.0 - 3 * PENALTY]


def test_the_plain_case_has_no_streams() -> None:
    """Weights of 1 multiply nothing, one coefficient holds for all."""
    shard = record(seed=2)
    half = half_of(shard)
    assert half.weights is None
    assert half.kl_coef == 0.1
    assert not half.hot.any()
    other = Coefficient("other", 9.0, 0, 99)
    windows = [replace(w, coefficients=[other]) for w in shard.windows]
    assert half_of(replace(shard, windows=windows)).kl_coef == 0.1


def test_a_right_answer_is_what_counts_as_right() -> None:
    """Not what earned anything."""
    shard = record(seed=2, unfinished=0.0)
    ends = [i for i, w in enumerate(shard.windows) if w.finished]
    windows = [replace(w, correct=False, rewards=[Reward(0.9, w.start)]) for w in shard.windows]
    end = windows[ends[1]]
    windows[ends[1]] = replace(end, correct=True, rewards=[Reward(-1.0, end.start)])
    right = half_of(replace(shard, windows=windows)).right
    assert right.nonzero().flatten().tolist() == [ends[1]]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.booleans())
def test_parts_make_the_whole(seed: int, parts: int, turns: bool) -> None:
    """One sequence a trajectory, the longest; the same windows, answers and groups in another
    order."""
    shard = alone(record(seed=seed, trajectories=5, turns=turns))
    made = merge_shards(cut(shard, parts))
    assert len({s.trajectory_id for s in made.sequences}) == len(made.sequences)
    assert sorted(w.window_id for w in made.windows) == [w.window_id for w in shard.windows]
    assert {v.trajectory_id for v in made.values} == {v.trajectory_id for v in shard.values}
    assert len(made.groups) == len(shard.groups)
    segments: list[PolicyWindow | ValueTrajectory] = [*made.windows, *made.values]
    for segment in segments:
        sequence = made.sequences[segment.sequence]
        assert sequence.trajectory_id == segment.trajectory_id
        whole = shard.sequences[segment.trajectory_id]
        ends = [w.end for w in made.windows if w.trajectory_id == segment.trajectory_id]
        ended = any(v.trajectory_id == segment.trajectory_id for v in made.values)
        size = whole.token_ids.size if ended else whole.opening + max(ends)
        assert sequence.token_ids.tolist() == whole.token_ids[:size].tolist()
    groups = groups_of(made, shape=shape, device=CPU)
    members = [made.groups[i].trajectory_ids for i in groups.members.tolist()]
    assert members == [[w.trajectory_id] for w in made.windows]
