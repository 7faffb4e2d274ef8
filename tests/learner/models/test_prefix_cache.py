"""Carried keys and values: the same numbers as computing the prefix again, as long as weights stand
still; what is kept, for how long, and what happens where something is missing."""

from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from headrace.config.sections.algorithm import AlgorithmConfig
from headrace.config.sections.learner import LearnerConfig, OptimizerConfig
from headrace.config.sections.model import ModelConfig
from headrace.protocol.messages.batches import Shard
from learner.algorithms.registry import build_algorithm
from learner.device import RankContext
from learner.models.forward import PolicyNetwork, ValueNetwork
from learner.models.loading import load_critic, load_policy
from learner.models.prefix_cache import CacheSource, PrefixCache
from learner.updates.update import UpdateOutcome, Updater
from tests.learner.plain_engine import PlainEngine
from tests.learner.recorded import batch_of, record, save_tiny_model, streamed
from tests.metric_values import number

CPU = torch.device("cpu")
TOKEN_BYTES = 2 * 2 * 2 * 8 * 8
"""Of the tiny model in float64: two layers, keys and values, two heads of eight numbers."""
PLENTY = 1 << 30
Context = Literal["full", "frozen", "carried"]

PLAIN: dict[str, Any] = {"advantages": {"kind": "egae"}, "value": {}}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "proximal": {
        "advantages": {"kind": "egae", "boundary": "bootstrap"},
        "value": {"value_clip_low": 0.5, "value_clip_high": 0.6},
        "ratio": {"kind": "decoupled"},
        "penalties": {"positive_nll_coef": 0.1, "entropy_coef": 0.01},
    },
    "reference": {**PLAIN, "kl": {"coef": 0.1, "where": "loss"}},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return ModelConfig(path=str(save_tiny_model(tmp_path_factory.mktemp("model"))))


class Learner:
    """A policy and a critic in float64 behind plain engines."""

    def __init__(
        self,
        model: ModelConfig,
        context: Context,
        *,
        algorithm: dict[str, Any] = PLAIN,
        bound: int = PLENTY,
        budget: int = 4096,
        minibatches: int = 1,
        lr: float = 0.0,
        shares: bool = False,
    ) -> None:
        """`bound`: most bytes that are carried over of each model; `lr` 0: weights stand still;
        `shares`: openings are computed once."""
        kind: dict[str, Any] = {"dtype": torch.float64, "device": CPU}
        self.policy = PlainEngine(PolicyNetwork(load_policy(model, **kind)), lr=lr)
        critic = load_critic(model, **kind)
        torch.manual_seed(7)
        nn.init.normal_(critic.score.weight, std=0.3)
        self.critic = PlainEngine(ValueNetwork(critic), lr=lr)
        slots = build_algorithm(AlgorithmConfig.model_validate(algorithm), window=16)
        reference = None
        if slots.kl is not None:
            other = load_policy(model, **kind)
            torch.manual_seed(11)
            nn.init.normal_(other.model.norm.weight, mean=1.0, std=0.2)
            reference = PolicyNetwork(other)
        steps = OptimizerConfig(minibatches=minibatches)
        models = 2 if reference is None else 3
        config = LearnerConfig(
            policy=steps, value=steps, context=context, carried_gib=(bound + 1) * models / 2**30
        )
        place = RankContext(device=CPU, dtype=torch.float64, budget=budget, shares_openings=shares)
        self.updater = Updater(slots, self.policy, self.critic, config, place, reference=reference)

    def run(self, shard: Shard, update: int = 1, lineage: int = 0) -> UpdateOutcome:
        sent = batch_of(shard, update=update, lineage=lineage)
        return self.updater.run(sent.batch, sent.shards[0])

    def store(self, name: str = "policy") -> PrefixCache:
        return self.updater.carried[name]


