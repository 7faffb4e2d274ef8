"""An algorithm as plain functions, built once from its configuration.

In: `AlgorithmConfig` and the window. Out: an `Algorithm` whose slots the update calls. Promise:
PPO, T-PPO, VAPO, GRPO and their kin differ by what stands in the slots and by nothing else; no
recipe's name is read anywhere.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol

import torch
from torch import Tensor

from headrace.config.sections.algorithm import (
    AlgorithmConfig,
    BehaviourRatioConfig,
    ClippedLossConfig,
    DecoupledRatioConfig,
    EgaeConfig,
    GroupAdvantageConfig,
    KlConfig,
    NoLossConfig,
    OverlongConfig,
    PolicyLossConfig,
    RatioConfig,
    ReinforceLossConfig,
    TisRatioConfig,
    ValueTargetConfig,
)
from headrace.config.sections.generator import FireConfig
from headrace.config.sections.run import RunConfig
from learner.algorithms.advantages import (
    credited_length,
    length_adaptive_lambda,
    packed_egae,
    whiten,
)
from learner.algorithms.aggregation import (
    fixed_length_weights,
    sample_mean_weights,
    token_mean_weights,
)
from learner.algorithms.fire import hot_streams
from learner.algorithms.penalties import kl_divergence, overlong_penalty
from learner.algorithms.policy_losses import (
    LossInputs,
    PolicyLoss,
    clipped_squared_error,
    clipped_surrogate,
    no_surrogate,
    reinforce,
    squared_error,
)
from learner.algorithms.ratios import (
    Ratio,
    behaviour_ratio,
    geometric_filter,
    interpolated_proximal,
    tis_ratio,
)
from learner.algorithms.value_targets import ValueTargets, lambda_returns, monte_carlo_returns
from learner.batching.group_statistics import Groups, group_advantages
from learner.batching.segments import Segments, discounted_suffix_sums, segment_ids, tokens_left

RatioFunction = Callable[[LossInputs], Ratio]
AdvantageFunction = Callable[[Tensor, Tensor, Tensor | None, Segments, Groups], Tensor]
"""(rewards [T], token rewards [T], values [T], windows, groups) -> advantages [T].

Raw ones. `rewards` come from the reward; `token_rewards` are each token's own besides (KL)."""
NormaliseFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(raw advantages [T], mask [T], `moments` of the batch) -> advantages [T]."""


class AggregateFunction(Protocol):
    """Weights [T] of token losses; counts are the whole batch's (see
    `learner.algorithms.aggregation`)."""

    def __call__(
        self, mask: Tensor, segment_ids: Tensor, *, tokens: float, samples: float,
        sample_tokens: Tensor,
    ) -> Tensor: ...  # fmt: skip


@dataclass(frozen=True)
class KlSlots:
    """Divergence from the reference policy, in the loss or in the reward.

    `estimate`: (new [N], reference [N]) -> [N], to be multiplied by `coef`."""

    estimate: Callable[[Tensor, Tensor], Tensor]
    coef: float
    in_reward: bool


@dataclass(frozen=True)
class HotSlots:
    """Treatment of tokens that FIRE's hot sampler drew.

    `correct` returns the loss's inputs with their streams corrected. `reads_start`: it reads their
    logprobs of the update's start. `cap`: the largest importance weight, inf without one."""

    correct: Callable[[LossInputs], LossInputs]
    reads_start: bool
    cap: float


@dataclass(frozen=True)
class ValueSlots:
    """The value model's part: targets, loss, aggregation.

    `returns` takes (rewards, answers), whatever the targets are. `loss` takes (values, old values,
    targets). `reads_old`: the loss reads the values of the update's start; `targets_read_old`: the
    targets do."""

    targets: Callable[[Tensor, Tensor, Segments], ValueTargets]
    returns: Callable[[Tensor, Segments], ValueTargets]
    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    aggregate: AggregateFunction
    reads_old: bool
    targets_read_old: bool


@dataclass(frozen=True)
class Algorithm:
    """Every slot of an algorithm.

    Attributes:
        window: answers are cut at its multiples. lambdas: ([S] length so far, [S] finished) -> [S]
        lambda of the policy's advantages. shape_rewards: ([N] rewards at the ends of answers, [N]
        their sampled tokens) -> [N] with the length penalty added; of windows, value trajectories
        and groups. advantages, normalise: rewards to the loss's advantages. whitens_by_act:
        normalise turns of each act apart. returns: (rewards [T], windows) -> discounted sums up to
        each window's end, and where they reach the end of the trajectory. uses_critic: advantages
        read values. asks_at_cuts: advantages read V(s_l) of cut windows. ratio: logprobs to ratio
        and weight. uses_proximal: the ratio reads logprobs recomputed at the update's start.
        policy_loss: log ratio and advantages to token losses. aggregate: token losses to weights.
        entropy_coef, positive_nll_coef: weights of further terms. kl: divergence from the
        reference, None without one. value: None for critic-free algorithms.
    """

    window: int
    lambdas: Callable[[Tensor, Tensor], Tensor]
    shape_rewards: Callable[[Tensor, Tensor], Tensor]
    advantages: AdvantageFunction
    normalise: NormaliseFunction
    whitens_by_act: bool
    returns: Callable[[Tensor, Segments], ValueTargets]
    uses_critic: bool
    asks_at_cuts: bool
    ratio: RatioFunction
    uses_proximal: bool
    policy_loss: Callable[[Tensor, Tensor], PolicyLoss]
    aggregate: AggregateFunction
    entropy_coef: float
    positive_nll_coef: float
    kl: KlSlots | None
    hot: HotSlots
    value: ValueSlots | None


