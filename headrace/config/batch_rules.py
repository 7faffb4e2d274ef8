"""A recipe's algorithm, compiled to what the coordinator needs to know when it makes a batch.

In: the configuration. Out: plain rules about masks and contents. Promise: this is the only place
outside the learner that knows what an algorithm is.
"""

from dataclasses import dataclass
from typing import Literal

from headrace.config.algorithm import EgaeConfig, GroupAdvantageConfig
from headrace.config.run import RunConfig
from headrace.protocol.streams import MarkName


@dataclass(frozen=True)
class BatchRules:
    """What a batch holds and leaves out.

    Attributes:
        boundary_mask: last sampled tokens of a window whose trajectory goes on that are kept out of
            the loss.
        skips_truncated: answers that met the length limit are kept out of the policy's loss.
        max_age: most updates between the sampling of a token and its training.
        compares: whose scores an advantage needs beside its own: nobody's, the whole group's, or a
            group of the trajectory alone.
        value_logprobs: the value model's half needs the sampler's logprobs.
        mixed_groups: groups in which all scores are equal are not trained.
        masked_marks: tokens with such a mark are kept out of the loss.
        stays_with_rank: all windows of a trajectory go to one learner rank, in every batch.
    """

    boundary_mask: int
    skips_truncated: bool
    max_age: int
    compares: Literal["nobody", "itself", "group"]
    value_logprobs: bool
    mixed_groups: bool
    masked_marks: frozenset[MarkName] = frozenset()
    stays_with_rank: bool = False


def batch_rules(config: RunConfig) -> BatchRules:
    """The rules of a configuration."""
    algorithm, advantages = config.algorithm, config.algorithm.advantages
    compares: Literal["nobody", "itself", "group"] = "nobody"
    if isinstance(advantages, GroupAdvantageConfig):
        compares = "group" if config.schedule.unit == "group" else "itself"
    fire = config.generator.fire
    masks_hot = fire is not None and fire.correction == "mask"
    return BatchRules(
        boundary_mask=advantages.boundary_mask if isinstance(advantages, EgaeConfig) else 0,
        skips_truncated=algorithm.overlong is not None and algorithm.overlong.filter,
        max_age=config.schedule.max_staleness,
        compares=compares,
        value_logprobs=algorithm.kl is not None and algorithm.kl.where == "reward",
        mixed_groups=algorithm.admit == "mixed_groups",
        masked_marks=frozenset({"hot"}) if masks_hot else frozenset(),
        stays_with_rank=config.learner.context == "carried",
    )
