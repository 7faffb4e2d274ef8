"""Packs hold every sequence once and keep to the budget; steps hold every trained token once."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.messages.batches import Shard
from learner.batching.packing import balanced_parts, pack_sequences, ranges
from learner.batching.token_reads import TokenReads, reads_of, sampled_answers, sampled_windows
from learner.device import RankContext
from learner.models.microbatches import MicroBatch, OptimizerSteps, micro_batches
from tests.learner.recorded import batch_of, record
from tests.learner.test_golden import Meeting, ThreadPlace

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(1, 300), max_size=60)


@given(LENGTHS, st.integers(1, 400))
def test_every_sequence_once_within_the_budget(lengths: list[int], budget: int) -> None:
    packs = pack_sequences(lengths, budget=budget)
    assert sorted(i for pack in packs for i in pack) == list(range(len(lengths)))
    for pack in packs:
        sizes = [lengths[i] for i in pack]
        assert sum(sizes) <= budget or len(pack) == 1
        assert sizes == sorted(sizes, reverse=True)


@given(LENGTHS, st.integers(300, 400))
def test_no_two_packs_could_be_one(lengths: list[int], budget: int) -> None:
    totals = [sum(lengths[i] for i in pack) for pack in pack_sequences(lengths, budget=budget)]
    assert all(a + b > budget for a, b in itertools.combinations(totals, 2))


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        pack_sequences([3, 0], budget=8)
    with pytest.raises(ValueError, match="budget"):
        pack_sequences([3], budget=0)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 5))
def test_parts_are_balanced(weights: list[int], parts: int) -> None:
    chosen = balanced_parts(weights, parts=parts, order=range(len(weights)))
    sums = [sum(w for w, c in zip(weights, chosen, strict=True) if c == p) for p in range(parts)]
    assert max(sums) - min(sums) <= max(weights)


def test_ranges() -> None:
    found = ranges(np.array([5, 0, 7]), np.array([2, 0, 3]))
    assert found.tolist() == [5, 6, 7, 8, 9]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 4), st.integers(1, 3), st.integers(1, 200))
def test_every_trained_token_once_on_one_rank(
    seed: int, parts: int, ranks: int, budget: int
) -> None:
    """Over all ranks, steps and micro-batches; all ranks run equally many micro-batches, and deal
    all trajectories alike."""
    shards = batch_of(record(seed=seed, turns=bool(seed % 2)), ranks=ranks).shards
    for half in (of_windows, of_answers):
        reads_of_ranks = [half(shard) for shard in shards]
        meeting = Meeting(ranks)

        def steps_of(
            rank: int, everyone: list[TokenReads] = reads_of_ranks, meeting: Meeting = meeting
        ) -> tuple[dict[int, int], list[list[MicroBatch]]]:
            place = ThreadPlace(CPU, rank=rank, world=ranks, budget=budget, meeting=meeting)
            steps = OptimizerSteps(everyone[rank], place, parts=parts)
            dealt = steps.deal(seed=[seed])
            return dealt, steps.cut(dealt)

        with ThreadPoolExecutor(ranks) as pool:
            dealt, steps = zip(*pool.map(steps_of, range(ranks)), strict=True)
        assert parts == 1 or all(each == dealt[0] for each in dealt)
        for reads, of_rank in zip(reads_of_ranks, steps, strict=True):
            assert [len(micros) for micros in of_rank] == [len(micros) for micros in steps[0]]
            tokens = torch.cat([m.tokens for micros in of_rank for m in micros])
            assert sorted(tokens.tolist()) == list(range(reads.position_of.size))


def of_windows(shard: Shard) -> TokenReads:
    sampled = sampled_windows(shard.sequences, shard.windows)
    return reads_of(shard.sequences, shard.windows, sampled)


def of_answers(shard: Shard) -> TokenReads:
    sampled = sampled_answers(shard.sequences, shard.values)
    return reads_of(shard.sequences, shard.values, sampled)


@pytest.mark.parametrize("turns", [False, True])
def test_reads_look_at_the_token_before(turns: bool) -> None:
    """The read of a token stands on its predecessor, whoever wrote that, and its target is the
    token itself; what was inserted is nobody's target."""
    shard = record(seed=3, turns=turns)
    reads = of_windows(shard)
    micros = micro_batches(reads, range(len(reads.token_ids)), RankContext(device=CPU, budget=64))
    places = [
        (s.token_ids, s.opening + p)
        for w in shard.windows
        for s in [shard.sequences[w.sequence]]
        for a, b in s.sampled
        for p in range(max(a, w.start), min(b, w.end))
    ]
    expected = np.array([ids[place] for ids, place in places])
    before = np.array([ids[place - 1] for ids, place in places])
    for pack, tokens in micros:
        assert pack.targets.tolist() == expected[tokens].tolist()
        assert pack.token_ids[pack.reads].tolist() == before[tokens].tolist()