def algorithm_of(config: RunConfig) -> Algorithm:
    """Return the functions of a run's algorithm."""
    longest = config.task.max_response_length
    built = build_algorithm(
        config.algorithm, window=config.window, max_length=longest, fire=config.generator.fire
    )
    # An answer does not show where its windows ended if they ended with its turns.
    by_turn = config.environment is not None and not config.schedule.across_turns
    return replace(built, window=longest) if by_turn else built


def build_algorithm(
    config: AlgorithmConfig,
    *,
    window: int,
    max_length: int | None = None,
    fire: FireConfig | None = None,
) -> Algorithm:
    """Return the functions that a configuration names.

    Args:
        window: maximum tokens of a window. max_length: of a response; None: `window`. fire: how
        hot tokens were sampled; None: there are none.
    """
    advantages, longest = config.advantages, max_length or window
    gamma = advantages.gamma if isinstance(advantages, EgaeConfig) else 1.0
    return Algorithm(
        window=window,
        lambdas=_lambdas(advantages, window),
        shape_rewards=_shape(config.overlong, longest),
        advantages=_advantages(advantages),
        normalise=partial(_normalise, whitened=advantages.whiten, clamp=advantages.clamp),
        whitens_by_act=isinstance(advantages, EgaeConfig) and advantages.whiten_by_act,
        returns=partial(monte_carlo_returns, gamma=gamma),
        uses_critic=isinstance(advantages, EgaeConfig),
        asks_at_cuts=isinstance(advantages, EgaeConfig) and advantages.boundary == "bootstrap",
        ratio=build_ratio(config.ratio),
        uses_proximal=reads_proximal(config.ratio),
        policy_loss=_policy_loss(config.policy_loss),
        aggregate=_aggregate(config.aggregate, longest),
        entropy_coef=config.penalties.entropy_coef,
        positive_nll_coef=config.penalties.positive_nll_coef,
        kl=None if config.kl is None else _kl(config.kl),
        hot=_hot(fire),
        value=None if config.value is None else _value(config.value, gamma, longest),
    )


def _shape(config: OverlongConfig | None, longest: int) -> Callable[[Tensor, Tensor], Tensor]:
    if config is None or config.cache is None:
        return lambda scores, _lengths: scores
    cache, factor = config.cache, config.factor

    def shaped(scores: Tensor, lengths: Tensor) -> Tensor:
        penalty = overlong_penalty(lengths, max_length=longest, cache=cache, factor=factor)
        return scores + penalty.to(scores.dtype)

    return shaped


def _kl(config: KlConfig) -> KlSlots:
    estimate = partial(kl_divergence, estimator=config.chosen_estimator)
    return KlSlots(estimate, config.coef, in_reward=config.where == "reward")


def _hot(config: FireConfig | None) -> HotSlots:
    # Masked hot tokens have no loss weight from the start.
    if config is None or config.correction == "mask":
        return HotSlots(lambda x: x, reads_start=False, cap=math.inf)
    correction, cap = config.correction, config.ratio_cap

    def correct(x: LossInputs) -> LossInputs:
        weights, behaviour = hot_streams(
            x.weights, x.behaviour, x.start, x.hot, correction=correction, cap=cap
        )
        return replace(x, weights=weights, behaviour=behaviour)

    return HotSlots(correct, reads_start=True, cap=cap if correction == "ratio" else math.inf)


def _lambdas(
    config: EgaeConfig | GroupAdvantageConfig, window: int
) -> Callable[[Tensor, Tensor], Tensor]:
    match config:
        case EgaeConfig(length_adaptive_alpha=None):
            fixed = config.gae_lambda_policy
        case EgaeConfig(length_adaptive_alpha=float(alpha)):
            credit = window if config.half_window_credit else 0
            floor = config.gae_lambda_policy

            def adaptive(length: Tensor, finished: Tensor) -> Tensor:
                length = credited_length(length, finished, window=credit)
                return length_adaptive_lambda(length, alpha=alpha, floor=floor)

            return adaptive
        case GroupAdvantageConfig():
            fixed = 1.0
    return lambda length, _finished: torch.full_like(length, fixed, dtype=torch.float64)


