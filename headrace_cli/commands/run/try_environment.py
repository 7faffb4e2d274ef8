"""`headrace try-environment`: episodes played at the terminal by a person or a model.

In: a recipe. Out: each episode, turn by turn, with what turns earn. The environment is asked in a
child, as in a run; what it says becomes the model's tokens as in a run.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.config.loading.hub import named_model, with_local_model
from headrace.config.sections.environment import EnvironmentConfig
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError, visible
from headrace.protocol.messages.environments import PolicyTurn, Step, StepAsk
from headrace_cli.commands.checks.preflight import check_environment
from headrace_cli.commands.run.train import config_from_arguments
from headrace_cli.launch.supervisor import signal_handler


def try_environment(arguments: argparse.Namespace) -> int:
    """Play episodes; each line that a person types is a turn of the policy."""
    arguments.no_dashboard = True
    if arguments.policy not in (None, ""):
        arguments.overrides.append(f"model.path={json.dumps(named_model(arguments.policy))}")
    config = config_from_arguments(arguments)
    if config.environment is None:
        raise UserError(f"{arguments.recipe} has no [environment]")
    config = check_environment(config)
    player: TerminalPlayer = TerminalPlayer()
    if arguments.policy is not None:
        player = ModelPlayer(with_local_model(config, download=True))
    asyncio.run(_episodes(config, player, arguments.episodes))
    return 0


class TerminalPlayer:
    """A person at the terminal, who types the turns of a policy."""

    says_turns = False

    def start_episode(self, row: Any, step: Step) -> None:
        """Begin an episode with a row and the environment's reset."""

    def next_turn(self) -> PolicyTurn | None:
        """The next turn; None where no more lines come."""
        # asyncio's own handler of Ctrl-C would wait for the end of the line.
        with signal_handler(signal.default_int_handler, signal.SIGINT):
            line = sys.stdin.readline()
        text = line.rstrip("\n")
        return PolicyTurn(text, len(text)) if line else None

    def observe(self, step: Step) -> None:
        """Take the environment's answer."""


class ModelPlayer(TerminalPlayer):
    """The policy of a recipe, which samples turns at temperature 1."""

    says_turns = True

    def __init__(self, config: RunConfig) -> None:
        from transformers import AutoModelForCausalLM

        from coordinator.dispatch.prompts import Prompts

        self._config, self._prompts, model = config, Prompts(config), config.model
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            model.path, trust_remote_code=model.trust_remote_code, use_safetensors=True
        )
        self._ids: list[int] = []
        self._is_chat = False

    def start_episode(self, row: Any, step: Step) -> None:
        encoded = self._prompts.encode(row)
        self._is_chat, self._ids = self._prompts.is_chat(encoded.messages), encoded.ids.tolist()
        self._insert(step, is_first=True)

    def next_turn(self) -> PolicyTurn:
        """Sample until the end token, or the recipe's limit of a turn."""
        import torch

        environment, task = self._config.environment, self._config.task
        assert environment is not None
        asked = torch.tensor([self._ids])
        found = self._model.generate(
            asked, attention_mask=torch.ones_like(asked), do_sample=True, top_k=0,
            temperature=1.0, top_p=1.0, repetition_penalty=1.0,  # whatever the model's folder says
            max_new_tokens=environment.max_turn_tokens or task.max_response_length,
        )[0, len(self._ids) :]  # fmt: skip
        self._ids += found.tolist()
        return PolicyTurn(self._prompts.decode(found.numpy().astype(np.int32)), len(found))

    def observe(self, step: Step) -> None:
        self._insert(step, is_first=False)

    def _insert(self, step: Step, *, is_first: bool) -> None:
        if step.messages or (self._is_chat and is_first):
            rendering = self._prompts.rendering(is_chat=self._is_chat)
            said = rendering.ids(
                step.messages, most=1 << 20, is_first=is_first, whole=not self._ids,
                tools=step.tools, behind=-1 if is_first else self._ids[-1],
            )  # fmt: skip
            self._ids += [] if said is None else said.ids.tolist()


async def _episodes(config: RunConfig, player: TerminalPlayer, number: int) -> None:
    from environments.endpoint import pool_of
    from tasks.datasets.source import build_source

    assert config.environment is not None
    pool, source = pool_of(config.environment), build_source(config.task, config.seed)
    try:
        await pool.start()
        for key in range(number):
            if not await _play(pool, source.row_at(key), key, player, config.environment):
                break
    finally:
        await pool.close()


async def _play(
    pool: Any, row: Any, key: int, player: TerminalPlayer, config: EnvironmentConfig
) -> bool:
    """One episode; False where no more turns come."""
    seen = {**row.info, "id": row.id, "prompt": str(row.prompt), "answer": row.answer}
    if not isinstance(row.prompt, str):
        seen["prompt" if config.is_agent else "messages"] = row.prompt

    async def ask(number: int, turns: Sequence[PolicyTurn]) -> Step:
        reply = await pool.reply(
            StepAsk(
                trajectory_id=key, turn=number, turns=list(turns), known=[],
                row=json.dumps(seen, default=str), seed=key,
            )
        )  # fmt: skip
        if reply.status != "ok":
            raise UserError(f"environment_{reply.status}: {reply.error}")
        step: Step = reply.step
        return step

    print(visible(f"prompt    {row.prompt}"))
    step, total = await ask(0, []), 0.0
    player.start_episode(row, step)
    for number in range(1, config.max_turns + 1):
        for message in step.messages:
            print(visible(f"{message.role:<9} {message.content}"))
        print(f"turn {number:<4} ", end="", flush=True)
        turn = player.next_turn()
        if turn is None:
            print()
            return False
        if player.says_turns:
            print(visible(turn.text))
        step = await ask(number, [turn])
        player.observe(step)
        total += step.reward
        told = "".join(f", {name} {value:g}" for name, value in step.metrics.items())
        print(f"earns     {step.reward:g}{told}")
        if step.done:
            break
    won = total > 0 if step.success is None else step.success
    end = "over" if step.done else "truncated"
    outcome = "and what [reward] gives the last turn" if config.scored else "won" if won else "lost"
    print(f"{end:<9} reward {total:g}, {outcome}\n")
    return True
