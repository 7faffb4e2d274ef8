"""The loss of a whole update against a slow twin in the papers' notation, with its gradients.

The twin knows neither packs nor micro-batches nor our attention: it takes each window's sequence
through transformers' own model alone, and goes from rewards and values to one number token by
token.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, PreTrainedModel

from headrace.config.sections.algorithm import (
    AlgorithmConfig,
    BehaviourRatioConfig,
    ClippedLossConfig,
    DecoupledRatioConfig,
    EgaeConfig,
    TisRatioConfig,
)
from headrace.config.sections.generator import FireConfig
from headrace.config.sections.learner import LearnerConfig, OptimizerConfig
from headrace.config.sections.model import ModelConfig
from headrace.protocol.messages.batches import BatchSequence, PolicyWindow, Shard, ValueTrajectory
from headrace.protocol.messages.control import Batch
from headrace.protocol.token_spans import Reward
from learner.algorithms.registry import build_algorithm
from learner.device import RankContext
from learner.models.forward import PolicyNetwork, ValueNetwork
from learner.models.loading import load_critic, load_policy
from learner.updates.update import UpdateOutcome, Updater
from tests.learner import reference
from tests.learner.algorithms.test_advantages import f64
from tests.learner.plain_engine import PlainEngine
from tests.learner.recorded import batch_of, record, save_tiny_model, with_value_logprobs
from tests.learner.test_twins import number

CPU = torch.device("cpu")
VERSION, WINDOW, LONGEST = 4, 16, 40


@dataclass
class Recipe:
    """A configuration, the window it is run at, how near the sampler's logprobs are to the
    policy's (None: made up), whether the policy and tools take turns, how hot tokens were
    sampled (None: there are none), and whether the critic alone is told something."""

    config: AlgorithmConfig
    window: int
    near: float | None
    turns: bool
    fire: FireConfig | None
    told: bool

    @property
    def egae(self) -> EgaeConfig:
        assert isinstance(self.config.advantages, EgaeConfig)
        return self.config.advantages


@dataclass
class Scores:
    """What a sequence is under one model: for each position, from 0 on."""

    logprobs: list[Tensor]
    entropies: list[Tensor]


def recipe(
    *,
    window: int = WINDOW,
    near: float | None = None,
    turns: bool = False,
    fire: FireConfig | None = None,
    told: bool = False,
    **changes: object,
) -> Recipe:
    config = {
        "advantages": {"kind": "egae", "length_adaptive_alpha": 0.5, "gae_lambda_policy": 0.9},
        "value": {"value_clip_low": 0.05, "value_clip_high": 0.06},
        "penalties": {"positive_nll_coef": 0.1},
        **changes,
    }
    return Recipe(AlgorithmConfig.model_validate(config), window, near, turns, fire, told)


def scores_of(model: PreTrainedModel, sequence: BatchSequence) -> Scores:
    """One sequence alone through transformers' own forward pass."""
    ids = torch.from_numpy(sequence.token_ids.astype(np.int64))
    log_p = model(ids[None]).logits[0].log_softmax(-1)
    places = range(sequence.opening, ids.numel())
    return Scores(
        [log_p[p - 1, ids[p]] for p in places],
        [-(log_p[p - 1].exp() * log_p[p - 1]).sum() for p in places],
    )


def values_of(model: PreTrainedModel, sequence: BatchSequence) -> list[Tensor]:
    """V(s_0) to V(s_T): T + 1 numbers of a sequence of T positions. What the critic alone is told
    stands before the answer."""
    said = [] if sequence.aside is None else sequence.aside.tolist()
    own = sequence.token_ids.tolist()
    ids = torch.tensor(own[: sequence.opening] + said + own[sequence.opening :])
    return list(model(ids[None]).logits[0, sequence.opening + len(said) - 1 :, 0].unbind())


def floats(x: Sequence[Tensor]) -> list[float]:
    return [y.item() for y in x]


