"""From configuration to a verifier.

In: the reward section. Out: a verifier, which turns one response into a verdict. Building it loads
what it needs (math-verify, the user's module), so that scoring starts warm.
"""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.config.reward import RewardConfig
from headrace.protocol.messages import ScoreItem
from rewards import math_answer
from rewards.exact_match import is_exact
from rewards.functions import load_functions
from rewards.verdict import Verdict


@dataclass(frozen=True)
class Verifier:
    """Judges responses one by one."""

    judge: Callable[[ScoreItem], Verdict]
    needs: tuple[str, ...] = ()
    """Columns of the dataset that it cannot do without."""
    asks_ids: bool = False
    """Whether it takes token ids."""

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
    functions = load_functions(config)

    def verify(item: ScoreItem) -> Verdict:
        if not _counts(config, item):
            return Verdict(config.wrong_reward, False)
        return functions(item, threshold=config.correct_threshold)

    return Verifier(verify, functions.needs, functions.asks_ids)


def _counts(config: RewardConfig, item: ScoreItem) -> bool:
    return item.finished or not config.require_finish