def assert_same(found: UpdateOutcome, expected: UpdateOutcome) -> None:
    """What is said of each token and of the update; the models' norms work in float32."""
    for a, b in zip(found.diagnostics, expected.diagnostics, strict=True):
        for name in ("learner_logprobs", "values", "advantages"):
            np.testing.assert_allclose(a.columns[name], b.columns[name], rtol=1e-4, atol=1e-5)
    for name in ("actor/pg_loss", "critic/vf_loss", "actor/entropy", "actor/reference_kl"):
        if name in expected.metrics:
            wanted = pytest.approx(number(expected.metrics[name]), rel=1e-4, abs=1e-6)
            assert number(found.metrics[name]) == wanted, name


def assert_same_gradients(found: PlainEngine, expected: PlainEngine) -> None:
    assert len(found.history) == len(expected.history)
    for ours, theirs in zip(found.history, expected.history, strict=True):
        assert ours.keys() == theirs.keys()
        scale = torch.stack([g.norm() for g in theirs.values()]).norm()
        for name, gradient in theirs.items():
            assert (ours[name] - gradient).norm() <= 1e-5 * scale, name


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(sorted(ALGORITHMS)),
    window=st.sampled_from([3, 8, 16]),
    turns=st.booleans(),
    budget=st.sampled_from([15, 60, 4096]),
    minibatches=st.integers(1, 3),
    bound=st.sampled_from([0, 40, 150, PLENTY]),
    dropped=st.sampled_from([0.0, 0.4]),
)
def test_with_unchanged_weights_carried_is_computed_again(
    model: ModelConfig,
    seed: int,
    name: str,
    window: int,
    turns: bool,
    budget: int,
    minibatches: int,
    bound: int,
    dropped: float,
) -> None:
    """Logprobs, values, advantages and losses are those of `full`, gradients those of `frozen`,
    whatever was dropped on the way and however the batch is cut."""
    shard = record(seed=seed, trajectories=5, window=window, turns=turns)
    rng = np.random.default_rng(seed)
    settings: dict[str, Any] = {
        "algorithm": ALGORITHMS[name], "budget": budget, "minibatches": minibatches,
    }  # fmt: skip
    bound = min(PLENTY, bound * TOKEN_BYTES)
    carried = Learner(model, "carried", bound=bound, **settings)
    frozen = Learner(model, "frozen", **settings)
    full = Learner(model, "full", **settings)
    parts = streamed(shard, updates=4, rng=rng, dropped=dropped)
    for update, part in enumerate([p for p in parts if p.sequences], start=1):
        found = carried.run(part, update)
        assert found.skipped is None
        assert_same(found, full.run(part, update))
        frozen.run(part, update)
        for store in carried.updater.carried.values():
            kept = [piece for t in list(store._entries) for piece in store.pieces(t)]
            assert store.num_bytes == sum(piece.num_bytes for piece in kept) <= bound
    assert_same_gradients(carried.policy, frozen.policy)
    assert_same_gradients(carried.critic, frozen.critic)
    if not dropped and not turns and bound == PLENTY:
        assert all(store.figures.misses == 0 for store in carried.updater.carried.values())


def one_by_one(shard: Shard) -> list[Shard]:
    """Each update trains one window of each trajectory that is long enough; values at the end."""
    depth = max(sum(w.trajectory_id == s.trajectory_id for w in shard.windows)
                for s in shard.sequences)  # fmt: skip
    found = []
    for turn in range(depth):
        windows = [w for w in shard.windows if w.start == 8 * turn]
        ended = {w.trajectory_id for w in windows if w.finished}
        values = [v for v in shard.values if v.trajectory_id in ended]
        found.append(replace(shard, windows=windows, values=values))
    return found


