"""The environment of a recipe, made once before anything starts."""

import asyncio
from pathlib import Path

from headrace.config.sections.reward import RewardConfig
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError


def check_environment(config: RunConfig) -> RunConfig:
    """The configuration with the schemas of its environment's tools; UserError where it cannot be
    made, where nobody pays or `[reward]` would not, and where no chat shows the tools."""
    if config.environment is None:
        return config
    from environments.worker import tools_of

    tools = asyncio.run(tools_of(config.environment))
    changed = config.environment.model_copy(update={"tools": tools})
    if tools:
        _need_chat(config)
        update = {"scored": True, "calls": _call_format(config)}
        changed = changed.model_copy(update=update)
    elif config.reward != RewardConfig() and not config.environment.scored:
        raise UserError(
            "reward: an environment pays itself; leave the section out, or let it score the last "
            "turn besides, by environment.scored = true"
        )
    return config.model_copy(update={"environment": changed})


def _need_chat(config: RunConfig) -> None:
    from tasks.datasets.source import build_source

    prompt = build_source(config.task, config.seed).row_at(0).prompt
    if isinstance(prompt, str) and config.model.chat_template != "always":
        raise UserError(
            "environment: a chat template shows the tools, and the prompts are plain text; set "
            'model.chat_template = "always"'
        )


def _call_format(config: RunConfig) -> str:
    """How the policy's chat template has calls written; Hermes's where it shows no tools."""
    assert config.environment is not None
    if config.environment.calls != "auto":
        return config.environment.calls
    from headrace.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(
        str(Path(config.model.path)), trust_remote_code=config.model.trust_remote_code
    )
    template = str(tokenizer.chat_template)
    if "<function=" in template:
        return "qwen"
    return "llama" if "<tool_call>" not in template and '"parameters"' in template else "hermes"
