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

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, PreTrainedModel

from headrace.config.algorithm import (
    AlgorithmConfig,
    BehaviourRatioConfig,
    ClippedLossConfig,
    DecoupledRatioConfig,
    EgaeConfig,
    TisRatioConfig,
)
from headrace.config.learner import LearnerConfig, OptimizerConfig
from headrace.config.model import ModelConfig
from headrace.protocol.messages import Batch, PolicyWindow, ValueTrajectory
from learner.algorithm import build_algorithm
from learner.forward import PolicyNetwork, ValueNetwork
from learner.models import load_critic, load_policy
from learner.place import Place
from learner.update import Updater
from tests.learner import reference
from tests.learner.plain_engine import PlainEngine
from tests.learner.recorded import batch_of, record, save_tiny_model
from tests.learner.test_advantages import f64
from tests.learner.test_twins import number

CPU = torch.device("cpu")
VERSION, WINDOW, LONGEST = 4, 16, 40


@dataclass
class Recipe:
    """A configuration, the window it is run at, and how near the sampler's logprobs are to the
    policy's (None: made up)."""

    config: AlgorithmConfig
    window: int
    near: float | None

    @property
    def egae(self) -> EgaeConfig:
        assert isinstance(self.config.advantages, EgaeConfig)
        return self.config.advantages


@dataclass
class Scores:
    """What a window's sequence is under one model: per response token, from the first on."""

    logprobs: list[Tensor]
    entropies: list[Tensor]


def recipe(*, window: int = WINDOW, near: float | None = None, **changes: object) -> Recipe:
    config = {
        "advantages": {"kind": "egae", "length_adaptive_alpha": 0.5, "gae_lambda_policy": 0.9},
        "value": {"value_clip_low": 0.05, "value_clip_high": 0.06},
        "penalties": {"positive_nll_coef": 0.1},
        **changes,
    }
    return Recipe(AlgorithmConfig.model_validate(config), window, near)


def scores_of(model: PreTrainedModel, window: PolicyWindow) -> Scores:
    """One sequence alone through transformers' own forward pass."""
    ids = torch.from_numpy(window.token_ids.astype(np.int64))
    log_p = model(ids[None]).logits[0].log_softmax(-1)
    places = range(window.prompt_length, window.prompt_length + window.end)
    return Scores(
        [log_p[p - 1, ids[p]] for p in places],
        [-(log_p[p - 1].exp() * log_p[p - 1]).sum() for p in places],
    )


def values_of(model: PreTrainedModel, token_ids: Any, prompt: int) -> list[Tensor]:
    """V(s_0) to V(s_T): T + 1 numbers of a response of T tokens."""
    ids = torch.from_numpy(token_ids.astype(np.int64))
    return list(model(ids[None]).logits[0, prompt - 1 :, 0].unbind())


def floats(x: Sequence[Tensor]) -> list[float]:
    return [y.item() for y in x]


def kl_penalised(
    r: list[float], behaviour: Sequence[float], known: Sequence[float], c: AlgorithmConfig
) -> list[float]:
    if c.kl is None or c.kl.where != "reward":
        return r
    kls = [
        number(reference.kl(f64(x), y, c.kl.chosen_estimator))
        for x, y in zip(behaviour, known, strict=True)
    ]
    return reference.rewards_with_kl(r, kls, c.kl.coef)


def shaped(score: float, length: int, c: AlgorithmConfig) -> float:
    """The score of a whole answer of that length, and DAPO's punishment."""
    if c.overlong is None or c.overlong.cache is None:
        return score
    penalty = reference.overlong(length, LONGEST, c.overlong.cache)
    return score + c.overlong.factor * float(penalty)