def _advantages(config: EgaeConfig | GroupAdvantageConfig) -> AdvantageFunction:
    match config:
        case EgaeConfig():
            gamma, boundary = config.gamma, config.boundary

            def by_critic(
                rewards: Tensor,
                token_rewards: Tensor,
                values: Tensor | None,
                segments: Segments,
                groups: Groups,
            ) -> Tensor:
                assert values is not None, "advantages by critic need values"
                earned = rewards + token_rewards
                return packed_egae(earned, values, segments, gamma=gamma, boundary=boundary)

            return by_critic
        case GroupAdvantageConfig():
            baseline, scale = config.baseline, config.scale

            def by_group(
                rewards: Tensor,
                token_rewards: Tensor,
                values: Tensor | None,
                segments: Segments,
                groups: Groups,
            ) -> Tensor:
                if bool((groups.members < 0).any()):
                    raise ValueError("advantages by group need the rewards of each window's group")
                made = group_advantages(groups.rewards, groups.ids, baseline=baseline, scale=scale)
                ids = segment_ids(segments)
                own = made[groups.members][ids].to(rewards.dtype)
                later = discounted_suffix_sums(
                    token_rewards, torch.ones_like(token_rewards), tokens_left(segments)
                )
                return own + later

            return by_group


def _normalise(
    advantages: Tensor, mask: Tensor, batch_moments: Tensor, *, whitened: bool, clamp: float | None
) -> Tensor:
    if whitened:
        return whiten(advantages, mask, clamp=clamp, batch_moments=batch_moments)
    return advantages if clamp is None else advantages.clamp(min=-clamp, max=clamp)


def _policy_loss(config: PolicyLossConfig) -> Callable[[Tensor, Tensor], PolicyLoss]:
    match config:
        case ClippedLossConfig():
            return partial(
                clipped_surrogate,
                clip_low=config.clip_ratio_low,
                clip_high=config.clip_ratio_high,
                dual_clip=config.dual_clip,
            )
        case ReinforceLossConfig():
            return reinforce
        case NoLossConfig():
            return no_surrogate


def _aggregate(
    kind: Literal["token_mean", "sample_mean", "fixed_length"], longest: int
) -> AggregateFunction:
    def weights(
        mask: Tensor, segment_ids: Tensor, *, tokens: float, samples: float, sample_tokens: Tensor
    ) -> Tensor:
        match kind:
            case "token_mean":
                return token_mean_weights(mask, global_tokens=tokens)
            case "sample_mean":
                return sample_mean_weights(
                    mask, segment_ids, global_samples=samples, sample_tokens=sample_tokens
                )
            case "fixed_length":
                return fixed_length_weights(mask, global_samples=samples, length=longest)

    return weights


def _value(config: ValueTargetConfig, gamma: float, longest: int) -> ValueSlots:
    lam, low, high = config.gae_lambda_value, config.value_clip_low, config.value_clip_high
    clipped = partial(clipped_squared_error, clip_low=low or math.inf, clip_high=high or math.inf)
    has_clip = low is not None or high is not None
    return ValueSlots(
        targets=partial(lambda_returns, gamma=gamma, lam=lam),
        returns=partial(monte_carlo_returns, gamma=gamma),
        loss=clipped if has_clip else lambda values, _old, targets: squared_error(values, targets),
        aggregate=_aggregate(config.aggregate, longest),
        reads_old=has_clip,
        targets_read_old=lam != 1.0,
    )


def build_ratio(config: RatioConfig) -> RatioFunction:
    """Return the ratio that a configuration names; all kinds take the same inputs."""
    match config:
        case BehaviourRatioConfig():
            return lambda x: behaviour_ratio(x.new, x.behaviour, x.mask)
        case DecoupledRatioConfig():
            return partial(_decoupled, config=config)
        case TisRatioConfig():
            return partial(_tis, config=config)


def _decoupled(x: LossInputs, *, config: DecoupledRatioConfig) -> Ratio:
    proximal = x.start
    if config.proximal == "interpolated":
        proximal = interpolated_proximal(
            x.start, x.behaviour, x.versions, learner_version=x.learner_version
        )
    return tis_ratio(x.new, proximal, x.behaviour, x.mask, cap=config.cap, over_cap=config.over_cap)


def _tis(x: LossInputs, *, config: TisRatioConfig) -> Ratio:
    ids, samples = x.segment_ids, x.segment_tokens.numel()
    ratio = tis_ratio(
        x.new, x.start, x.behaviour, x.mask, cap=config.cap, over_cap=config.over_cap,
        segment_ids=ids if config.level == "sequence" else None, num_segments=samples,
    )  # fmt: skip
    if config.geometric_filter is None:
        return ratio
    low, high = config.geometric_filter
    kept = geometric_filter(x.start, x.behaviour, x.mask, ids, samples, low=low, high=high)
    return ratio._replace(
        weight=torch.where(kept, ratio.weight, 0.0), over_cap=ratio.over_cap | (x.mask & ~kept)
    )


def reads_proximal(config: RatioConfig) -> bool:
    """Return whether the ratio reads logprobs recomputed at the update's start."""
    if isinstance(config, DecoupledRatioConfig):
        return config.proximal == "recomputed"
    return isinstance(config, TisRatioConfig)
