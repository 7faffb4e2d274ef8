"""A recipe's algorithm, compiled to the coordinator's rules for batches.

In: the configuration. Out: plain rules about masks and contents. Promise: this is the only place
outside the learner that knows what an algorithm is.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from headrace.config.sections.algorithm import EgaeConfig, GroupAdvantageConfig
from headrace.config.sections.run import RunConfig
from headrace.protocol.token_spans import MarkName

KlOfPrompt = Callable[[str], float | None]
"""KL coefficient of a row's source of rewards, from its columns as JSON; None: the common one."""


def _none_of_its_own(info: str) -> float | None:
    return None


@dataclass(frozen=True)
class BatchRules:
    """Contents and masks of a batch.

    Attributes:
        boundary_mask: last sampled tokens of a window whose trajectory goes on that are kept out of
        the loss. skips_truncated: answers that met the length limit are kept out of the policy's
        loss. max_age: maximum number of updates between the sampling of a token and its training.
        compares: whose scores an advantage needs beside its own: nobody's, the whole group's, or a
        group of the trajectory alone. value_logprobs: the value model's half needs the sampler's
        logprobs. value_statistics: windows bring statistics of the sampler's logprobs before them.
        masked_marks: tokens with such a mark are kept out of the loss.
        by_turn: credit ends with a turn.
        stays_with_rank: all windows of a trajectory go to one learner rank, in every batch.
        sends_outcomes: cut windows whose answer has ended bring the reward that came.
        kl_of_prompt: which prompts have a KL coefficient of their own. sends_rows: windows that end
        an answer bring the row of its prompt.
    """

    boundary_mask: int
    skips_truncated: bool
    max_age: int
    compares: Literal["nobody", "itself", "group"]
    value_logprobs: bool
    value_statistics: bool
    masked_marks: frozenset[MarkName] = frozenset()
    by_turn: bool = False
    stays_with_rank: bool = False
    kl_of_prompt: KlOfPrompt = _none_of_its_own
    sends_rows: bool = False
    sends_outcomes: bool = False


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
        value_logprobs=algorithm.fits_value
        or (algorithm.kl is not None and algorithm.kl.where == "reward"),
        value_statistics=algorithm.fits_value,
        masked_marks=frozenset({"hot"}) if masks_hot else frozenset(),
        by_turn=algorithm.turns == "turn",
        stays_with_rank=config.learner.context == "carried",
        kl_of_prompt=_kl_of_prompt(config),
        sends_rows=config.learner.ranker is not None,
        sends_outcomes=isinstance(advantages, EgaeConfig) and advantages.boundary == "outcome",
    )


def _kl_of_prompt(config: RunConfig) -> KlOfPrompt:
    """Return KL coefficients by the source that a prompt is routed to, known before its answer."""
    every = {name: source.kl_coefficient for name, source in config.reward.each().items()}
    own = {name: value for name, value in every.items() if value is not None}
    if not own:
        return _none_of_its_own

    @lru_cache(maxsize=1024)
    def kl_of_prompt(info: str) -> float | None:
        source = config.source_of(lambda: json.loads(info))
        return None if source is None else own.get(source)

    return kl_of_prompt
