"""What the value model alone is told: it reads it between the opening and the answer, and nothing
else changes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.config.sections.model import ModelConfig
from headrace.protocol.messages.batches import Shard
from learner.batching.shards import merge_shards
from learner.batching.token_reads import critic_sequences
from tests.learner.models.test_prefix_cache import (
    ALGORITHMS,
    Context,
    Learner,
    assert_same_gradients,
)
from tests.learner.recorded import record, save_tiny_model, streamed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return ModelConfig(path=str(save_tiny_model(tmp_path_factory.mktemp("model"))))


def told(shard: Shard, rng: np.random.Generator) -> Shard:
    """Every third answer has nothing to be told, the others a few of the tokens of their shard."""
    known = np.concatenate([s.token_ids for s in shard.sequences])
    asides = [
        rng.choice(known, size=rng.integers(1, 6)).astype(np.int32) if i % 3 else None
        for i in range(len(shard.sequences))
    ]
    pairs = zip(shard.sequences, asides, strict=True)
    return replace(shard, sequences=[replace(s, aside=aside) for s, aside in pairs])


def column(outcome: Any, name: str) -> np.ndarray[Any, Any]:
    return np.concatenate([d.columns[name] for d in outcome.diagnostics])


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(sorted(ALGORITHMS)),
    context=st.sampled_from(["full", "frozen", "carried"]),
    window=st.sampled_from([3, 8, 40]),
    turns=st.booleans(),
    budget=st.sampled_from([15, 4096]),
    shares=st.booleans(),
)
def test_values_are_those_of_a_longer_opening_and_logprobs_stay(
    model: ModelConfig,
    seed: int,
    name: str,
    context: Context,
    window: int,
    turns: bool,
    budget: int,
    shares: bool,
) -> None:
    """Values, advantages and the value model's gradients are those of answers to the opening with
    the aside in it; logprobs are those of answers to the opening alone."""
    rng = np.random.default_rng(seed)
    shard = told(record(seed=seed, trajectories=5, window=window, turns=turns), rng)
    kind: dict[str, Any] = {"algorithm": ALGORITHMS[name], "budget": budget, "shares": shares}
    ours, longer, without = (Learner(model, context, **kind) for _ in range(3))
    for update, part in enumerate([p for p in streamed(shard, updates=2, rng=rng) if p.sequences]):
        found = ours.run(part, update + 1)
        assert found.skipped is None
        opened = replace(part, sequences=critic_sequences(part.sequences))
        bare = replace(part, sequences=[replace(s, aside=None) for s in part.sequences])
        expected, plain = longer.run(opened, update + 1), without.run(bare, update + 1)
        if not found.diagnostics:
            continue
        for name_, other in (("values", expected), ("learner_logprobs", plain)):
            ours_, theirs = column(found, name_), column(other, name_)
            np.testing.assert_allclose(ours_, theirs, rtol=1e-4, atol=1e-5, err_msg=name_)
        np.testing.assert_allclose(
            column(found, "advantages"), column(expected, "advantages"), rtol=1e-4, atol=1e-5
        )
    assert_same_gradients(ours.critic, longer.critic)


def test_it_stands_behind_the_opening() -> None:
    shard = told(record(seed=1, trajectories=3, window=8), np.random.default_rng(1))
    first, second, _ = critic_sequences(shard.sequences)
    assert first is shard.sequences[0]
    own, aside = shard.sequences[1], shard.sequences[1].aside
    assert aside is not None
    assert second.opening == own.opening + aside.size
    tokens = second.token_ids.tolist()
    assert tokens[: own.opening] == own.token_ids[: own.opening].tolist()
    assert tokens[own.opening : second.opening] == aside.tolist()
    assert tokens[second.opening :] == own.token_ids[own.opening :].tolist()
    assert second.sampled == own.sampled


def test_parts_of_a_batch_keep_what_is_told() -> None:
    shard = told(record(seed=2, trajectories=3, window=8), np.random.default_rng(2))
    parts = [replace(shard, values=[]), replace(shard, windows=[])]
    for one, whole in zip(merge_shards(parts).sequences, shard.sequences, strict=True):
        assert one.aside is whole.aside
