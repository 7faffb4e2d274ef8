"""Openings that sequences of a pack have in common are computed once, and nothing else changes."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.config.sections.model import ModelConfig
from headrace.protocol.messages.batches import Shard
from learner.batching.token_reads import reads_of, sampled_windows
from learner.device import RankContext
from learner.models.microbatches import micro_batches
from tests.learner.models.test_prefix_cache import (
    ALGORITHMS,
    CPU,
    Context,
    Learner,
    assert_same,
    assert_same_gradients,
)
from tests.learner.recorded import record, save_tiny_model, streamed

GROUP = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return ModelConfig(path=str(save_tiny_model(tmp_path_factory.mktemp("model"))))


def in_groups(shard: Shard) -> Shard:
    """Every three answers begin with the opening of the first of them."""
    sequences = []
    for index, sequence in enumerate(shard.sequences):
        first = shard.sequences[index - index % GROUP]
        ids = np.concatenate(
            [first.token_ids[: first.opening], sequence.token_ids[sequence.opening :]]
        )
        sequences.append(replace(sequence, token_ids=ids, opening=first.opening))
    return replace(shard, sequences=sequences)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(sorted(ALGORITHMS)),
    context=st.sampled_from(["full", "frozen", "carried"]),
    window=st.sampled_from([3, 8, 40]),
    turns=st.booleans(),
    budget=st.sampled_from([15, 60, 4096]),
    minibatches=st.integers(1, 2),
)
def test_an_update_is_the_same(
    model: ModelConfig,
    seed: int,
    name: str,
    context: Context,
    window: int,
    turns: bool,
    budget: int,
    minibatches: int,
) -> None:
    """Logprobs, values, advantages, losses and gradients, whatever the learner sees of prefixes."""
    shard = in_groups(record(seed=seed, trajectories=7, window=window, turns=turns))
    settings: dict[str, Any] = {
        "algorithm": ALGORITHMS[name], "budget": budget, "minibatches": minibatches,
    }  # fmt: skip
    shared, apart = (Learner(model, context, shares=s, **settings) for s in (True, False))
    parts = streamed(shard, updates=2, rng=np.random.default_rng(seed))
    for update, part in enumerate([p for p in parts if p.sequences], start=1):
        found = shared.run(part, update)
        assert found.skipped is None
        assert_same(found, apart.run(part, update))
    assert_same_gradients(shared.policy, apart.policy)
    assert_same_gradients(shared.critic, apart.critic)


@pytest.mark.parametrize("budget", [25, 60, 4096])
@pytest.mark.parametrize("frozen", [False, True])
def test_each_pack_has_an_opening_once_and_keeps_to_the_budget(budget: int, frozen: bool) -> None:
    shard = in_groups(record(seed=5, trajectories=9, window=100))
    sampled = sampled_windows(shard.sequences, shard.windows)
    reads = reads_of(shard.sequences, shard.windows, sampled)
    everything = range(len(reads.token_ids))
    sizes = []
    for shares in (False, True):
        place = RankContext(
            device=CPU, budget=budget, frozen_context=frozen, shares_openings=shares
        )
        micros = micro_batches(reads, everything, place)
        tokens = torch.cat([m.tokens for m in micros])
        assert sorted(tokens.tolist()) == list(range(reads.position_of.size))
        for pack, read in micros:
            chosen = read.numpy()
            sequence, place_of = reads.sequence_of[chosen], reads.position_of[chosen]
            before = [
                int(reads.token_ids[s][p - 1]) for s, p in zip(sequence, place_of, strict=True)
            ]
            assert pack.token_ids[pack.reads].tolist() == before
            assert pack.position_ids[pack.reads].tolist() == (place_of - 1).tolist()
            alone = len({int(s) for s in sequence}) == 1
            assert pack.token_ids.numel() <= budget or alone
        sizes.append(sum(m.pack.token_ids.numel() for m in micros))
    saved = sum(s.opening for i, s in enumerate(shard.sequences) if i % GROUP)
    assert sizes[1] == sizes[0] - saved if budget == 4096 else sizes[1] <= sizes[0]