def test_only_what_is_trained_is_computed(model: ModelConfig) -> None:
    """Later windows have no context at all; the first have their opening. Without carrying, four
    windows cost the prefix again each time."""
    shard = record(seed=1, trajectories=6, window=8, longest=32, unfinished=0.0)
    for context in ("carried", "frozen"):
        learner = Learner(model, context)
        for update, part in enumerate(one_by_one(shard), start=1):
            metrics = learner.run(part, update).metrics
            tokens = sum(w.end - w.start for w in part.windows)
            before = [shard.sequences[w.sequence].opening + w.start - 1 for w in part.windows]
            computed = 0 if update > 1 and context == "carried" else sum(before)
            expected = pytest.approx(computed / (tokens + computed))
            assert metrics["perf/context_share"] == expected, (context, update)
            if context == "carried":
                going_on = sum(not w.finished for w in part.windows)
                hits = len(part.windows) if update > 1 else 0
                ending = len(part.windows) - going_on if update > 1 else 0
                # The value model reads answers that end here as a whole.
                assert metrics["perf/carried_hits"] == 2 * hits - ending
                assert metrics["perf/carried_misses"] == 0
                assert len(learner.store()) == len(learner.store("critic")) == going_on
    assert learner.updater.carried == {}


def test_keys_are_as_old_as_the_update_that_made_them(model: ModelConfig) -> None:
    """Three windows, and weights that move: each window's logprobs are those of transformers with
    a cache that earlier weights wrote, window by window."""
    shard = record(seed=6, trajectories=1, window=8, longest=24, unfinished=1.0)
    (sequence,) = shard.sequences
    windows = shard.windows
    assert len(windows) > 1
    learner = Learner(model, "carried", lr=0.05)
    theirs = AutoModelForCausalLM.from_pretrained(
        model.path, dtype=torch.float64, attn_implementation="eager"
    )
    ids = torch.from_numpy(sequence.token_ids.astype(np.int64))[None]
    cache, computed = None, 0
    for update, window in enumerate(windows, start=1):
        theirs.load_state_dict(learner.policy.network.model.state_dict())  # type: ignore[union-attr]
        with torch.no_grad():
            end = sequence.opening + window.end - 1
            output = theirs(ids[:, computed:end], past_key_values=cache, use_cache=True)
        first = sequence.opening + window.start - 1
        log_p = output.logits[0, first - computed :].log_softmax(-1)
        expected = log_p.gather(1, ids[0, first + 1 : end + 1, None]).squeeze(1)
        cache, computed = output.past_key_values, end
        outcome = learner.run(replace(shard, windows=[window], values=[]), update)
        found = outcome.diagnostics[0].columns["learner_logprobs"]
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)
        if update > 1:
            # The tokens of window n - 1 are one update old, those of the first n - 1.
            sizes = [sequence.opening + 8 - 1, *[8] * (update - 2)]
            ages = [update - 1 - i for i in range(len(sizes))]
            mean = np.average(ages, weights=sizes)
            assert outcome.metrics["perf/carried_age"] == pytest.approx(mean)


def test_what_is_missing_is_computed_again_and_said(model: ModelConfig) -> None:
    """A store without room carries nothing: context as in `frozen`, each prefix a miss."""
    shard = record(seed=1, trajectories=6, window=8, longest=32, unfinished=0.0)
    learner, frozen = Learner(model, "carried", bound=0), Learner(model, "frozen")
    for update, part in enumerate(one_by_one(shard), start=1):
        found, expected = (one.run(part, update).metrics for one in (learner, frozen))
        assert found["perf/context_share"] == expected["perf/context_share"]
        assert found["perf/carried_hits"] == found["perf/carried_bytes"] == 0
        if update > 1:
            own = [w for w in part.windows if not w.finished]
            before = [shard.sequences[w.sequence].opening + w.start - 1 for w in part.windows]
            judged = [shard.sequences[w.sequence].opening + w.start - 1 for w in own]
            assert found["perf/carried_misses"] == len(part.windows) + len(own)
            assert found["perf/carried_recomputed_tokens"] == sum(before) + sum(judged)


