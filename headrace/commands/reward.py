"""The reward functions of a recipe, checked before anything starts."""

from headrace.config.run import RunConfig


def check_reward(config: RunConfig, *, every: bool = False) -> RunConfig:
    """The configuration with what its reward functions ask for; UserError where one cannot be
    loaded, takes the response under no known name, or needs a column that the task does not have.
    `every` kind is loaded, not functions alone."""
    from rewards.preflight import check_function
    from tasks.source import info_columns

    reward = check_function(config.reward, lambda: info_columns(config.task), every=every)
    return config.model_copy(update={"reward": reward})