def places(sequence: BatchSequence, start: int, end: int) -> list[int]:
    """The sampled positions among [start, end)."""
    whose = [p for a, b in sequence.sampled for p in range(a, b)]
    return [p for p in whose if start <= p < end]


def earned(rewards: Sequence[Reward], at: Sequence[int]) -> list[float]:
    """What each of the sampled positions earned: all that was paid from it to the next one."""
    r = [0.0] * len(at)
    for point in rewards:
        before = [i for i, p in enumerate(at) if p <= point.position]
        if before:
            r[before[-1]] += point.value
    return r


def kl_coef(segment: PolicyWindow | ValueTrajectory, p: int, usual: float) -> float:
    own = [c.value for c in segment.coefficients if c.name == "kl" and c.start <= p < c.end]
    return own[-1] if own else usual


def kl_penalised(
    r: list[float],
    segment: PolicyWindow | ValueTrajectory,
    at: Sequence[int],
    behaviour: Sequence[float],
    known: Sequence[float],
    c: AlgorithmConfig,
) -> list[float]:
    """Rewards of the sampled positions; `behaviour` and `known` are by position from 0."""
    if c.kl is None or c.kl.where != "reward":
        return r
    kls = [number(reference.kl(f64(behaviour[p]), known[p], c.kl.chosen_estimator)) for p in at]
    return [
        reference.rewards_with_kl([x], [k], kl_coef(segment, p, c.kl.coef))[0]
        for x, k, p in zip(r, kls, at, strict=True)
    ]


def shaped(score: float, length: int, c: AlgorithmConfig) -> float:
    """The last reward of a whole answer of that length, and DAPO's punishment."""
    if c.overlong is None or c.overlong.cache is None:
        return score
    penalty = reference.overlong(length, LONGEST, c.overlong.cache)
    return score + c.overlong.factor * float(penalty)


