"""Packs hold every sequence once and keep to the budget; steps hold every trained token once."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.batch import deal, micro_batches, policy_reads, steps_of, value_reads
from learner.packing import balanced_parts, pack_sequences, ranges
from learner.place import Place
from tests.learner.recorded import record

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
    """Over all ranks, steps and micro-batches; all ranks run equally many micro-batches."""
    windows, values = record(seed=seed)
    for reads_of_ranks in (
        [policy_reads(windows[r::ranks]) for r in range(ranks)],
        [value_reads(values[r::ranks]) for r in range(ranks)],
    ):
        dealt = deal(reads_of_ranks, parts=parts, seed=[seed])
        counts = []
        for rank, reads in enumerate(reads_of_ranks):
            place = Place(device=CPU, rank=rank, world=ranks, budget=budget)
            steps = steps_of(reads_of_ranks, dealt, place, parts=parts)
            counts.append([len(micros) for micros in steps])
            tokens = torch.cat([m.tokens for micros in steps for m in micros])
            assert sorted(tokens.tolist()) == list(range(reads.position_of.size))
        assert all(count == counts[0] for count in counts)


def test_reads_look_at_the_token_before() -> None:
    """The read of a token stands on its predecessor, and its target is the token itself."""
    windows, _ = record(seed=3)
    reads = policy_reads(windows)
    micros = micro_batches(reads, range(len(reads.token_ids)), Place(device=CPU, budget=64))
    expected = np.concatenate([w.token_ids[w.prompt_length + w.start :] for w in windows])
    before = np.concatenate([w.token_ids[w.prompt_length + w.start - 1 : -1] for w in windows])
    for pack, tokens in micros:
        assert pack.targets.tolist() == expected[tokens].tolist()
        assert pack.token_ids[pack.reads].tolist() == before[tokens].tolist()
