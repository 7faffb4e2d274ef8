"""The ratio of an algorithm: which logprobs anchor the importance ratio, and what weights it.

In: `RatioConfig`. Out: one function of `Tokens`. Promise: every kind is called alike, with all that
any of them reads.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.config.sections.algorithm import (
    BehaviourRatioConfig,
    DecoupledRatioConfig,
    RatioConfig,
    TisRatioConfig,
)
from learner.algorithms.ratios import (
    Ratio,
    behaviour_ratio,
    decoupled_ratio,
    geometric_filter,
    interpolated_proximal,
    tis_ratio,
)


class Tokens(NamedTuple):
    """N tokens as a ratio sees them; those of one window are all there.

    Attributes:
        new: [N] logprobs, with gradient. start: [N] logprobs under the weights of the update's
        start. behaviour: [N] logprobs of the sampler. versions: [N] weight versions that sampled.
        mask: [N] bool. segment_ids: [N] int, the window of each token, of `num_segments`.
        learner_version: of the weights of the update's start.
    """

    new: Tensor
    start: Tensor
    behaviour: Tensor
    versions: Tensor
    mask: Tensor
    segment_ids: Tensor
    num_segments: int
    learner_version: int


RatioFunction = Callable[[Tokens], Ratio]


def build_ratio(config: RatioConfig) -> RatioFunction:
    """The ratio that a configuration names."""
    match config:
        case BehaviourRatioConfig():
            return lambda x: behaviour_ratio(x.new, x.behaviour, x.mask)
        case DecoupledRatioConfig():
            return partial(_decoupled, config=config)
        case TisRatioConfig():
            return partial(_tis, config=config)


def _decoupled(x: Tokens, *, config: DecoupledRatioConfig) -> Ratio:
    proximal = x.start
    if config.proximal == "interpolated":
        proximal = interpolated_proximal(
            x.start, x.behaviour, x.versions, learner_version=x.learner_version
        )
    return decoupled_ratio(
        x.new, proximal, x.behaviour, x.mask, cap=config.cap, over_cap=config.over_cap
    )


def _tis(x: Tokens, *, config: TisRatioConfig) -> Ratio:
    ids, samples = x.segment_ids, x.num_segments
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