def lambda_of(window: PolicyWindow, r: Recipe) -> float:
    """By the length of the answer so far; one that goes on counts half a window longer."""
    alpha, floor = r.egae.length_adaptive_alpha, r.egae.gae_lambda_policy
    if alpha is None:
        return floor
    length = window.length + (0 if window.finished else r.window // 2)
    return float(reference.length_adaptive_lambda(length, Fraction(alpha), Fraction(floor)))


def rewards_of(
    window: PolicyWindow, sequence: BatchSequence, known: list[float], r: Recipe
) -> list[float]:
    """Of the window's sampled positions."""
    at = places(sequence, window.start, window.end)
    rewards = earned(window.rewards, at)
    if window.finished and at:
        rewards[-1] = shaped(rewards[-1], window.length, r.config)
    behaviour = [0.0] * window.start + window.logprobs.astype(float).tolist()
    return kl_penalised(rewards, window, at, behaviour, known, r.config)


def advantages_of(
    shard: Shard, values: Sequence[list[float]], known: Sequence[list[float]], r: Recipe
) -> list[list[float]]:
    """Rewards and values to EGAE to whitening to clamp, a list a window."""
    e, raw, kept, sizes = r.egae, [], [], []
    ended = {v.trajectory_id for v in shard.values}
    for window in shard.windows:
        sequence, v = shard.sequences[window.sequence], values[window.sequence]
        at = places(sequence, window.start, window.end)
        sizes.append(len(at))
        rewards = rewards_of(window, sequence, known[window.sequence], r)
        later = places(sequence, window.end, len(v))
        v_end = v[window.end]
        if window.trajectory_id in ended and at:
            v_end = v[later[0]] if later else v[at[-1]]
        if at:
            raw += reference.egae(
                rewards, [v[p] for p in at], e.gamma, lambda_of(window, r), window.finished,
                e.boundary, v_end,
            )  # fmt: skip
        kept += [bool(window.loss_weights[p - window.start]) for p in at]
    if e.whiten:
        raw = reference.whiten(raw, kept, 1e-8)
    if e.clamp is not None:
        raw = [min(max(a, -e.clamp), e.clamp) for a in raw]
    left = iter(raw)
    return [[next(left) for _ in range(size)] for size in sizes]


def corrected(
    window: PolicyWindow, at: Sequence[int], pi: Sequence[float], fire: FireConfig | None
) -> PolicyWindow:
    """The window whose hot tokens, drawn from q, count min(pi(y) / q(y), C) times ("ratio") or as
    they are ("recompute"), and have r = pi_theta(y) / pi(y)."""
    hot = [p for p in trained(window, at) for m in window.marks if m.start <= p < m.end]
    if fire is None:
        assert not hot
        return window
    mu, weights = (x.astype(float) for x in (window.logprobs, window.loss_weights))
    for p in hot:
        i = p - window.start
        if fire.correction == "ratio":
            weights[i] *= min(math.exp(pi[p]) / math.exp(mu[i]), fire.ratio_cap)
        mu[i] = pi[p]
    return replace(window, logprobs=mu, loss_weights=weights)


def surrogates_of(
    window: PolicyWindow,
    at: list[int],
    new: list[Tensor],
    start: list[float],
    advantages: list[float],
    r: Recipe,
) -> list[Any]:
    """Weighted clipped losses of the window's trained tokens, before their loss weights."""
    c = r.config
    assert isinstance(c.policy_loss, ClippedLossConfig)
    low, high, dual = (
        c.policy_loss.clip_ratio_low,
        c.policy_loss.clip_ratio_high,
        c.policy_loss.dual_clip,
    )
    kept = trained(window, at)
    a = dict(zip(at, advantages, strict=True))
    mu = {p: float(window.logprobs[p - window.start]) for p in kept}
    old = {p: start[p] for p in kept}
    theta = {p: new[p] for p in kept}
    match c.ratio:
        case DecoupledRatioConfig(proximal="interpolated"):
            (version,) = {span.version for span in window.spans}
            old = {
                p: reference.interpolated_proximal(old[p], mu[p], version, VERSION) for p in kept
            }
        case TisRatioConfig(level="sequence"):
            pair = [old[p] for p in kept], [mu[p] for p in kept]
            w = reference.sequence_weight(*pair, c.ratio.cap, c.ratio.over_cap)
            if c.ratio.geometric_filter is not None:
                least, most = c.ratio.geometric_filter
                w = w if least <= reference.geometric_mean(*pair) <= most else 0.0
            return [
                w * reference.clipped_surrogate(theta[p] - old[p], a[p], low, high, dual)
                for p in kept
            ]
        case DecoupledRatioConfig() | TisRatioConfig():
            pass
        case _:
            return [
                reference.clipped_surrogate(theta[p] - mu[p], a[p], low, high, dual) for p in kept
            ]
    cap, over = c.ratio.cap, c.ratio.over_cap
    return [
        reference.decoupled(theta[p], old[p], mu[p], a[p], low, high, dual, cap, over) for p in kept
    ]


def trained(window: PolicyWindow, at: Sequence[int]) -> list[int]:
    """The sampled positions in the loss."""
    return [p for p in at if window.loss_weights[p - window.start] > 0]


def policy_twin(
    shard: Shard,
    model: PreTrainedModel,
    start: Sequence[list[float]],
    known: Sequence[list[float]],
    values: Sequence[list[float]],
    r: Recipe,
) -> Any:
    """The loss of the policy's update, with gradient through `model` only."""
    c, penalties = r.config, r.config.penalties
    advantages = advantages_of(shard, values, known, r)
    token_losses, kls, entropies, right = [], [], [], []
    for as_sent, of_window in zip(shard.windows, advantages, strict=True):
        sequence, number_ = shard.sequences[as_sent.sequence], as_sent.sequence
        scores = scores_of(model, sequence)
        at = places(sequence, as_sent.start, as_sent.end)
        window = corrected(as_sent, at, start[number_], r.fire)
        kept = trained(window, at)
        weights = [float(window.loss_weights[p - window.start]) for p in kept]
        if kept:
            losses = surrogates_of(window, at, scores.logprobs, start[number_], of_window, r)
            token_losses.append([w * x for w, x in zip(weights, losses, strict=True)])
            if c.kl is not None:
                kls.append(
                    [
                        w
                        * kl_coef(window, p, c.kl.coef)
                        * reference.kl(scores.logprobs[p], known[number_][p], c.kl.chosen_estimator)
                        for w, p in zip(weights, kept, strict=True)
                    ]
                )
            entropies.append([-w * scores.entropies[p] for w, p in zip(weights, kept, strict=True)])
        if window.finished and window.correct:
            right.append([scores.logprobs[p] for p in places(sequence, 0, window.end)])
    mean: Callable[..., Any] = {
        "token_mean": reference.token_mean,
        "sample_mean": reference.sample_mean,
        "fixed_length": lambda x: reference.fixed_length(x, LONGEST),
    }[c.aggregate]
    loss = mean(token_losses) + penalties.positive_nll_coef * reference.positive_nll(right)
    loss = loss + penalties.entropy_coef * reference.token_mean(entropies)
    if c.kl is not None and c.kl.where == "loss":
        loss = loss + mean(kls)
    return loss


def value_twin(
    shard: Shard,
    model: PreTrainedModel,
    old: Sequence[list[float]],
    known: Sequence[list[float]],
    r: Recipe,
) -> Any:
    """The loss of the critic's update."""
    c, losses = r.config.value, []
    assert c is not None
    for answer in shard.values:
        sequence = shard.sequences[answer.sequence]
        at = places(sequence, 0, sequence.token_ids.size)
        said, before = values_of(model, sequence), old[answer.sequence]
        v, v_old = [said[p] for p in at], [before[p] for p in at]
        rewards = earned(answer.rewards, at)
        rewards[-1] = shaped(rewards[-1], len(at), r.config)
        behaviour = answer.logprobs.astype(float).tolist()
        rewards = kl_penalised(rewards, answer, at, behaviour, known[answer.sequence], r.config)
        lam, gamma = c.gae_lambda_value, r.egae.gamma
        target = (
            reference.monte_carlo(rewards, gamma)
            if lam == 1.0
            else reference.lambda_return(rewards, v_old, gamma, lam)
        )
        low, high = c.value_clip_low or math.inf, c.value_clip_high or math.inf
        losses.append(
            [
                reference.clipped_squared_error(*x, low, high)
                for x in zip(v, v_old, target, strict=True)
            ]
        )
    return {"sample_mean": reference.sample_mean, "token_mean": reference.token_mean}[c.aggregate](
        losses
    )


class Learner:
    """The real Updater in float64 behind plain engines, and the same weights for the twin."""

    def __init__(self, path: str, r: Recipe, *, epochs: int, value_parts: int = 1) -> None:
        self.path = path
        kind: dict[str, Any] = {"dtype": torch.float64, "device": CPU}
        model = ModelConfig(path=path)
        critic = load_critic(model, **kind)
        torch.manual_seed(7)
        nn.init.normal_(critic.score.weight, std=0.3)
        self.policy = PlainEngine(PolicyNetwork(load_policy(model, **kind)), lr=3e-3)
        self.critic = PlainEngine(ValueNetwork(critic), lr=3e-3)
        other = load_policy(model, **kind)
        torch.manual_seed(11)
        nn.init.normal_(other.model.norm.weight, mean=1.0, std=0.2)
        self.reference = PolicyNetwork(other)
        settings = OptimizerConfig(epochs=epochs)
        self.updater = Updater(
            build_algorithm(r.config, window=r.window, max_length=LONGEST, fire=r.fire),
            self.policy, self.critic,
            LearnerConfig(policy=settings, value=OptimizerConfig(minibatches=value_parts)),
            RankContext(device=CPU, dtype=torch.float64, budget=100),
            reference=self.reference if r.config.kl is not None else None,
        )  # fmt: skip

    def twin_of(self, network: nn.Module, kind: Any) -> PreTrainedModel:
        """The same weights behind transformers' own attention."""
        extra = {} if kind is AutoModelForCausalLM else {"num_labels": 1}
        model: PreTrainedModel = kind.from_pretrained(
            self.path, dtype=torch.float64, attn_implementation="eager", **extra
        )
        model.load_state_dict(network.model.state_dict())  # type: ignore[union-attr]
        return model

    def models(self) -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedModel]:
        return (
            self.twin_of(self.policy.network, AutoModelForCausalLM),
            self.twin_of(self.critic.network, AutoModelForTokenClassification),
            self.twin_of(self.reference, AutoModelForCausalLM),
        )


