"""The sources of rewards of a recipe, checked before anything starts, and their anchors.

In: a configuration. Out: nothing, or a UserError of one line. For anchors every prompt of a dataset
is checked; of a task that generates its prompts, the held-out ones and the first, because nobody
knows how far a run will get: a prompt that lacks its anchor later gives an `invalid` scoring.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from headrace.config.preflight.checks import check_tokens
from headrace.config.sections.reward import SourceConfig
from headrace.config.sections.run import RunConfig
from headrace.config.sections.task import members
from headrace.data.anchors import read_anchors
from headrace.data.tokenizer import load_tokenizer
from headrace.errors import UserError


def check_reward(config: RunConfig, *, every: bool = False) -> RunConfig:
    """The configuration with what its reward functions ask for; UserError where one cannot be
    loaded, takes the response under no known name, or needs a column that the task does not have,
    where a prompt has no source or lacks its anchor, and where a line reward model reads other
    tokens than the policy writes. `every` kind is loaded, not functions alone."""
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
    routed = [config.source_of(partial(dict, domain=name)) for name in members(task)]
    if not reward.sources or all(routed):
        return
    column = reward.route.column
    if column is None:
        left = "prompts" if any(routed) else "every prompt"
        text = f"reward.route leaves {left} without a source: name one in reward.route.default"
        raise UserError(text)
    from tasks.datasets.source import every_row

    for row in every_row(task):
        if config.source_of(partial(dict, row.info)) is None:
            raise UserError(
                f"reward.route leaves row {row.id} without a source: its {column!r} is "
                f"{str(row.info.get(column))[:80]!r}; name one in reward.route.values or "
                "reward.route.default"
            )


def policy_tokenizer(config: RunConfig) -> Any:
    """The policy's tokenizer; UserError where there is none."""
    return load_tokenizer(config.model.path, trust_remote_code=config.model.trust_remote_code)


def check_anchors(config: RunConfig) -> None:
    """UserError where a prompt that a source of the kind `pairwise` scores has no anchor."""
    for name, source in config.reward.each().items():
        if source.kind == "pairwise":
            key = f"reward.sources.{name}.options" if config.reward.sources else "reward.options"
            rows = [row for row in _anchored_prompts(config) if _scores(config, name, row)]
            _check_source(config, source, key, rows)


def _anchored_prompts(config: RunConfig) -> Iterator[Any]:
    from tasks.datasets.source import DatasetSource, build_source

    source = build_source(config.task, config.seed)
    for domain in source.domains.values():
        yield from domain.training if isinstance(domain, DatasetSource) else domain.training_rows(1)
    if config.evaluation.rows == "held_out":
        yield from source.eval_rows(config.evaluation.num_prompts)


def _scores(config: RunConfig, name: str, row: Any) -> bool:
    """Return whether a source scores the answers to a row, for training or for the audit."""
    reward = config.reward
    audits = reward.audit is not None and reward.audit.source == name
    return audits or config.source_of(lambda: row.info) == name


def _check_source(config: RunConfig, source: SourceConfig, key: str, rows: list[Any]) -> None:
    from rewards.models.encoding import prompt_ids, rendered_prompt

    tokenizer, mode = policy_tokenizer(config), config.model.chat_template
    file, column = source.options.get("anchors"), source.options.get("column")
    anchors = read_anchors(Path(str(file)).expanduser()) if file else None

    def lacks(row: Any) -> bool:
        if anchors is not None:
            return rendered_prompt(tokenizer, row.prompt, mode) not in anchors
        anchor = row.info.get(column)
        return not isinstance(anchor, str) or not anchor

    longest = config.task.max_prompt_length
    without = [
        row
        for row in rows
        if lacks(row) and len(prompt_ids(tokenizer, row.prompt, mode)) <= longest
    ]
    if without:
        where = f"{key}.anchors = {file!r}" if file else f"{key}.column = {column!r}"
        raise UserError(
            f"{where}: {len(without)} of {len(rows)} prompts have no anchor, the first is "
            f"{without[0].id}; `headrace reward anchors` makes them"
        )
