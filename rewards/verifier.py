"""From configuration to a verifier.

In: the reward section. Out: a verifier, which turns one response into a verdict. Building it loads
what it needs (math-verify, the user's module), so that scoring starts warm.
"""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.config.reward import RewardConfig
from headrace.errors import UserError
from headrace.protocol.messages import ScoreItem
from rewards import math_answer
from rewards.exact_match import is_exact
from rewards.functions import load_function
from rewards.verdict import Verdict


@dataclass(frozen=True)
class Verifier:
    """Judges responses one by one; `needs` are the columns of the dataset it cannot do without."""

    judge: Callable[[ScoreItem], Verdict]
    needs: tuple[str, ...] = ()

    def __call__(self, item: ScoreItem) -> Verdict:
        """The verdict on one response."""
        return self.judge(item)


def build_verifier(config: RewardConfig) -> Verifier:
    """The verifier that the configuration names; UserError when it cannot be had."""
    if config.kind == "function":
        return _function_verifier(config)
    if config.kind == "math":
        math_answer.load()

    def verify(item: ScoreItem) -> Verdict:
        right = _counts(config, item) and (
            math_answer.is_right(item.text, item.answer, marker=config.answer_marker)
            if config.kind == "math"
            else is_exact(item.text, item.answer, marker=config.answer_marker)
        )
        reward = config.correct_reward if right else config.wrong_reward
        return Verdict(reward, right, {"correct": float(right)})

    return Verifier(verify)


def _function_verifier(config: RewardConfig) -> Verifier:
    if config.function is None:
        raise UserError("reward.kind is `function`: name one with reward.function=module:name")
    function = load_function(config.function)

    def verify(item: ScoreItem) -> Verdict:
        if not _counts(config, item):
            return Verdict(config.wrong_reward, False)
        threshold = config.correct_threshold
        return function(item.prompt, item.text, item.answer, item.info, threshold=threshold)

    return Verifier(verify, function.signature.needs)


def _counts(config: RewardConfig, item: ScoreItem) -> bool:
    return item.finished or not config.require_finish