def shard_for(r: Recipe, policy: PreTrainedModel) -> Shard:
    """Windows of which some are cut; the sampler's logprobs, made up or near the policy's, go with
    the ended answers."""
    shard = record(
        seed=3, trajectories=7, window=r.window, longest=LONGEST, turns=r.turns,
        hot=r.fire is not None,
    )  # fmt: skip
    if r.near is not None:
        rng = np.random.default_rng(0)
        logprobs = [floats(scores_of(policy, s).logprobs) for s in shard.sequences]
        windows = [
            replace(
                w, logprobs=rng.normal(logprobs[w.sequence][w.start : w.end], r.near)
                .astype(np.float32),
            )
            for w in shard.windows
        ]  # fmt: skip
        shard = replace(shard, windows=windows)
    shard = with_value_logprobs(shard)
    if r.told:
        asides = [s.token_ids[: i % 3] for i, s in enumerate(shard.sequences)]
        told = [
            replace(s, aside=aside if aside.size else None)
            for s, aside in zip(shard.sequences, asides, strict=True)
        ]
        shard = replace(shard, sequences=told)
    assert any(not w.finished for w in shard.windows)
    assert any(w.finished and w.correct and (w.start or r.window >= LONGEST) for w in shard.windows)
    return shard


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("model")))


