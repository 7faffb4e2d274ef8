"""The reward function of a recipe, checked before anything starts."""

from headrace.config.run import RunConfig


def check_reward(config: RunConfig) -> None:
    """UserError where `reward.function` cannot be loaded, has another signature than a reward
    function has, or needs a column that the task does not have."""
    from rewards.preflight import check_function
    from tasks.source import info_columns

    if config.reward.function is not None:
        check_function(config.reward, lambda: info_columns(config.task))
