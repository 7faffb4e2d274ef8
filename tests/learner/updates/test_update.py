"""An update does not depend on how it is cut, and T-PPO with whole windows is PPO to the bit."""

import dataclasses
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from headrace.config.sections.algorithm import AlgorithmConfig
from headrace.config.sections.generator import FireConfig
from headrace.config.sections.learner import LearnerConfig, OptimizerConfig
from headrace.config.sections.model import ModelConfig
from headrace.protocol.messages.batches import Shard
from headrace.protocol.messages.diagnostics import COLUMN_NAMES
from headrace.protocol.token_spans import Reward, Span
from learner.algorithms.advantages import gae
from learner.algorithms.registry import Algorithm, build_algorithm
from learner.batching.group_statistics import Groups
from learner.batching.segments import Segments
from learner.batching.token_reads import reads_of, sampled_windows
from learner.device import RankContext
from learner.models.deepspeed_engine import StepLog
from learner.models.forward import PolicyNetwork, ValueNetwork
from learner.models.inference import infer
from learner.models.loading import load_critic, load_policy
from learner.updates.update import UpdateOutcome, Updater
from tests.learner.plain_engine import PlainEngine
from tests.learner.recorded import (
    Sent,
    alone,
    batch_of,
    in_group_of,
    numbers,
    record,
    save_tiny_model,
)
from tests.learner.test_golden import Meeting, ThreadPlace
from tests.metric_values import number

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return ModelConfig(path=str(save_tiny_model(tmp_path_factory.mktemp("model"))))


def tppo(*, fire: FireConfig | None = None, **changes: object) -> Algorithm:
    config = {
        "advantages": {"kind": "egae", "length_adaptive_alpha": 0.5, "gae_lambda_policy": 0.9},
        "value": {"value_clip_low": 0.5, "value_clip_high": 0.6},
        "penalties": {"positive_nll_coef": 0.1, "entropy_coef": 0.01},
        **changes,
    }
    return build_algorithm(AlgorithmConfig.model_validate(config), window=16, fire=fire)


class Learner:
    """A policy and a critic in float64 behind plain engines."""

    def __init__(
        self,
        model: ModelConfig,
        algorithm: Algorithm,
        *,
        budget: int = 4096,
        chunk: int = 4096,
        minibatches: int = 1,
        context: Literal["full", "frozen"] = "full",
        lr: float = 1e-2,
        place: RankContext | None = None,
    ) -> None:
        kind: dict[str, Any] = {"dtype": torch.float64, "device": CPU}
        network = PolicyNetwork(load_policy(model, **kind), logits_chunk=chunk)
        self.policy = PlainEngine(network, lr=lr)
        critic = load_critic(model, **kind)
        torch.manual_seed(7)
        nn.init.normal_(critic.score.weight, std=0.3)
        self.critic = PlainEngine(ValueNetwork(critic), lr=lr)
        settings = OptimizerConfig(minibatches=minibatches)
        config = LearnerConfig(policy=settings, value=settings, context=context)
        place = place or RankContext(device=CPU, dtype=torch.float64, budget=budget)
        has_critic = algorithm.value is not None
        self.reference = None
        if algorithm.kl is not None:
            other = load_policy(model, **kind)
            torch.manual_seed(11)
            nn.init.normal_(other.model.norm.weight, mean=1.0, std=0.2)
            self.reference = PolicyNetwork(other, logits_chunk=chunk)
        self.updater = Updater(
            algorithm, self.policy, self.critic if has_critic else None, config, place,
            reference=self.reference,
        )  # fmt: skip

    def run(self, sent: Sent) -> UpdateOutcome:
        return self.updater.run(sent.batch, sent.shards[0])

    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten() for e in (self.policy, self.critic)
                          for p in e.network.parameters()])  # fmt: skip


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize(
    "algorithm",
    [
        tppo(),
        tppo(aggregate="sample_mean", ratio={"kind": "decoupled"}),
        tppo(aggregate="fixed_length", ratio={"kind": "decoupled", "proximal": "interpolated"}),
        tppo(advantages={"kind": "egae", "boundary": "bootstrap"}, ratio={"kind": "tis"}),
        tppo(ratio={"kind": "tis", "level": "sequence", "geometric_filter": [0.5, 2.0]}),
        tppo(kl={"coef": 0.1, "where": "loss"}, overlong={"cache": 8}),
        tppo(kl={"coef": 0.1, "where": "reward", "estimator": "k1"}),
        tppo(value={"gae_lambda_value": 0.9, "aggregate": "token_mean"}),
        tppo(fire=FireConfig(correction="ratio")),
        tppo(fire=FireConfig(correction="recompute"), ratio={"kind": "decoupled"}),
    ],
    ids=[
        "tppo",
        "decoupled",
        "interpolated",
        "bootstrap",
        "sequence",
        "kl-loss",
        "kl-reward",
        "lambda-target",
        "fire-ratio",
        "fire-recompute",
    ],
)
@pytest.mark.parametrize(("minibatches", "turns"), [(1, False), (3, True)])
def test_the_cut_into_micro_batches_changes_nothing(
    model: ModelConfig, algorithm: Algorithm, minibatches: int, turns: bool
) -> None:
    """One micro-batch or many, logits at once or in pieces of five tokens."""
    learners = [
        Learner(model, algorithm, budget=budget, chunk=chunk, minibatches=minibatches)
        for budget, chunk in ((100_000, 4096), (90, 5))
    ]
    for update in (1, 2):
        hot = algorithm.hot.reads_start
        batch = batch_of(record(seed=update, turns=turns, hot=hot), update=update)
        whole, cut = (learner.run(batch) for learner in learners)
        assert whole.metrics["actor/steps"] == minibatches
        for name, value in whole.metrics.items():
            if not name.startswith(("timing_s/", "perf/")):
                wanted = pytest.approx(numbers(value), rel=1e-8, abs=1e-10, nan_ok=True)
                assert numbers(cut.metrics[name]) == wanted, name
    assert relative(learners[1].weights(), learners[0].weights()) < 1e-12