WHOLE_UPDATES = {
    "tppo": recipe(),
    "overlong": recipe(overlong={"cache": 30, "factor": 0.7}),
    "dual-clip-entropy": recipe(
        policy_loss={"kind": "clipped", "clip_ratio_low": 0.1, "dual_clip": 2.0},
        penalties={"positive_nll_coef": 0.1, "entropy_coef": 0.01},
        aggregate="sample_mean",
    ),
    "decoupled": recipe(ratio={"kind": "decoupled", "cap": 1.2}, aggregate="sample_mean"),
    "interpolated": recipe(
        ratio={"kind": "decoupled", "proximal": "interpolated", "cap": 1.2, "over_cap": "mask"},
        aggregate="fixed_length",
    ),
    "tis-bootstrap": recipe(
        advantages={"kind": "egae", "gamma": 0.97, "boundary": "bootstrap"},
        ratio={"kind": "tis", "cap": 1.5},
    ),
    "tis-sequence": recipe(
        ratio={"kind": "tis", "level": "sequence", "cap": 3.0, "geometric_filter": [0.99, 1.05]},
        window=64,
        near=0.15,
    ),
    "kl-loss": recipe(kl={"coef": 0.1, "where": "loss"}),
    "kl-loss-k3": recipe(kl={"coef": 0.1, "where": "loss", "estimator": "k3"}),
    "kl-reward": recipe(
        kl={"coef": 0.1, "where": "reward"},
        advantages={"kind": "egae", "gamma": 0.97, "boundary": "terminal", "whiten": False},
    ),
    "anchor": recipe(told=True, kl={"coef": 0.1, "where": "reward"}),
    "lambda-target": recipe(
        advantages={"kind": "egae", "gamma": 0.97, "clamp": 0.8},
        value={"gae_lambda_value": 0.9, "aggregate": "token_mean"},
    ),
    "turns": recipe(
        turns=True,
        overlong={"cache": 30, "factor": 0.7},
        advantages={
            "kind": "egae",
            "gamma": 0.97,
            "length_adaptive_alpha": 0.5,
            "gae_lambda_policy": 0.8,
        },
        penalties={"positive_nll_coef": 0.1, "entropy_coef": 0.01},
        kl={"coef": 0.1, "where": "loss"},
    ),
    "turns-reward": recipe(
        turns=True,
        advantages={"kind": "egae", "gamma": 0.97, "boundary": "bootstrap"},
        value={"gae_lambda_value": 0.9},
        kl={"coef": 0.1, "where": "reward", "estimator": "k1"},
        ratio={"kind": "decoupled", "cap": 1.2},
        aggregate="sample_mean",
    ),
    "fire-ratio": recipe(fire=FireConfig(correction="ratio", ratio_cap=1.5)),
    "fire-ratio-turns": recipe(
        turns=True,
        fire=FireConfig(correction="ratio", ratio_cap=1.0),
        penalties={"positive_nll_coef": 0.1, "entropy_coef": 0.01},
        kl={"coef": 0.1, "where": "loss"},
        ratio={"kind": "decoupled", "cap": 1.2},
        aggregate="sample_mean",
    ),
    "fire-ratio-tis": recipe(
        fire=FireConfig(correction="ratio", ratio_cap=1.5), ratio={"kind": "tis", "cap": 1.5}
    ),
    "fire-recompute": recipe(fire=FireConfig(correction="recompute")),
    "fire-recompute-interpolated": recipe(
        fire=FireConfig(correction="recompute"),
        ratio={"kind": "decoupled", "proximal": "interpolated", "cap": 1.2, "over_cap": "mask"},
    ),
}


