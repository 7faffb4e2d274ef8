"""`headrace try-environment`: episodes of a recipe, played at the terminal by a person."""

import argparse
import asyncio
import sys
from typing import Any

from headrace.errors import UserError
from headrace_cli.commands.run.train import configured


def try_environment(arguments: argparse.Namespace) -> int:
    """Play episodes: what is read is a turn of the policy, a line each."""
    config = configured(arguments)
    if config.environment is None:
        raise UserError(f"{arguments.recipe} has no [environment]")
    from environments.protocol import NoEnvironmentError, maker_of
    from tasks.datasets.source import build_source

    try:
        make, _ = maker_of(config.environment.name, config.environment.options)
    except NoEnvironmentError as error:
        raise UserError(str(error)) from error
    source = build_source(config.task, config.seed)
    for number in range(arguments.episodes):
        if not asyncio.run(_play(make(), source.row_at(number), config.environment.max_turns)):
            break
    return 0


async def _play(environment: Any, row: Any, most: int) -> bool:
    """One episode; False where no more lines come."""
    from environments.protocol import answer, begin
    from headrace.protocol.messages.environments import PolicyTurn

    seen = {"id": row.id, "prompt": str(row.prompt), "answer": row.answer, **row.info}
    print(f"prompt    {row.prompt}")
    step, total = await begin(environment, seen, seed=0), 0.0
    for turn in range(1, most + 1):
        for message in step.messages:
            print(f"{message.role:<9} {message.content}")
        print(f"turn {turn:<4} ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            print()
            return False
        text = line.rstrip("\n")
        step = await answer(environment, PolicyTurn(text, len(text)))
        total += step.reward
        told = "".join(f", {name} {value:g}" for name, value in step.metrics.items())
        print(f"earns     {step.reward:g}{told}")
        if step.done:
            break
    won = total > 0 if step.success is None else step.success
    print(
        f"{'over' if step.done else 'truncated':<9} reward {total:g}, {'won' if won else 'lost'}\n"
    )
    return True
