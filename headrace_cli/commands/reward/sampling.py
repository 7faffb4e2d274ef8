"""Sampling from a recipe's generator, for the commands `label` and `anchors`.

In: the command's options. Out: the part of the recipe that is used for that, prompts as a run has
them, and a way to work on many things side by side with a bar on a terminal.
"""

import argparse
import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from headrace.config.device_defaults import resolve_generator
from headrace.config.loading.hub import named_model, with_local_model
from headrace.config.preflight.checks import check_dataset, check_model, check_recipe
from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError, UserError, first_error, visible
from headrace.host.hardware import detect
from headrace_cli.commands.run.train import config_from_arguments

T = TypeVar("T")
MAX_SKIPS = 10_000


class UnjudgedError(Exception):
    """No judge could score an answer: nothing can follow from it."""


def sampling_config(arguments: argparse.Namespace) -> RunConfig:
    """Return the recipe with the chosen policy. Value model and line sources are left out: the
    answers may be for training them."""
    if arguments.policy is not None:
        arguments.overrides.append(f"model.path={json.dumps(named_model(arguments.policy))}")
    arguments.overrides += ["model.critic_path=null", "reward.process.source=null"]
    arguments.no_dashboard = True
    config = config_from_arguments(arguments)
    sources = {n: s for n, s in config.reward.sources.items() if s.unit != "line"}
    reward = config.reward.model_copy(update={"sources": sources})
    config = config.model_copy(update={"reward": reward})
    check_recipe(config)
    config = with_local_model(config, download=True)
    check_model(config)
    check_dataset(config)
    hardware = detect()
    return resolve_generator(config, hardware.gpus, bfloat16=hardware.bfloat16).config


def training_prompts(config: RunConfig, tokenizer: Any) -> Iterator[tuple[Any, list[int]]]:
    """Yield the task's training prompts in a run's order, without end and without too long ones."""
    from rewards.models.encoding import prompt_ids
    from tasks.datasets.source import build_source

    source, longest = build_source(config.task, config.seed), config.task.max_prompt_length
    position = skipped = 0
    while True:
        row = source.row_at(position)
        ids = prompt_ids(tokenizer, row.prompt, config.model.chat_template)
        position += 1
        if len(ids) <= longest:
            yield row, ids
            skipped = 0
        elif (skipped := skipped + 1) == MAX_SKIPS:
            raise UserError(
                f"{MAX_SKIPS} prompts in a row are longer than task.max_prompt_length = {longest} "
                "tokens; raise it or filter the dataset"
            )


def draw_seed(seed: int, prompt: Sequence[int], prefix: Sequence[int], number: int) -> int:
    """Of one completion: a hash, so that it does not depend on what else is asked."""
    text = f"{seed}/{list(prompt)}/{list(prefix)}/{number}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") >> 1


async def side_by_side(
    things: Sequence[T],
    work: Callable[[T], Awaitable[str]],
    *,
    at_once: int,
    total: int,
    title: str,
) -> None:
    """Work on all things, `at_once` of them at a time. `work` is a further text for the bar;
    `total` counts those that were done before. The first UserError or RunFailedError ends it."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    places = asyncio.Semaphore(at_once)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(title, total=total, completed=total - len(things), told="")

        async def one(thing: T) -> None:
            async with places:
                told = await work(thing)
            progress.update(bar, advance=1, told=told)

        with first_error(UserError, RunFailedError):
            async with asyncio.TaskGroup() as group:
                for thing in things:
                    group.create_task(one(thing))


def print_result(
    result: Mapping[str, Any], failures: Sequence[str], *, failed: str, as_json: bool
) -> int:
    """Print a result and the last failure, named `failed`, or one JSON object; the exit code."""
    if as_json:
        print(json.dumps(result))
        return 0
    for name, value in result.items():
        print(f"{name:<15} {value}")
    if failures:
        print(visible(f"{failed:<15} {failures[-1]} (the last of {len(failures)})"))
    return 0