def hot_figures(shard: Shard, start: Sequence[list[float]], fire: FireConfig) -> dict[str, float]:
    """What is said of the hot tokens, one by one."""
    hot = [(w, m.start) for w in shard.windows for m in w.marks]
    rho = [math.exp(start[w.sequence][p] - float(w.logprobs[p - w.start])) for w, p in hot]
    kept = [x for (w, p), x in zip(hot, rho, strict=True) if w.loss_weights[p - w.start] > 0]
    over = [x > fire.ratio_cap for x in kept] if fire.correction == "ratio" else [False]
    return {
        "rollout/hot_tokens": len(hot),
        "rollout/hot_ratio_mean": sum(rho) / len(rho),
        "rollout/hot_over_cap": sum(over) / len(over),
    }


def header_and_shard(shard: Shard, epochs: int) -> tuple[Batch, Shard]:
    sent = batch_of(shard, version=VERSION, value_epochs=epochs)
    return sent.batch, sent.shards[0]


def by_position(
    outcome: UpdateOutcome,
    shard: Shard,
    start: Sequence[list[float]],
    known: Sequence[list[float]],
    values: Sequence[list[float]],
    r: Recipe,
) -> None:
    """The diagnostics have a figure for each sampled position and none for the others."""
    advantages = advantages_of(shard, values, known, r)
    for window, found, a in zip(shard.windows, outcome.diagnostics, advantages, strict=True):
        sequence = shard.sequences[window.sequence]
        at = places(sequence, window.start, window.end)
        nothing = math.nan
        returns = [nothing] * len(at)
        if window.finished:
            rewards = rewards_of(window, sequence, known[window.sequence], r)
            returns = reference.monte_carlo(rewards, r.egae.gamma)
        # Whitening leaves tokens without a loss at 0.
        kept = trained(window, at)
        seen = [x if p in kept or not r.egae.whiten else 0.0 for x, p in zip(a, at, strict=True)]
        for name, wanted in (
            ("learner_logprobs", [start[window.sequence][p] for p in at]),
            ("values", [values[window.sequence][p] for p in at]),
            ("advantages", seen),
            ("returns", returns),
        ):
            whole = np.full(window.end - window.start, nothing)
            whole[[p - window.start for p in at]] = wanted
            np.testing.assert_allclose(
                found.columns[name], whole, rtol=1e-5, atol=1e-6, err_msg=name
            )


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_values_are_the_starts_in_whichever_minibatch_an_answer_comes(
    path: str, parts: int
) -> None:
    """Without a value clip no loss reads old values, and the advantages of windows whose answers
    end in a later minibatch still do."""
    r = recipe(value={"value_clip_low": None, "value_clip_high": None})
    learner = Learner(path, r, epochs=1, value_parts=parts)
    policy, critic, other = learner.models()
    shard = shard_for(r, policy)
    ended = {v.trajectory_id for v in shard.values}
    assert sum(w.trajectory_id in ended for w in shard.windows) > parts
    with torch.no_grad():
        start = [floats(scores_of(policy, s).logprobs) for s in shard.sequences]
        known = [floats(scores_of(other, s).logprobs) for s in shard.sequences]
        values = [floats(values_of(critic, s)) for s in shard.sequences]
    outcome = learner.updater.run(*header_and_shard(shard, 1))
    by_position(outcome, shard, start, known, values, r)


