"""The sources of rewards of a recipe, checked before anything starts."""

from pathlib import Path
from typing import Any

from headrace.config.preflight.value_model import check_tokens
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError


def check_reward(config: RunConfig, *, every: bool = False) -> RunConfig:
    """The configuration with what its reward functions ask for; UserError where one cannot be
    loaded, takes the response under no known name, or needs a column that the task does not have,
    where a prompt has no source or lacks its anchor, and where a line reward model reads other
    tokens than the policy writes. `every` kind is loaded, not functions alone."""
    from headrace_cli.commands.checks.anchor_check import check_anchors
    from rewards.preflight import check_sources
    from tasks.datasets.source import info_columns

    check_route(config)
    for name, source in config.reward.each().items():
        model = source.options.get("model")
        if source.kind == "prm" and isinstance(model, str):
            key = f"reward.sources.{name}.options.model"
            check_tokens(key, Path(model), Path(config.model.path))
    reward = check_sources(config.reward, lambda: info_columns(config.task), every=every)
    check_anchors(config)
    return config.model_copy(update={"reward": reward})


def check_route(config: RunConfig) -> None:
    """UserError where the route leaves a prompt of the task without a source."""
    reward, task = config.reward, config.task
    if not reward.sources or reward.route_of(task.kind, dict) is not None:
        return
    column = reward.route.column
    if column is None:
        raise UserError(
            "reward.route leaves every prompt without a source: name one in reward.route.default"
        )
    from tasks.datasets.source import every_row

    for row in every_row(task):
        if _source_of(config, row) is None:
            raise UserError(
                f"reward.route leaves row {row.id} without a source: its {column!r} is "
                f"{str(row.info.get(column))[:80]!r}; name one in reward.route.values or "
                "reward.route.default"
            )


def _source_of(config: RunConfig, row: Any) -> str | None:
    return config.reward.route_of(config.task.kind, lambda: row.info)