def test_start_values_are_those_of_the_first_weights(model: ModelConfig) -> None:
    """Whatever number of optimizer steps follows, and whoever runs the sequence forward."""
    batch = batch_of(record(seed=5))
    found = [
        Learner(model, tppo(), minibatches=minibatches).run(batch).diagnostics
        for minibatches in (1, 4)
    ]
    for one, four in zip(*found, strict=True):
        np.testing.assert_allclose(one.columns["values"], four.columns["values"], rtol=1e-6)
        np.testing.assert_allclose(
            one.columns["advantages"], four.columns["advantages"], rtol=1e-4, atol=1e-6
        )


def test_explained_variance_is_of_returns_whatever_the_targets_are(model: ModelConfig) -> None:
    """A target below lambda 1 holds the values that it would be explained by."""
    batch = batch_of(record(seed=5))
    plain, mixed = (
        Learner(model, tppo(value={"gae_lambda_value": lam})).run(batch).metrics
        for lam in (1.0, 0.9)
    )
    assert number(mixed["critic/returns/mean"]) != pytest.approx(
        number(plain["critic/returns/mean"]), rel=1e-3
    )
    for name in ("critic/vf_explained_var", "critic/value_bias", "value/cut_rmse", "value/rmse"):
        assert numbers(mixed[name]) == pytest.approx(numbers(plain[name]), nan_ok=True), name


def test_a_hot_token_is_compared_with_the_weights_of_the_updates_start(model: ModelConfig) -> None:
    """Whichever optimizer step trains it; and the rest of the batch is not asked beforehand."""
    shard = record(seed=5, hot=True)
    windows = [replace(w, loss_weights=np.ones_like(w.loss_weights)) for w in shard.windows]
    shard = replace(shard, windows=windows)
    algorithm = tppo(fire=FireConfig(correction="ratio"))
    one, many = (Learner(model, algorithm, minibatches=n, lr=0.1) for n in (1, 4))
    figures = [learner.run(batch_of(shard)).metrics for learner in (one, many)]
    for name in ("rollout/hot_tokens", "rollout/hot_ratio_mean", "rollout/hot_over_cap"):
        assert figures[1][name] == pytest.approx(figures[0][name], rel=1e-6), name
    assert (one.policy.passes, many.policy.passes) == (1, 5)
    later = Learner(model, algorithm, minibatches=4)
    later.run(batch_of(record(seed=5)))
    assert later.policy.passes == 4, "no token is hot"
    masked = Learner(model, tppo(fire=FireConfig(correction="mask")), minibatches=4)
    masked.run(batch_of(shard))
    assert masked.policy.passes == 4, "the coordinator has left them out"