@pytest.mark.parametrize("r", WHOLE_UPDATES.values(), ids=WHOLE_UPDATES)
def test_the_loss_of_a_whole_update(path: str, r: Recipe) -> None:
    """The first optimizer step, and a second on the same batch, which is off its proximal policy:
    loss and gradient of policy and critic in float64."""
    one, two = (Learner(path, r, epochs=epochs) for epochs in (1, 2))
    first, critic, other = one.models()
    shard = shard_for(r, first)
    with torch.no_grad():
        start = [floats(scores_of(first, s).logprobs) for s in shard.sequences]
        known = [floats(scores_of(other, s).logprobs) for s in shard.sequences]
        values = [floats(values_of(critic, s)) for s in shard.sequences]
    if r.egae.length_adaptive_alpha is not None and r.window < LONGEST:
        floor = r.egae.gae_lambda_policy
        found = {lambda_of(w, r) for w in shard.windows}
        assert floor in found
        assert len(found - {floor}) > 2
    outcomes = [
        learner.updater.run(*header_and_shard(shard, epochs))
        for learner, epochs in ((one, 1), (two, 2))
    ]
    by_position(outcomes[0], shard, start, known, values, r)
    runs: list[dict[str, Any]] = [{**outcome.metrics} for outcome in outcomes]
    if r.near is None:
        assert runs[1]["actor/pg_clipfrac_lower"] > 0 < runs[1]["actor/pg_clipfrac_upper"]
    if r.fire is not None:
        wanted_figures = hot_figures(shard, start, r.fire)
        assert r.fire.correction != "ratio" or 0 < wanted_figures["rollout/hot_over_cap"] < 1
        for run in runs:
            found_figures = {name: run[name] for name in wanted_figures}
            assert found_figures == pytest.approx(wanted_figures, rel=1e-6)
    else:
        assert not any(name.startswith("rollout/hot") for name in runs[0])
    if not isinstance(r.config.ratio, BehaviourRatioConfig):
        assert 0 < runs[1]["rollout/weight_over_cap"] < 1
    second, later_critic, _ = one.models()
    pairs = ((one, first, critic), (two, second, later_critic))
    for step, (learner, policy, value) in enumerate(pairs):
        loss = policy_twin(shard, policy, start, known, values, r)
        wanted = value_twin(shard, value, values, known, r)
        for name, twin, model, engine in (
            ("actor/pg_loss", loss, policy, learner.policy),
            ("critic/vf_loss", wanted, value, learner.critic),
        ):
            # The figure is the mean over the optimizer steps.
            made = runs[0][name] if step == 0 else 2 * runs[1][name] - runs[0][name]
            assert made == pytest.approx(number(twin), rel=1e-5, abs=1e-7), (step, name)
            twin.backward()
            for key, parameter in model.named_parameters():
                assert parameter.grad is not None
                assert parameter.grad.norm() > 0
                # The models' norms work in float32, whatever the weights are.
                distance = (engine.gradients[f"model.{key}"] - parameter.grad).norm()
                assert distance <= 1e-5 * parameter.grad.norm(), (step, name, key)
