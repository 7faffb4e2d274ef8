"""The environment of a recipe, made once before anything starts."""

import asyncio
from typing import Any

from headrace.config.sections.environment import EnvironmentConfig
from headrace.config.sections.reward import RewardConfig
from headrace.config.sections.run import RunConfig
from headrace.data.tokenizer import load_tokenizer
from headrace.errors import UserError


def check_environment(config: RunConfig) -> RunConfig:
    """Return the configuration with its environment's tool schemas. UserError where it cannot be
    created, where nothing scores or `[reward]` is ignored, where no chat shows the tools, and where
    the chat template cannot be extended by the environment's messages."""
    environment = config.environment
    if environment is None:
        return config
    from coordinator.dispatch.message_rendering import MessageRenderer
    from environments.worker import ready_of
    from tasks.datasets.source import build_source

    ready = asyncio.run(ready_of(environment))
    tools = ready.tools
    if ready.pays and config.reward != RewardConfig() and not environment.scored:
        raise UserError(
            "reward: an environment pays itself; leave the section out, or let it score the last "
            "turn besides, by environment.scored = true"
        )
    prompt = build_source(config.task, config.seed).row_at(0).prompt
    if isinstance(prompt, str) and config.model.chat_template != "always":
        if tools:
            raise UserError(
                "environment: a chat template shows the tools, and the prompts are plain text; set "
                'model.chat_template = "always"'
            )
        return config
    tokenizer = load_tokenizer(config.model.path, trust_remote_code=config.model.trust_remote_code)
    MessageRenderer(tokenizer, is_chat=True, appends=environment.template == "append")
    found: dict[str, Any] = {"tools": tools, "scored": environment.scored or not ready.pays}
    if tools:
        found["calls"] = _call_format(environment, str(tokenizer.chat_template))
    return config.model_copy(update={"environment": environment.model_copy(update=found)})


def _call_format(environment: EnvironmentConfig, template: str) -> str:
    """Return the chat template's format of tool calls; Hermes's where it shows no tools."""
    if environment.calls != "auto":
        return environment.calls
    if "<function=" in template:
        return "qwen"
    return "llama" if "<tool_call>" not in template and '"parameters"' in template else "hermes"