def test_hot_tokens_count_neither_as_old_nor_as_another_engines(model: ModelConfig) -> None:
    """Their sampler is another one on purpose: with its logprobs far off, no figure of age or
    engine moves."""
    shard, algorithm = record(seed=5, hot=True), tppo(fire=FireConfig(correction="ratio"))
    foreign = []
    for window in shard.windows:
        logprobs = window.logprobs.copy()
        for mark in window.marks:
            logprobs[mark.start - window.start] = -9.0
        foreign.append(replace(window, logprobs=logprobs))
    usual, far = (
        Learner(model, algorithm).run(batch_of(replace(shard, windows=windows), version=1)).metrics
        for windows in (shard.windows, foreign)
    )
    assert "rollout/logprob_diff_max" in usual
    for name in usual:
        if name.startswith(("rollout/weight", "rollout/logprob", "rollout/mismatch")):
            assert far[name] == usual[name], name
    assert far["rollout/hot_ratio_mean"] != usual["rollout/hot_ratio_mean"]


def test_the_critic_judges_before_it_learns_the_outcome(model: ModelConfig) -> None:
    """Values and advantages of an update come from the critic before its first step, although the
    outcomes of the same answers train it in that update."""
    shard = record(seed=5, unfinished=0.0)
    assert {w.trajectory_id for w in shard.windows} == {v.trajectory_id for v in shard.values}
    still, moving = Learner(model, tppo()), Learner(model, tppo(), minibatches=3)
    moving.critic = PlainEngine(moving.critic.network, lr=0.5)
    ((slots, _),) = moving.updater._critics
    moving.updater._critics = [(slots, moving.critic)]
    before = still.run(batch_of(replace(shard, values=[])))
    after = moving.run(batch_of(shard, value_epochs=4))
    assert (still.critic.steps, moving.critic.steps) == (0, 12)
    for a, b in zip(before.diagnostics, after.diagnostics, strict=True):
        for name in ("values", "advantages"):
            np.testing.assert_allclose(a.columns[name], b.columns[name], rtol=1e-4, atol=1e-5)
    again = moving.run(batch_of(replace(shard, values=[])))
    known, later = (
        np.concatenate([d.columns["values"] for d in outcome.diagnostics])
        for outcome in (before, again)
    )
    assert np.abs(known - later).max() > 0.1


def test_windows_of_one_trajectory_share_a_sequence(model: ModelConfig) -> None:
    """Three windows of one response cost the tokens of one."""
    shard = record(seed=1, trajectories=6, longest=48, unfinished=0.0)
    outcome = Learner(model, tppo()).run(batch_of(replace(shard, values=[])))
    tokens = sum(w.end - w.start for w in shard.windows)
    context = sum(s.opening - 1 for s in shard.sequences)
    assert outcome.metrics["perf/context_share"] == pytest.approx(context / (tokens + context))


def test_a_batch_without_windows_moves_the_critic_alone(model: ModelConfig) -> None:
    """Value warm-up; and a batch without finished responses moves the policy alone."""
    learner = Learner(model, tppo())
    shard = record(seed=2)
    warm_up = learner.run(batch_of(replace(shard, windows=[]), value_epochs=3))
    assert (warm_up.policy_moved, warm_up.skipped) == (False, None)
    assert (learner.policy.steps, learner.critic.steps) == (0, 3)
    assert learner.run(batch_of(replace(shard, values=[]))).policy_moved
    assert (learner.policy.steps, learner.critic.steps) == (1, 3)


def broken(where: str) -> Shard:
    """A recorded shard with something that is not finite in one of the last."""
    shard = record(seed=2)
    windows, values = shard.windows, shard.values
    if where == "logprobs":
        bad, weights = (np.full_like(windows[-1].logprobs, x) for x in (np.nan, 1.0))
        windows[-1] = replace(windows[-1], logprobs=bad, loss_weights=weights)
    if where == "weight":
        windows[-1] = replace(windows[-1], loss_weights=np.full_like(windows[-1].logprobs, np.inf))
    if where == "reward":
        last = max(i for i, w in enumerate(windows) if w.finished)
        windows[last] = replace(windows[last], rewards=[Reward(np.inf, windows[last].end - 1)])
    if where == "value reward":
        values[-1] = replace(values[-1], rewards=[Reward(np.nan, values[-1].length - 1)])
    return shard


