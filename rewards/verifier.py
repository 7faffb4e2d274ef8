"""From configuration to a verifier.

In: the reward section. Out: a callable that turns one response into (reward, parts). Building it
loads what it needs (math-verify, the user's module), so that scoring starts warm.
"""

from collections.abc import Callable

from headrace.config.reward import RewardConfig
from headrace.errors import UserError
from headrace.protocol.messages import ScoreItem
from rewards import math_answer
from rewards.exact_match import is_exact
from rewards.functions import call_function, load_function

Verifier = Callable[[ScoreItem], tuple[float, dict[str, float]]]


def build_verifier(config: RewardConfig) -> Verifier:
    """The verifier that the configuration names; UserError when it cannot be had."""
    if config.kind == "function":
        return _function_verifier(config)
    if config.kind == "math":
        math_answer.load()

    def verify(item: ScoreItem) -> tuple[float, dict[str, float]]:
        right = _counts(config, item) and (
            math_answer.is_right(item.text, item.answer, marker=config.answer_marker)
            if config.kind == "math"
            else is_exact(item.text, item.answer, marker=config.answer_marker)
        )
        reward = config.correct_reward if right else config.wrong_reward
        return reward, {"correct": float(right)}

    return verify


def _function_verifier(config: RewardConfig) -> Verifier:
    if config.function is None:
        raise UserError("reward.kind is `function`: name one with reward.function=module:name")
    function = load_function(config.function)

    def verify(item: ScoreItem) -> tuple[float, dict[str, float]]:
        if not _counts(config, item):
            return config.wrong_reward, {}
        return call_function(function, item.prompt, item.text, item.answer, item.info)

    return verify


def _counts(config: RewardConfig, item: ScoreItem) -> bool:
    return item.finished or not config.require_finish
