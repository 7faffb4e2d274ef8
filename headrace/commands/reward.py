"""The reward function of a recipe, checked before anything starts."""

from headrace.config.run import RunConfig
from headrace.roles import CHECK_FUNCTION, COLUMNS, resolve


def check_reward(config: RunConfig) -> None:
    """UserError where `reward.function` cannot be loaded, has another signature than a reward
    function has, or needs a column that the task does not have."""
    if config.reward.function is not None:
        resolve(CHECK_FUNCTION)(config.reward, lambda: resolve(COLUMNS)(config.task))