def lambda_of(window: PolicyWindow, r: Recipe) -> float:
    """By the length of the answer so far; one that goes on counts half a window longer."""
    alpha, floor = r.egae.length_adaptive_alpha, r.egae.gae_lambda_policy
    if alpha is None:
        return floor
    length = window.end + (0 if window.finished else r.window // 2)
    return float(reference.length_adaptive_lambda(length, Fraction(alpha), Fraction(floor)))


def advantages_of(
    windows: Sequence[PolicyWindow],
    values: Sequence[list[float]],
    known: Sequence[list[float]],
    r: Recipe,
) -> list[list[float]]:
    """Rewards and values to EGAE to whitening to clamp, a list a window."""
    e, raw, kept = r.egae, [], []
    for window, v, ref in zip(windows, values, known, strict=True):
        rewards = [0.0] * (window.end - window.start)
        if window.finished:
            rewards[-1] = shaped(window.reward, window.end, r.config)
        behaviour = window.logprobs.astype(float).tolist()
        rewards = kl_penalised(rewards, behaviour, ref[window.start :], r.config)
        lam = lambda_of(window, r)
        here, v_end = v[window.start : window.end], v[window.end]
        raw += reference.egae(rewards, here, e.gamma, lam, window.finished, e.boundary, v_end)
        kept += window.loss_mask.astype(bool).tolist()
    if e.whiten:
        raw = reference.whiten(raw, kept, 1e-8)
    if e.clamp is not None:
        raw = [min(max(a, -e.clamp), e.clamp) for a in raw]
    left = iter(raw)
    return [[next(left) for _ in range(w.end - w.start)] for w in windows]


def surrogates_of(
    window: PolicyWindow, new: list[Tensor], start: list[float], a: list[float], r: Recipe
) -> list[Any]:
    """Weighted clipped losses of the window's trained tokens."""
    c = r.config
    assert isinstance(c.policy_loss, ClippedLossConfig)
    low, high, dual = (
        c.policy_loss.clip_ratio_low,
        c.policy_loss.clip_ratio_high,
        c.policy_loss.dual_clip,
    )
    kept = [i for i in range(window.end - window.start) if window.loss_mask[i]]
    mu = window.logprobs.astype(float).tolist()
    old = {i: start[window.start + i] for i in kept}
    theta = {i: new[window.start + i] for i in kept}
    match c.ratio:
        case DecoupledRatioConfig(proximal="interpolated"):
            (span,) = window.spans
            old = {
                i: reference.interpolated_proximal(old[i], mu[i], span.version, VERSION)
                for i in kept
            }
        case TisRatioConfig(level="sequence"):
            pair = [old[i] for i in kept], [mu[i] for i in kept]
            w = reference.sequence_weight(*pair, c.ratio.cap, c.ratio.over_cap)
            if c.ratio.geometric_filter is not None:
                least, most = c.ratio.geometric_filter
                w = w if least <= reference.geometric_mean(*pair) <= most else 0.0
            return [
                w * reference.clipped_surrogate(theta[i] - old[i], a[i], low, high, dual)
                for i in kept
            ]
        case DecoupledRatioConfig() | TisRatioConfig():
            pass
        case _:
            return [
                reference.clipped_surrogate(theta[i] - mu[i], a[i], low, high, dual) for i in kept
            ]
    cap, over = c.ratio.cap, c.ratio.over_cap
    return [
        reference.decoupled(theta[i], old[i], mu[i], a[i], low, high, dual, cap, over) for i in kept
    ]


def policy_twin(
    windows: Sequence[PolicyWindow],
    model: PreTrainedModel,
    start: Sequence[list[float]],
    known: Sequence[list[float]],
    values: Sequence[list[float]],
    r: Recipe,
) -> Any:
    """The loss of the policy's update, with gradient through `model` only."""
    c, p = r.config, r.config.penalties
    advantages = advantages_of(windows, values, known, r)
    token_losses, kls, entropies, right = [], [], [], []
    for i, window in enumerate(windows):
        scores = scores_of(model, window)
        kept = [window.start + k for k, m in enumerate(window.loss_mask) if m]
        if kept:
            token_losses.append(surrogates_of(window, scores.logprobs, start[i], advantages[i], r))
            if c.kl is not None:
                kls.append(
                    [
                        reference.kl(scores.logprobs[k], known[i][k], c.kl.chosen_estimator)
                        for k in kept
                    ]
                )
            entropies.append([-scores.entropies[k] for k in kept])
        if window.finished and window.reward > 0:
            right.append(scores.logprobs)
    mean: Callable[..., Any] = {
        "token_mean": reference.token_mean,
        "sample_mean": reference.sample_mean,
        "fixed_length": lambda x: reference.fixed_length(x, LONGEST),
    }[c.aggregate]
    loss = mean(token_losses) + p.positive_nll_coef * reference.positive_nll(right)
    loss = loss + p.entropy_coef * reference.token_mean(entropies)
    if c.kl is not None and c.kl.where == "loss":
        loss = loss + c.kl.coef * mean(kls)
    return loss


def value_twin(
    finished: Sequence[ValueTrajectory],
    model: PreTrainedModel,
    old: Sequence[list[float]],
    known: Sequence[list[float]],
    r: Recipe,
) -> Any:
    """The loss of the critic's update."""
    c, losses = r.config.value, []
    assert c is not None
    for trajectory, v_old, ref in zip(finished, old, known, strict=True):
        v = values_of(model, trajectory.token_ids, trajectory.prompt_length)[:-1]
        rewards = [0.0] * (len(v) - 1) + [shaped(trajectory.reward, len(v), r.config)]
        behaviour = trajectory.logprobs.astype(float).tolist()
        rewards = kl_penalised(rewards, behaviour, ref, r.config)
        lam, gamma = c.gae_lambda_value, r.egae.gamma
        target = (
            reference.monte_carlo(rewards, gamma)
            if lam == 1.0
            else reference.lambda_return(rewards, v_old[:-1], gamma, lam)
        )
        low, high = c.value_clip_low or math.inf, c.value_clip_high or math.inf
        losses.append(
            [
                reference.clipped_squared_error(*x, low, high)
                for x in zip(v, v_old[:-1], target, strict=True)
            ]
        )
    return {"sample_mean": reference.sample_mean, "token_mean": reference.token_mean}[c.aggregate](
        losses
    )


class Learner:
    """The real Updater in float64 behind plain engines, and the same weights for the twin."""

    def __init__(self, path: str, r: Recipe, *, epochs: int) -> None:
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
            build_algorithm(r.config, window=r.window, max_length=LONGEST),
            self.policy, self.critic, LearnerConfig(policy=settings),
            Place(device=CPU, dtype=torch.float64, budget=100),
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


def batch_for(r: Recipe, policy: PreTrainedModel, *, epochs: int) -> Batch:
    """Windows of which some are cut; the sampler's logprobs, made up or near the policy's, go with
    the finished responses."""
    windows, values = record(seed=3, trajectories=7, window=r.window, longest=LONGEST)
    if r.near is not None:
        rng = np.random.default_rng(0)
        windows = [
            msgspec.structs.replace(
                w, logprobs=rng.normal(floats(scores_of(policy, w).logprobs)[w.start :], r.near)
                .astype(np.float32),
            )
            for w in windows
        ]  # fmt: skip
    sampled: dict[int, list[Any]] = {}
    for window in windows:
        sampled.setdefault(window.trajectory_id, []).append(window.logprobs)
    whole = [
        msgspec.structs.replace(v, logprobs=np.concatenate(sampled[v.trajectory_id]))
        for v in values
    ]
    assert any(not w.finished for w in windows)
    assert any(w.finished and w.reward and (w.start or r.window >= LONGEST) for w in windows)
    return batch_of(windows, whole, version=VERSION, value_epochs=epochs)


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
    "lambda-target": recipe(
        advantages={"kind": "egae", "gamma": 0.97, "clamp": 0.8},
        value={"gae_lambda_value": 0.9, "aggregate": "token_mean"},
    ),
}


