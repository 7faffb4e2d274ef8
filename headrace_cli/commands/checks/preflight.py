"""Everything of a recipe that can be known before a process starts.

In: a configuration and the machine. Out: the configuration with what its reward functions ask for
and the schemas of its environment's tools. A mistake is a UserError of one line; `headrace config
check` collects them all, `headrace train` and `headrace eval` stop at the first.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.config.device_defaults import (
    ResolvedConfig,
    gpu_places,
    resolve,
    resolve_generator,
    resolve_learner,
)
from headrace.config.estimates.memory import gpu_memory
from headrace.config.preflight.checks import check_dataset, check_machine, check_model
from headrace.config.sections.environment import EnvironmentConfig
from headrace.config.sections.reward import RewardConfig
from headrace.config.sections.run import RunConfig
from headrace.data.image_processor import sees_images
from headrace.data.media import MediaError
from headrace.data.tokenizer import has_chat_template, json_object
from headrace.errors import UserError
from headrace.host.hardware import Hardware
from headrace.protocol.messages.environments import InsertedMessage
from headrace_cli.commands.checks.reward_check import check_reward, policy_tokenizer
from headrace_cli.launch.judge_plan import place_judges
from headrace_cli.launch.plan import plan_processes

CHECKED_IMAGE_ROWS = 1_000
"""Maximum number of checked rows with images, and of the other rows."""


def check_start(config: RunConfig, hardware: Hardware) -> RunConfig:
    """Check machine, data, images, templates, database, cores and rewards, or raise UserError."""
    found = resolve_learner(config, on_gpu=bool(hardware.gpus), bfloat16=hardware.bfloat16)
    for check in start_checks(found.config, hardware):
        check()
    if bad := image_problems(found.config):
        more = f" (and {len(bad) - 1} more; see `headrace config check`)" if bad[1:] else ""
        raise UserError(bad[0] + more)
    checked = check_reward(check_environment(found.config))
    say_overruled(config, found)
    return checked


def say_overruled(config: RunConfig, found: ResolvedConfig) -> None:
    """Say which of the learner's keys that a recipe states it does not get."""
    for choice in found.choices if not config.evaluation.only else ():
        if getattr(config.learner, choice.key.partition(".")[2]) not in (None, "auto"):
            print(choice, file=sys.stderr)


def start_checks(config: RunConfig, hardware: Hardware) -> list[Callable[[], object]]:
    """Return the checks of `check_start` except images and rewards, each by itself."""
    return [
        lambda: check_machine(config, place_judges(config, hardware)[1]),
        lambda: check_judges(config, hardware),
        lambda: check_data(config),
        lambda: check_database(config),
        lambda: plan_processes(config, Path(config.root) / "RUN", hardware),
    ]


def check_judges(config: RunConfig, hardware: Hardware) -> None:
    """UserError where judges and what shares a GPU with them ask for more of it than there is."""
    if not (config.reward.judges and hardware.gpus):
        return
    places, left = place_judges(config, hardware)
    shape = check_model(config)
    run = resolve(config, left, shape).config
    others, rank = gpu_places(run, left.gpus), gpu_memory(run, shape).total
    for gpu in hardware.gpus:
        near = others.company(gpu.device)
        own = resolve_generator(config, [gpu], near, rank, bfloat16=True).config.generator
        each = (own.gpu_memory_utilization or 0.0) if own.engine == "vllm" else 0.0
        judges = config.reward.judges.items()
        shares = [j.gpu_memory_utilization for name, j in judges if gpu.device in places[name].gpus]
        taken = sum(shares) + near.generators * each + near.ranks * rank / gpu.memory_bytes
        if shares and taken > 1:
            raise UserError(
                f"judges and others on GPU {gpu.device} take {taken:.2f} of its memory: lower "
                "gpu_memory_utilization of reward.judges.NAME and of generator"
            )


def check_data(config: RunConfig) -> None:
    """UserError where a row cannot be read, is no prompt for the policy or ends with an answer,
    where too few are left to train on, or where chats meet a tokenizer without a template."""
    from tasks.datasets.source import build_source, every_row
    from tasks.rows import other_than_text

    mode = config.model.chat_template
    check_dataset(config)
    source = build_source(config.task, config.seed)
    rows = list(every_row(config.task))
    asks = config.environment is not None and config.environment.is_agent  # in text alone
    images = sees_images(config.model.path) and not asks
    for row in rows:
        if part := other_than_text(row.prompt, images=images):
            reads = "text and images" if images else "text"
            raise UserError(
                f"row {row.id}: its prompt has a part of type {part!r}, and the policy reads "
                f"{reads} alone; take such rows out of the dataset"
            )
    ends = (r for r in rows if isinstance(r.prompt, list) and r.prompt[-1]["role"] == "assistant")
    if config.environment is None and (ended := next(ends, None)) is not None:
        raise UserError(
            f"row {ended.id}: its prompt ends with the assistant's message, which the policy would "
            "read before it answers; leave that message out"
        )
    chat = next((row for row in rows if not isinstance(row.prompt, str)), None)
    if chat is not None and mode == "never":
        raise UserError(
            f"row {chat.id} has chat messages but model.chat_template is 'never'; use 'auto'"
        )
    if chat is not None:
        _need_template(config, f"row {chat.id} has chat messages")
    elif mode == "always":
        _need_template(config, "model.chat_template is 'always'")
    wanted = (value.warmup_prompts or 0) if (value := config.algorithm.value) else 0
    if not config.evaluation.only and wanted > (found := len(source.training_rows(wanted))):
        raise UserError(
            f"algorithm.value.warmup_prompts = {wanted}, and the data has {found} rows to train on"
        )
    if config.evaluation.rows == "held_out" and not source.eval_rows(1):
        print("no row is held out for evaluations: raise task.eval_fraction", file=sys.stderr)


