"""What a long trajectory takes is what `headrace config explain` says."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch.profiler import ProfilerActivity, profile

from headrace.config.device_defaults import resolve
from headrace.config.estimates import activations
from headrace.config.estimates.activations import (
    WIDTHS,
    policy_activations,
    policy_packs,
    value_activations,
    value_packs,
)
from headrace.config.estimates.model_shape import model_shape
from headrace.config.preflight.explain import memory_facts
from headrace.config.sections.run import RunConfig
from headrace.host.hardware import GIB, MIB, Hardware, free_port
from headrace_cli.launch.plan import plan_processes
from learner.algorithms.registry import build_algorithm
from learner.device import RankContext
from learner.models import forward
from learner.models.forward import PolicyNetwork, ValueNetwork
from learner.models.loading import load_critic, load_policy
from learner.updates.update import Updater
from tests.learner.memory_worker import longest
from tests.learner.plain_engine import PlainEngine
from tests.learner.recorded import batch_of, run_config, save_tiny_model

CPU = torch.device("cpu")
MACHINE = Hardware((0, 1), 64 * GIB, 64 * GIB)
# One narrow head: at this length attention takes the time, and everything else the memory.
NARROW = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
WIDE = {"hidden_size": 128, "intermediate_size": 384, "head_dim": 32, "num_hidden_layers": 4}
MANY_WORDS = NARROW | {"vocab_size": 1024}


def recipe(folder: Path, shape: dict[str, Any], *, tokens: int, **learner: object) -> RunConfig:
    """A run whose longest trajectory has so many tokens, many more than a micro-batch may have."""
    model = save_tiny_model(folder / "model", **shape, max_position_embeddings=tokens)
    config = resolve(run_config(model, **learner), MACHINE).config
    response = tokens - config.task.max_prompt_length
    return config.model_copy(
        update={
            "task": config.task.model_copy(update={"max_response_length": response}),
            "schedule": config.schedule.model_copy(update={"window": response // 16}),
        }
    )


def allocated(action: Callable[[], object]) -> int:
    """The most bytes that tensors took during an action, beyond those that were there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        action()
    assert record.profiler is not None
    events = record.profiler.kineto_results.events()
    changes = [event.nbytes() for event in events if event.name() == "[memory]"]
    return int(np.cumsum(changes).max())


def updater_of(config: RunConfig) -> Updater:
    """A policy and a critic as the learner builds them, behind plain engines."""
    learner = config.learner
    dtype = torch.bfloat16 if learner.precision == "bfloat16" else torch.float32
    autocast = torch.bfloat16 if learner.precision == "bf16_autocast" else None
    policy = load_policy(config.model, dtype=dtype, device=CPU)
    critic = load_critic(config.model, dtype=dtype, device=CPU)
    if learner.gradient_checkpointing:
        for model in (policy, critic):
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
    chunk = learner.logits_chunk_tokens
    return Updater(
        build_algorithm(
            config.algorithm, window=config.window, max_length=config.task.max_response_length
        ),
        PlainEngine(PolicyNetwork(policy, logits_chunk=chunk, autocast=autocast)),
        PlainEngine(ValueNetwork(critic, autocast=autocast)),
        learner,
        RankContext(device=CPU, budget=learner.micro_batch_tokens),
    )


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("precision", WIDTHS)
@pytest.mark.parametrize(
    ("shape", "tokens"), [(NARROW, 1024), (NARROW, 4096), (WIDE, 1024), (MANY_WORDS, 1024)]
)
def test_the_formula_is_what_tensors_take(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shape: dict[str, Any],
    tokens: int,
    precision: str,
    checkpointing: bool,
) -> None:
    """Whatever the width, the length, the vocabulary and the precision, within a quarter."""
    for module in (activations, forward):
        monkeypatch.setattr(module, "CACHED_LOGITS", 1 << 16)  # a fifteenth of MANY_WORDS'
    config = recipe(
        tmp_path, shape, tokens=tokens, precision=precision, gradient_checkpointing=checkpointing
    )
    updater, whole = updater_of(config), longest(config)
    model = model_shape(Path(config.model.path))
    policy = policy_activations(config, model, policy_packs(config)[0], on_gpu=False)
    value = value_activations(config, model, value_packs(config)[0], on_gpu=False)
    for half, said in (
        (replace(whole, values=[]), policy),
        (replace(whole, windows=[]), value),
    ):
        sent = batch_of(half)
        taken = allocated(partial(updater.run, sent.batch, sent.shards[0]))
        assert taken == pytest.approx(said.total - said.heap, rel=0.25), said.text()


def resident(config: RunConfig, run_dir: Path) -> dict[str, int]:
    """Bytes of the policy update and of the value update, in a process as a run starts it."""
    run_dir.mkdir()
    (run_dir / "resolved.json").write_text(config.model_dump_json())
    specs = plan_processes(config, run_dir, MACHINE)
    environment = next(spec.env for spec in specs if spec.role == "learner")
    run = subprocess.run(
        [sys.executable, "-m", "tests.learner.memory_worker", str(run_dir), str(free_port())],
        env=os.environ | environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    peaks: dict[str, int] = json.loads(run.stdout.splitlines()[-1])
    return peaks


@pytest.mark.slow
@pytest.mark.parametrize(("checkpointing", "least"), [(True, 0.75), (False, 0.6)])
def test_a_trajectory_of_32k_tokens_takes_what_is_stated(
    tmp_path: Path, checkpointing: bool, least: float
) -> None:
    """In a whole learner, and seen from outside. Without checkpointing a C library that finds
    freed blocks again takes less than stated."""
    config = recipe(tmp_path, NARROW, tokens=32768, gradient_checkpointing=checkpointing)
    shape = model_shape(Path(config.model.path))
    stated = {fact.name: fact.value for fact in memory_facts(config, shape, MACHINE)}
    assert stated["longest trajectory"] == 32768
    for half, peak in resident(config, tmp_path / "run").items():
        said = stated[f"its {half} update"]
        assert isinstance(said, int)
        assert least * said <= peak / MIB <= 1.25 * said, half