@pytest.mark.parametrize("r", WHOLE_UPDATES.values(), ids=WHOLE_UPDATES)
def test_the_loss_of_a_whole_update(path: str, r: Recipe) -> None:
    """The first optimizer step, and a second on the same batch, which is off its proximal policy:
    loss and gradient of policy and critic in float64."""
    one, two = (Learner(path, r, epochs=epochs) for epochs in (1, 2))
    first, critic, other = one.models()
    batch = batch_for(r, first, epochs=1)
    windows, finished = batch.shards[0].windows, batch.shards[0].values
    with torch.no_grad():
        start = [floats(scores_of(first, w).logprobs) for w in windows]
        known = [floats(scores_of(other, w).logprobs) for w in windows]
        values = [floats(values_of(critic, w.token_ids, w.prompt_length)) for w in windows]
    of_response = {w.trajectory_id: i for i, w in enumerate(windows)}
    ends = [of_response[v.trajectory_id] for v in finished]
    old, reference_of = [values[i] for i in ends], [known[i] for i in ends]
    if r.egae.length_adaptive_alpha is not None and r.window < LONGEST:
        floor = r.egae.gae_lambda_policy
        found = {lambda_of(w, r) for w in windows}
        assert floor in found
        assert len(found - {floor}) > 2
    runs = [
        learner.updater.run(batch_for(r, first, epochs=epochs)).metrics
        for learner, epochs in ((one, 1), (two, 2))
    ]
    if r.near is None:
        assert runs[1]["actor/pg_clipfrac_lower"] > 0 < runs[1]["actor/pg_clipfrac_upper"]
    if not isinstance(r.config.ratio, BehaviourRatioConfig):
        assert 0 < runs[1]["rollout/weight_over_cap"] < 1
    second, later_critic, _ = one.models()
    pairs = ((one, first, critic), (two, second, later_critic))
    for step, (learner, policy, value) in enumerate(pairs):
        loss = policy_twin(windows, policy, start, known, values, r)
        wanted = value_twin(finished, value, old, reference_of, r)
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