def test_nothing_is_kept_of_an_update_that_was_broken_off(model: ModelConfig) -> None:
    """Its keys may be what was not finite; what earlier updates kept stays."""
    shard = record(seed=1, trajectories=6, window=8, longest=32, unfinished=0.0)
    first, second, third = one_by_one(shard)[:3]
    learner, healthy = Learner(model, "carried"), Learner(model, "carried")
    learner.run(first)
    before = learner.store().num_bytes
    bad = [replace(w, logprobs=np.full_like(w.logprobs, np.nan),
                   loss_weights=np.ones_like(w.logprobs)) for w in second.windows]  # fmt: skip
    assert learner.run(replace(second, windows=bad, values=[]), 2).skipped is not None
    ended = {w.trajectory_id for w in second.windows if w.finished}
    kept = sum(len(learner.store().pieces(t)) for t in learner.store()._entries)
    assert kept == len(learner.store()) == len({w.trajectory_id for w in first.windows
                                                if not w.finished} - ended)  # fmt: skip
    assert learner.store().num_bytes <= before
    healthy.run(first)
    again = learner.run(third, 3), healthy.run(third, 3)
    assert_same(*again)
    assert again[0].metrics["perf/carried_misses"] == len(third.windows) + sum(
        not w.finished for w in third.windows
    )


def test_another_line_of_updates_begins_with_nothing(model: ModelConfig) -> None:
    """After a rollback, and where the learner is told to forget (it is, at each checkpoint)."""
    shard = record(seed=1, trajectories=6, window=8, longest=32, unfinished=0.0)
    first, second = one_by_one(shard)[:2]
    for lineage, forgets in ((0, False), (1, False), (0, True)):
        learner = Learner(model, "carried")
        learner.run(first)
        assert learner.store().num_bytes > 0
        if forgets:
            learner.updater.forget()
            assert learner.store().num_bytes == len(learner.store()) == 0
        metrics = learner.run(second, 2, lineage).metrics
        assert (metrics["perf/carried_hits"] == 0) == (forgets or lineage == 1)


def test_a_trajectory_of_other_tokens_shares_nothing(model: ModelConfig) -> None:
    """Whoever serves a trajectory under a number that was used before gets no foreign keys."""
    first, second = one_by_one(record(seed=1, trajectories=6, window=8, longest=32))[:2]
    other = [replace(s, token_ids=np.roll(s.token_ids, 1)) for s in second.sequences]
    changed = replace(second, sequences=other)
    learner, full = Learner(model, "carried"), Learner(model, "full")
    learner.run(first)
    found = learner.run(changed, 2)
    assert found.metrics["perf/carried_hits"] == 0
    assert_same(found, full.run(changed, 2))


def test_activation_checkpointing_keeps_the_keys_of_the_first_pass(model: ModelConfig) -> None:
    """The backward pass computes them again, and changes nothing."""
    shard = record(seed=3, trajectories=6, window=8, longest=32)
    plain, checkpointed = (Learner(model, "carried", lr=0.01) for _ in range(2))
    inner = checkpointed.policy.network.model
    inner.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator, union-attr]
    inner.train()  # type: ignore[union-attr]
    for update, part in enumerate(one_by_one(shard), start=1):
        assert_same(checkpointed.run(part, update), plain.run(part, update))
    assert_same_gradients(checkpointed.policy, plain.policy)


def test_bfloat16_products_carry_bfloat16(model: ModelConfig) -> None:
    """Keys take the bytes of the numbers that attention multiplies."""
    kind: dict[str, Any] = {"dtype": torch.float32, "device": CPU}
    products: dict[str, Any] = {"autocast": torch.bfloat16}
    slots = build_algorithm(AlgorithmConfig.model_validate(PLAIN), window=8)
    shard = record(seed=3, trajectories=6, window=8, longest=32)
    found = []
    for context in ("carried", "full"):
        config = LearnerConfig.model_validate({"context": context})
        policy = PlainEngine(PolicyNetwork(load_policy(model, **kind), **products), lr=0.0)
        critic = PlainEngine(ValueNetwork(load_critic(model, **kind), **products), lr=0.0)
        updater = Updater(slots, policy, critic, config, RankContext(device=CPU))
        columns = []
        for update, part in enumerate(one_by_one(shard), start=1):
            sent = batch_of(part, update=update)
            outcome = updater.run(sent.batch, sent.shards[0])
            columns += [d.columns["learner_logprobs"] for d in outcome.diagnostics]
            for store in updater.carried.values():
                for trajectory in store._entries:
                    for key, value in store.pieces(trajectory)[0].layers:
                        assert key.dtype == value.dtype == torch.bfloat16
        found.append(np.concatenate(columns))
    np.testing.assert_allclose(found[0], found[1], rtol=0.05, atol=0.05)