@pytest.mark.parametrize("minibatches", [1, 4])
@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("logprobs", "generator's logprobs (16)"),
        ("weight", "loss weights (16)"),
        ("reward", "rewards (1)"),
        ("value reward", "values and value targets ("),
        ("critic", "values and value targets"),
    ],
)
def test_what_goes_in_not_finite_moves_nothing(
    model: ModelConfig, where: str, named: str, minibatches: int
) -> None:
    """In either half, in whichever minibatch: no optimizer step of any model; the next trains."""
    learner = Learner(model, tppo(), minibatches=minibatches)
    if where == "critic":
        with torch.no_grad():
            learner.critic.network.get_parameter("model.score.bias").fill_(math.nan)
    before = learner.weights()
    outcome = learner.run(batch_of(broken(where)))
    assert str(outcome.skipped).startswith(f"not finite: {named}"), outcome.skipped
    assert not outcome.policy_moved
    assert (outcome.metrics["actor/steps"], outcome.metrics["critic/steps"]) == (0, 0)
    assert outcome.metrics["actor/skipped_steps"] == 1
    torch.testing.assert_close(learner.weights(), before, rtol=0, atol=0, equal_nan=True)
    if where != "critic":
        good = learner.run(batch_of(record(seed=3)))
        assert good.skipped is None
        assert good.metrics["actor/steps"] == good.metrics["critic/steps"] == minibatches


@pytest.mark.parametrize(
    ("half", "reason"),
    [
        ("policy", "policy is not finite; optimizer steps that stay: 4 of the value model, 1 of"),
        ("critic", "value model is not finite; optimizer steps that stay: 1 of the value model"),
    ],
)
def test_a_gradient_that_overflows_ends_the_update(
    model: ModelConfig, half: str, reason: str
) -> None:
    """All that goes in is finite, and the second optimizer step is not: it is the last one, of both
    models, and what was applied stays unpublished."""
    learner = Learner(model, tppo(), minibatches=4)
    engine = getattr(learner, half)
    parameter = next(engine.network.parameters())
    parameter.register_hook(lambda g: g * torch.inf if len(engine.history) == 1 else g)
    outcome = learner.run(batch_of(record(seed=2)))
    assert reason in str(outcome.skipped), outcome.skipped
    assert "already" not in str(outcome.skipped)
    assert engine.steps == 1
    assert learner.policy.steps == (1 if half == "policy" else 0)
    assert learner.weights().isfinite().all()
    told = np.concatenate([d.columns["learner_logprobs"] for d in outcome.diagnostics])
    assert np.isnan(told).any(), "of tokens that no step came to"
    assert (told[~np.isnan(told)] != 0).all()


def test_without_a_critic_what_is_not_finite_moves_nothing_either(model: ModelConfig) -> None:
    """Not even the steps before the one that would have seen it."""
    algorithm = tppo(
        advantages={"kind": "group", "baseline": "none", "scale": "none"}, value=None, penalties={}
    )
    learner = Learner(model, algorithm, minibatches=4)
    outcome = learner.run(batch_of(alone(replace(broken("logprobs"), values=[]))))
    assert str(outcome.skipped).startswith("not finite: generator's logprobs")
    assert learner.policy.steps == 0


def test_what_one_rank_finds_not_finite_no_rank_trains_on(model: ModelConfig) -> None:
    meeting = Meeting(2)
    shards = [replace(broken("value reward"), windows=[]), replace(record(seed=3), windows=[])]
    learners = [
        Learner(
            model, tppo(),
            place=ThreadPlace(CPU, rank=rank, world=2, dtype=torch.float64, meeting=meeting),
        )
        for rank in range(2)
    ]  # fmt: skip
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(
            pool.map(
                lambda pair: pair[0].run(batch_of(pair[1])), zip(learners, shards, strict=True)
            )
        )
    assert [str(o.skipped)[:33] for o in outcomes] == ["not finite: values and value targ"] * 2
    assert [learner.critic.steps for learner in learners] == [0, 0]


def test_tokens_are_dealt_anew_in_each_epoch(model: ModelConfig) -> None:
    """With weights that stay where they are, steps of the same trajectories have one gradient."""
    learner = Learner(model, tppo(), minibatches=2, lr=0.0)
    learner.run(batch_of(record(seed=2), value_epochs=2))
    first, *_ = learner.critic.history
    assert len(learner.critic.history) == 4
    name = max(first, key=lambda name: first[name].numel())
    for later in learner.critic.history[2:]:
        assert relative(later[name], first[name]) > 1e-6


