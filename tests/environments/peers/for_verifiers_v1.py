"""A task set of verifiers 0.4 as an agent: its own loop asks the endpoint."""

import itertools
import os
from collections.abc import Mapping
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.tasksets.textarena import TextArenaConfig, TextArenaEnv, TextArenaEnvConfig


async def play(row: Mapping[str, Any], *, base_url: str, api_key: str) -> float:
    """Play a game of Hangman, the row's prompt its seed, and give the game's reward."""
    game = TextArenaConfig(id="textarena", game="Hangman-v0")
    player = vf.AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"})
    env = TextArenaEnv(TextArenaEnvConfig(taskset=game, player=player))
    task = next(itertools.islice(env.taskset.load(), int(row["prompt"]), None))
    os.environ[name := f"KEY_{api_key}"] = api_key
    client = EvalClientConfig(base_url=base_url, api_key_var=name)
    async with env.serving():
        episode = await env.run_episode(task, ModelContext("policy", client))
    if not episode.ok:
        raise RuntimeError(f"the episode failed: {[trace.errors for trace in episode.traces]}")
    return float(episode.traces[0].reward)