def image_problems(config: RunConfig) -> list[str]:
    """Return a line for each row with too many images, or one that is missing, damaged or unusable.
    Images of the first rows are decoded, and a sample of the others, with a notice."""
    from tasks.datasets.source import every_row, image_files
    from tasks.rows import images_in

    if not sees_images(config.model.path):
        return []
    rows = [row for row in every_row(config.task) if images_in(row.prompt)]
    most = config.task.max_images
    found = [
        f"row {row.id}: {number} images, but task.max_images = {most}"
        for row in rows
        if (number := len(images_in(row.prompt))) > most
    ]
    step = max(1, -(-(len(rows) - CHECKED_IMAGE_ROWS) // CHECKED_IMAGE_ROWS))
    chosen = rows[:CHECKED_IMAGE_ROWS] + rows[CHECKED_IMAGE_ROWS::step]
    if step > 1:
        print(
            f"images of {len(chosen):,} of {len(rows):,} rows are looked at: of the first "
            f"{CHECKED_IMAGE_ROWS:,} and one in {step} of the others; the run skips rows with bad "
            "ones",
            file=sys.stderr,
        )
    for row in chosen:
        try:
            image_files(config.task, row, check=True)
        except MediaError as error:
            found.append(str(error))
    return found


def _need_template(config: RunConfig, why: str) -> None:
    folder = Path(config.model.path)
    if folder.is_dir() and not has_chat_template(folder):  # `check_model` says that it is missing
        raise UserError(
            f"model.path = {config.model.path!r}: its tokenizer has no chat template, but {why}; "
            "put a chat_template.jinja into the folder, or take prompts that are plain text"
        )


def check_family(config: RunConfig) -> None:
    """UserError where the learner would compute a model's family otherwise than the family's
    code."""
    said = json_object(Path(config.model.path, "config.json"))
    if config.evaluation.only or "model_type" not in said:
        return  # `check_model` says what is wrong with the folder
    from learner.models.family_check import check_folder

    check_folder(config.model, with_critic=config.algorithm.value is not None)


def check_database(config: RunConfig) -> None:
    """UserError where `storage.database` is none that can be used, or does not answer."""
    if config.storage.database is None:
        return
    from storage.database.engine import open_reader

    open_reader(Path(config.root), config.storage.database).dispose()


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
    heeded = RewardConfig(max_consecutive_failures=config.reward.max_consecutive_failures)
    if ready.pays and config.reward != heeded and not environment.scored:
        raise UserError(
            "reward: an environment pays itself; leave the section out, or let it score the last "
            "turn besides, by environment.scored = true"
        )
    prompt = build_source(config.task, config.seed).row_at(0).prompt
    is_text = isinstance(prompt, str) and config.model.chat_template != "always"
    reads = not is_text or (environment.is_agent and config.model.chat_template == "auto")
    tokenizer: Any = policy_tokenizer(config) if reads else None
    if is_text and not (reads and tokenizer.chat_template):
        if ready.tools:
            raise UserError(
                "environment: a chat template shows the tools, and the prompts are plain text; set "
                'model.chat_template = "always"'
            )
        return config
    renderer = MessageRenderer(tokenizer, is_chat=True, appends=environment.template == "append")
    if ready.tools:
        renderer.ids([InsertedMessage("tool", "")], most=1)
    found: dict[str, Any] = {"tools": ready.tools, "scored": environment.scored or not ready.pays}
    if ready.tools or environment.is_agent:
        found["calls"] = _call_format(environment, str(tokenizer.chat_template))
    return config.model_copy(update={"environment": environment.model_copy(update=found)})


def _call_format(environment: EnvironmentConfig, template: str) -> str:
    """Return the chat template's format of tool calls; Hermes's where it shows no tools."""
    if environment.calls != "auto":
        return environment.calls
    if "<function=" in template:
        return "qwen"
    return "llama" if "<tool_call>" not in template and '"parameters"' in template else "hermes"