def test_steps_of_the_update_are_no_mismatch_of_engines(model: ModelConfig) -> None:
    """Tokens that a later step reads first are compared with nothing."""
    shard = replace(record(seed=3, version=4), values=[])
    one, many = (Learner(model, tppo(), minibatches=n, lr=0.5) for n in (1, 4))
    largest = [
        number(learner.run(batch_of(shard, version=4)).metrics["rollout/logprob_diff_max"])
        for learner in (one, many)
    ]
    assert 0 < largest[1] <= largest[0] * (1 + 1e-6)


def test_the_gradient_norm_is_the_mean_of_all_steps(model: ModelConfig) -> None:
    learner = Learner(model, tppo(), minibatches=3)
    metrics = learner.run(batch_of(record(seed=2))).metrics
    for prefix, engine in (("actor", learner.policy), ("critic", learner.critic)):
        steps = [torch.cat([g.flatten() for g in step.values()]) for step in engine.history]
        norms = [gradient.norm().item() for gradient in steps]
        assert len(set(norms)) == 3
        assert metrics[f"{prefix}/grad_norm"] == pytest.approx(sum(norms) / 3, rel=1e-9)


def test_fewer_trajectories_than_minibatches(model: ModelConfig) -> None:
    """One trajectory is one optimizer step, of the same size whatever number was asked for."""
    shard = record(seed=1, trajectories=1, unfinished=0.0)
    found = []
    for minibatches in (1, 4):
        learner = Learner(model, tppo(), minibatches=minibatches)
        found.append(learner.run(batch_of(shard)).metrics)
    for name in ("actor/grad_norm", "critic/grad_norm", "actor/pg_loss", "critic/vf_loss"):
        assert found[1][name] == pytest.approx(found[0][name], rel=1e-9), name


@pytest.mark.parametrize("minibatches", [2, 3])
@pytest.mark.parametrize("aggregate", ["token_mean", "sample_mean"])
def test_the_steps_of_an_update_average_to_the_whole(
    model: ModelConfig, minibatches: int, aggregate: str
) -> None:
    """While the weights stay where they are, the gradients of the optimizer steps have the update's
    as their mean: a step is as large as the whole, whatever number of them there is."""
    batch = batch_of(record(seed=2))
    algorithm = tppo(aggregate=aggregate)
    one, many = (Learner(model, algorithm, minibatches=n, lr=0.0) for n in (1, minibatches))
    one.run(batch)
    many.run(batch)
    for whole, parts in ((one.policy, many.policy), (one.critic, many.critic)):
        assert len(parts.history) == minibatches
        for name, gradient in whole.gradients.items():
            steps = torch.stack([step[name] for step in parts.history])
            # The models' norms work in float32, whatever the weights are.
            assert relative(steps.mean(dim=0), gradient) < 1e-5, name


def test_same_version_means_the_whole_prefix(model: ModelConfig) -> None:
    """The mismatch of engines counts first windows up to the first token of another version."""
    shard = replace(record(seed=3, version=4), values=[])
    learner = Learner(model, tppo())
    outcome = learner.run(batch_of(shard, version=4))
    assert number(outcome.metrics["rollout/logprob_diff"]) > 0
    assert "rollout/logprob_diff" not in learner.run(batch_of(shard, version=5)).metrics


