"""The ratio of an algorithm: which logprobs anchor the importance ratio, and what weights it.

In: `RatioConfig`. Out: one function of `LossInputs`. Promise: every kind is called alike, with all
that any of them reads.
"""

from collections.abc import Callable
from functools import partial

import torch

from headrace.config.sections.algorithm import (
    BehaviourRatioConfig,
    DecoupledRatioConfig,
    RatioConfig,
    TisRatioConfig,
)
from learner.algorithms.policy_losses import LossInputs
from learner.algorithms.ratios import (
    Ratio,
    behaviour_ratio,
    decoupled_ratio,
    geometric_filter,
    interpolated_proximal,
    tis_ratio,
)

RatioFunction = Callable[[LossInputs], Ratio]


def build_ratio(config: RatioConfig) -> RatioFunction:
    """The ratio that a configuration names."""
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
    return decoupled_ratio(
        x.new, proximal, x.behaviour, x.mask, cap=config.cap, over_cap=config.over_cap
    )


def _tis(x: LossInputs, *, config: TisRatioConfig) -> Ratio:
    ids, samples = x.segment_ids, x.segment_tokens.numel()
    ratio = tis_ratio(
        x.new, x.start, x.behaviour, x.mask, cap=config.cap, over_cap=config.over_cap,
        level=config.level, segment_ids=ids, num_segments=samples,
    )  # fmt: skip
    if config.geometric_filter is None:
        return ratio
    low, high = config.geometric_filter
    kept = geometric_filter(x.start, x.behaviour, x.mask, ids, samples, low=low, high=high)
    return ratio._replace(
        weight=torch.where(kept, ratio.weight, 0.0), over_cap=ratio.over_cap | (x.mask & ~kept)
    )


def reads_proximal(config: RatioConfig) -> bool:
    """Whether the ratio reads logprobs recomputed at the update's start."""
    match config:
        case BehaviourRatioConfig():
            return False
        case DecoupledRatioConfig():
            return config.proximal == "recomputed"
        case TisRatioConfig():
            return True