# -- the store by itself ---------------------------------------------------------------------------


def keys(tokens: int, of: float) -> tuple[Tensor, Tensor]:
    return torch.full((tokens, 1, 2), of), torch.full((tokens, 1, 2), -of)


BYTES = 2 * 2 * 4
"""Of one token of `keys`: one layer of two numbers each in float32."""


def computed(
    store: PrefixCache, update: int, trajectories: dict[int, int], *, of: float = 0.0
) -> None:
    """One update that computes tokens up to some end of some trajectories."""
    store.begin_update(update, ())
    sources: list[CacheSource] = []
    place = 0
    for trajectory, end in trajectories.items():
        ids = np.arange(end, dtype=np.int32)
        begin = store.usable(trajectory, ids, end - 1, opening=1)
        sources.append(
            CacheSource(trajectory, ids, begin, end, (slice(place, place + end - begin),))
        )
        place += end - begin
    past = store.past(sources, CPU)
    past.add_layer(0, *keys(sum(s.end - s.begin for s in sources), of))
    store.store(past)
    store.end_update(sound=True)


def known(store: PrefixCache, trajectory: int) -> int:
    store.begin_update(99, ())
    return store.usable(trajectory, np.arange(100, dtype=np.int32), 99, opening=1)


def test_what_was_used_longest_ago_goes_first() -> None:
    store = PrefixCache(bound=30 * BYTES)
    computed(store, 1, {1: 10, 2: 10})
    computed(store, 2, {1: 15})
    assert store.num_bytes == 25 * BYTES
    computed(store, 3, {3: 10})
    assert len(store) == 2
    computed(store, 4, {4: 6})
    assert store.num_bytes == 16 * BYTES
    assert [known(store, t) for t in (1, 2, 3, 4)] == [0, 0, 10, 6]


def test_what_an_update_uses_does_not_go_in_it() -> None:
    """What finds no room is not kept, and what was there is still read."""
    store = PrefixCache(bound=20 * BYTES)
    computed(store, 1, {1: 10, 2: 10})
    computed(store, 2, {1: 12, 2: 12})
    assert store.num_bytes == 20 * BYTES
    assert [known(store, t) for t in (1, 2)] == [10, 10]


def test_pieces_are_read_in_order_and_once() -> None:
    """The first pass of an update counts; a pack reads no more than stands before it."""
    store = PrefixCache(bound=PLENTY)
    computed(store, 1, {1: 4}, of=1.0)
    computed(store, 2, {1: 9}, of=2.0)
    store.begin_update(3, ())
    ids = np.arange(20, dtype=np.int32)
    assert store.usable(1, ids, 6, opening=1) == 6
    for again in (3.0, 4.0):
        past = store.past([CacheSource(1, ids, 6, 12, (slice(0, 6),))], CPU)
        key, value = past.read(0)
        assert key[:, 0, 0].tolist() == [1, 1, 1, 1, 2, 2]
        assert torch.equal(value, -key)
        past.add_layer(0, *keys(6, again))
        store.store(past)
        past.add_layer(0, *keys(6, 9.0))
        assert not past._noted, "what activation checkpointing computes again is not held"
    assert [(p.update, p.tokens) for p in store.pieces(1)] == [(1, 4), (2, 5), (3, 3)]
    assert store.pieces(1)[-1].layers[0][0][0, 0, 0] == 3.0
    assert store.figures.age == 4 * 2 + 2 * 1


def test_an_answer_that_ended_is_let_go() -> None:
    store = PrefixCache(bound=PLENTY)
    computed(store, 1, {1: 4, 2: 4})
    store.begin_update(2, {1})
    store.end_update(sound=True)
    assert len(store) == 1
    assert store.num_bytes == 4 * BYTES
    store.forget()
    assert (len(store), store.num_bytes) == (0, 0)