def in_groups(shard: Shard, size: int = 3) -> Shard:
    """Whole answers in groups, with scores and lengths of their own."""
    shard = replace(shard, values=[])
    grouped = shard
    ids = [s.trajectory_id for s in shard.sequences]
    for group in range(-(-len(ids) // size)):
        members = ids[group * size : (group + 1) * size]
        rng = np.random.default_rng(group)
        scores = rng.random(len(members)).astype(np.float32)
        lengths = rng.integers(1, 40, len(members)).astype(np.int32)
        grouped = in_group_of(grouped, 50 + group, members, scores=scores, lengths=lengths)
    score = {t: float(x) for g in grouped.groups for t, x in zip(g.trajectory_ids, g.scores,
                                                                 strict=True)}  # fmt: skip
    windows = [
        replace(
            w, finished=True, correct=True,
            rewards=[Reward(score[w.trajectory_id], w.end - 1)],
        )
        for w in shard.windows
    ]  # fmt: skip
    return replace(grouped, windows=windows)


@pytest.mark.parametrize("ranks", [1, 2])
def test_group_advantages_need_no_critic(model: ModelConfig, ranks: int) -> None:
    """Each token has its response's advantage in the whole group, whatever the shard holds."""
    algorithm = tppo(advantages={"kind": "group"}, value=None)
    shard = batch_of(in_groups(record(seed=4, longest=16)), ranks=ranks).shards[0]
    learner = Learner(model, algorithm)
    outcome = learner.run(batch_of(shard))
    assert learner.critic.steps == 0
    groups = {t: g for g in shard.groups for t in g.trajectory_ids}
    for window, diagnostics in zip(shard.windows, outcome.diagnostics, strict=True):
        group = groups[window.trajectory_id]
        rewards = group.scores.astype(np.float64)
        spread = rewards.std(ddof=1) + 1e-6 if rewards.size > 1 else 1e-6
        own = group.trajectory_ids.index(window.trajectory_id)
        expected = (rewards[own] - rewards.mean()) / spread
        found = diagnostics.columns
        np.testing.assert_allclose(found["advantages"], expected, rtol=1e-5, atol=1e-6)
        assert np.isnan(found["values"]).all()
        np.testing.assert_allclose(found["returns"], window.rewards[0].value, rtol=1e-6)


def test_overlong_responses_pay_before_the_group_is_compared(model: ModelConfig) -> None:
    """A group of equal scores and unequal lengths has advantages; the score itself is kept."""
    algorithm = build_algorithm(
        AlgorithmConfig.model_validate(
            {
                "advantages": {"kind": "group", "scale": "none"},
                "overlong": {"cache": 8},
                "penalties": {"positive_nll_coef": 0.1},
            }
        ),
        window=16,
    )
    shard = record(seed=4, longest=16, unfinished=0.0, trajectories=2)
    shard = in_group_of(
        replace(shard, values=[]), 9, [0, 1],
        scores=np.ones(2, np.float32), lengths=np.array([8, 12], np.int32),
    )  # fmt: skip
    outcome = Learner(model, algorithm).run(batch_of(shard))
    found = [d.columns["advantages"][0] for d in outcome.diagnostics]
    assert found == pytest.approx([0.25, -0.25])


def test_a_divergence_in_the_reward_is_paid_by_the_tokens_before_it(model: ModelConfig) -> None:
    """Critic-free: A_t = group advantage - coef * sum of the divergence from t on; and the returns
    hold it too. A token that does not train pays as well, even if its sampler was certain."""
    plain: dict[str, Any] = {
        "advantages": {"kind": "group", "baseline": "none", "scale": "none"},
        "value": None,
    }
    shard = in_groups(record(seed=4, longest=16, unfinished=0.0), size=1)
    certain = [
        replace(w, logprobs=np.where(w.loss_weights > 0, w.logprobs, np.float32(0.0)))
        for w in shard.windows
    ]
    assert any((w.logprobs == 0).any() for w in certain)
    shard = replace(shard, windows=certain)
    penalised = tppo(**plain, kl={"coef": 0.5, "where": "reward", "estimator": "k1"})
    learner = Learner(model, penalised)
    outcome = learner.run(batch_of(shard))
    assert number(outcome.metrics["actor/reference_kl"]) > 0
    place = RankContext(device=CPU, dtype=torch.float64)
    sampled = sampled_windows(shard.sequences, shard.windows)
    reads = reads_of(shard.sequences, shard.windows, sampled)
    assert learner.reference is not None
    known = infer(
        learner.reference, reads, range(len(shard.sequences)), place, log=StepLog()
    ).numpy()
    start = 0
    for window, diagnostics in zip(shard.windows, outcome.diagnostics, strict=True):
        ratio = window.logprobs - known[start : start + window.end]
        start += window.end
        paid = 0.5 * np.cumsum(ratio[::-1])[::-1]
        for name in ("advantages", "returns"):
            found = diagnostics.columns[name]
            np.testing.assert_allclose(found, window.rewards[0].value - paid, rtol=1e-5)


def test_right_answers_are_likely_over_all_their_windows(model: ModelConfig) -> None:
    """The positive term has the tokens of earlier windows too: its gradient is that of the mean
    over the whole response, as if it were one window."""
    algorithm = tppo(
        advantages={"kind": "group", "baseline": "none", "scale": "none"},
        value=None,
        penalties={"positive_nll_coef": 1.0},
    )
    shard = record(seed=1, trajectories=4, longest=48, unfinished=0.0)
    shard = alone(replace(shard, values=[]), 0.0)
    last = {w.trajectory_id: w for w in shard.windows}
    ends = [
        replace(w, correct=True, rewards=[], loss_weights=np.ones_like(w.loss_weights))
        for w in last.values()
    ]
    assert any(w.start for w in ends)
    rng = np.random.default_rng(0)
    whole = [
        replace(
            w, start=0, logprobs=rng.normal(-3.4, 0.3, w.end).astype(np.float32),
            spans=[Span(1, 0, w.end)], loss_weights=np.ones(w.end, np.float32),
        )
        for w in ends
    ]  # fmt: skip
    made = []
    for windows in (ends, whole):
        learner = Learner(model, algorithm)
        learner.run(batch_of(replace(shard, windows=windows)))
        made.append(learner.policy.gradients)
    for name, gradient in made[0].items():
        assert relative(gradient, made[1][name]) < 1e-9, name


def test_frozen_context_passes_no_gradient_to_the_prefix(model: ModelConfig) -> None:
    """The forward pass is the same; tokens that occur in the context alone get no gradient."""
    shard = record(seed=6, trajectories=3, longest=40, unfinished=0.0)
    later = [w for w in shard.windows if w.start >= 16]
    read = [
        s.token_ids[s.opening + w.start - 1 : s.opening + w.end - 1]
        for w in later
        for s in [shard.sequences[w.sequence]]
    ]
    seen = np.unique(np.concatenate(read))
    itself = {"kind": "group", "baseline": "none", "scale": "none"}
    untied: dict[str, Any] = {"advantages": itself, "value": None, "penalties": {}}
    gradients = {}
    for context in ("full", "frozen"):
        learner = Learner(model, tppo(**untied), context=context)
        given = alone(replace(shard, windows=later, values=[]))
        outcome = learner.run(batch_of(given))
        gradients[context] = learner.policy.gradients, outcome.metrics["actor/pg_loss"]
    full, frozen = gradients["full"], gradients["frozen"]
    assert full[1] == frozen[1]
    name = "model.model.layers.0.self_attn.k_proj.weight"
    assert relative(frozen[0][name], full[0][name]) > 1e-3
    assert seen.size < 32


def ppo_with_gae(algorithm: Algorithm, lam: float) -> Algorithm:
    """Textbook PPO: every window is a whole response and its advantages are plain GAE."""

    def advantages(
        rewards: Tensor,
        token_rewards: Tensor,
        values: Tensor | None,
        segments: Segments,
        groups: Groups,
    ) -> Tensor:
        assert values is not None
        stops = segments.cu_lengths.tolist()
        return torch.cat(
            [gae(rewards[a:b], values[a:b], gamma=1.0, lam=lam) for a, b in pairwise(stops)]
        )

    fixed: Callable[[Tensor, Tensor], Tensor] = partial(_fixed, lam)
    return dataclasses.replace(algorithm, advantages=advantages, lambdas=fixed)


def _fixed(lam: float, length: Tensor, finished: Tensor) -> Tensor:
    return torch.full_like(length, lam, dtype=torch.float64)


def test_tppo_with_whole_windows_is_ppo_to_the_bit(model: ModelConfig) -> None:
    """Staleness 0 and a window that no response reaches: forward, advantages, losses, gradients
    and weights in float64 are those of PPO with GAE."""
    plain = tppo(advantages={"kind": "egae", "gae_lambda_policy": 0.95, "boundary": "copy"})
    pair = [
        Learner(model, algorithm, budget=200, minibatches=2)
        for algorithm in (plain, ppo_with_gae(plain, 0.95))
    ]
    for update in (1, 2, 3):
        shard = record(seed=update, window=64, longest=40, unfinished=0.0)
        assert all(w.finished and w.start == 0 for w in shard.windows)
        batch = batch_of(shard, update=update)
        ours, theirs = (learner.run(batch) for learner in pair)
        for a, b in zip(ours.diagnostics, theirs.diagnostics, strict=True):
            for name in COLUMN_NAMES:
                assert a.columns[name].tobytes() == b.columns[name].tobytes()
        for name in ("actor/pg_loss", "critic/vf_loss"):
            assert ours.metrics[name] == theirs.metrics[name]
        for engine in ("policy", "critic"):
            a, b = (getattr(learner, engine).gradients for learner in pair)
            assert a.keys() == b.keys()
            assert all(torch.equal(a[name], b[name]) for name in a)
        assert torch.equal(pair[0].weights(), pair[1].weights())
