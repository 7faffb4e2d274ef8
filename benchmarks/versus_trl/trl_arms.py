"""Runs of `headrace bench trl`, of TRL's arm and of ours.

In: an arm (`benchmarks/studies/trl.toml`) and a seed. Out: a row of the shape that all studies
have. Ours are runs of the recipe; TRL's are processes of its own environment that get the same
model, prompts in the same order, reward, sampling and optimizer from that recipe
(`benchmarks.versus_trl.trl_job`). The project does not depend on TRL, and TRL's environment, built
from `requirements/trl.lock` below `.cache`, does not have the project's packages.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.kit.arm_run import evaluation_fields, run_arm, run_row
from benchmarks.kit.arms import Arm, Row
from benchmarks.kit.machine_state import MachineWatch
from benchmarks.kit.study_file import Point
from benchmarks.versus_trl.trl_job import TrlJob
from headrace.config.loading.recipe import load_recipe
from headrace.config.sections.algorithm import ClippedLossConfig
from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError, UserError
from headrace.host.hardware import free_port
from headrace.host.install import ROOT
from headrace.host.process_reaper import die_with
from tasks.datasets.source import build_source
from tasks.rows import TaskRow

WALL_S = 3600.0
"""Maximum seconds of a process of TRL."""
GRACE_S = 10.0
CACHE_BYTES = 2**29
"""Cache of TRL's continuous batching, ample for an update of the recipe.

It writes zeros over all of it before each batch, so that its default, half the memory, is slow."""
CONTINUOUS_BATCH_TOKENS = 1024
"""Tokens per forward pass of continuous batching: completions and some prompts.

Its default on a CPU leaves no memory for keys and values."""
TRL = "trl"
LOCK = ROOT / "requirements" / "trl.lock"


def trl_python(root: Path = ROOT) -> Path:
    """Set TRL's own environment up by its lock, if need be; return its Python.

    UserError when it cannot. Of several concurrent callers, one builds and the others wait."""
    done = subprocess.run([sys.executable, str(root / "scripts" / "setup.py"), "trl"])
    if done.returncode != 0:
        raise UserError("TRL's environment could not be built, as said above")
    return root / ".cache" / "trl" / "bin" / "python"


@dataclass(frozen=True, slots=True)
class TrlArm(Arm):
    """TRL's arm: its work is that of recipe and overrides, its settings are `point`."""

    point: Point = field(default_factory=dict)

    def digest(self) -> str:
        """Return a digest of the work, the point, and the pins of TRL's environment."""
        facts = (Arm.digest(self), json.dumps(dict(self.point), sort_keys=True))
        text = "\n".join((*facts, LOCK.read_text(encoding="utf-8")))
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def run(arm: Arm, seed: int, root: Path, *, remove: bool = True) -> Row:
    """Run an arm to its end, in `root`; return its row. RunFailedError if it fails."""
    if isinstance(arm, TrlArm):
        return run_trl(arm, seed, root, remove=remove)
    return run_arm(arm, seed, root, remove=remove)


def run_trl(arm: TrlArm, seed: int, root: Path, *, remove: bool = True) -> Row:
    config = load_recipe(ROOT / arm.recipe, [f"seed={seed}", *arm.overrides])
    folder = Path(tempfile.mkdtemp(prefix=f"trl-{seed}-", dir=root))
    job = job_of(config, arm.point, folder)
    source = build_source(config.task, seed)
    prompts = job.updates * config.schedule.batch_windows // config.schedule.num_generations
    write_rows(Path(job.train_rows), [source.row_at(place) for place in range(prompts)])
    write_rows(Path(job.held_out_rows), source.eval_rows(config.evaluation.num_prompts))
    path = folder / "job.json"
    path.write_text(json.dumps(asdict(job)), encoding="utf-8")
    command = trl_command(trl_python(), job, path)
    with MachineWatch() as watch:
        output = listen(command, trl_environment_of(arm.point), folder / "log")
    state, result = watch.state({output.pid: TRL}), output.result
    summary = {"evaluations": output.evaluations, "watch": watch, "machine_state": state}
    found = {
        "point": dict(arm.point),
        "versions": result["versions"],
        "updates": result["updates"],
        "train_time_s": round(result["train_time_s"], 2),
        "tokens": {name: result["tokens"] for name in ("trained_policy", "generated")},
        **evaluation_fields(output.evaluations),
    }
    if remove:
        shutil.rmtree(folder)
    return run_row(arm, seed, summary, found)


def job_of(config: RunConfig, point: Point, folder: Path) -> TrlJob:
    """Translate a configuration into a job of TRL, with files in `folder`."""
    evaluation, reward, stop = config.evaluation, config.reward, config.stop
    assert stop.updates is not None
    assert stop.train_time_s is not None
    return TrlJob(
        model=str(Path(config.model.path).resolve()),
        train_rows=str(folder / "train.jsonl"),
        held_out_rows=str(folder / "held-out.jsonl"),
        arguments=trainer_arguments(config, point, folder),
        updates=stop.updates,
        steps_an_update=config.learner.policy.minibatches * config.learner.policy.epochs,
        limit_s=stop.train_time_s,
        accuracy=stop.accuracy,
        evaluate_before=evaluation.before,
        evaluate_after=evaluation.after,
        every_updates=evaluation.every_updates,
        marker=reward.answer_marker,
        correct_reward=reward.correct_reward,
        wrong_reward=reward.wrong_reward,
        processes=int(point["processes"]),
    )


def trainer_arguments(config: RunConfig, point: Point, folder: Path) -> dict[str, Any]:
    """Return TRL 1.16's `GRPOConfig` arguments. ValueError: the batch has no split."""
    optimizer, schedule, stop = config.learner.policy, config.schedule, config.stop
    loss, kl = config.algorithm.policy_loss, config.algorithm.kl
    assert isinstance(loss, ClippedLossConfig)
    assert kl is not None
    assert stop.updates is not None
    at_once, continuous = int(point["at_once"]), bool(point["continuous_batching"])
    completions = schedule.batch_windows
    accumulated, left = divmod(completions, optimizer.minibatches * at_once)
    if left:
        raise ValueError(
            f"{completions} completions are not {optimizer.minibatches} steps of a number of "
            f"micro-batches of {at_once}"
        )
    return {
        "output_dir": str(folder / "output"),
        "seed": config.seed,
        "use_cpu": True,
        # The work of an update.
        "max_steps": stop.updates * optimizer.minibatches * optimizer.epochs,
        "per_device_train_batch_size": at_once // int(point["processes"]),
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": accumulated * optimizer.minibatches,
        "num_iterations": optimizer.epochs,
        "num_generations": schedule.num_generations,
        "shuffle_dataset": False,
        # Sampling.
        "max_completion_length": config.task.max_response_length,
        "temperature": config.generator.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "use_transformers_continuous_batching": continuous,
        "transformers_continuous_batching_config": {
            "max_memory_percent": CACHE_BYTES / psutil.virtual_memory().total,
            "max_batch_tokens": CONTINUOUS_BATCH_TOKENS,
        },
        # The loss: GRPO as published, with the gradient of the divergence corrected.
        "loss_type": "grpo",
        "scale_rewards": "group",
        "beta": kl.coef,
        "use_bias_correction_kl": True,
        "epsilon": loss.clip_ratio_low,
        "epsilon_high": loss.clip_ratio_high,
        # The optimizer.
        "learning_rate": optimizer.lr,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": optimizer.warmup_steps,
        "adam_beta1": optimizer.betas[0],
        "adam_beta2": optimizer.betas[1],
        "adam_epsilon": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.grad_clip,
        # Speed: nothing is recomputed, logged or saved, and every weight is known to be used.
        # Before it samples in continuous batches, TRL casts the very weights that it trains, and
        # they stay so: under bfloat16 most of Adam's steps would be rounded away.
        "bf16": bool(point["bf16"]) and not continuous,
        "gradient_checkpointing": False,
        "ddp_find_unused_parameters": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def write_rows(path: Path, rows: Sequence[TaskRow]) -> None:
    lines = (json.dumps({"prompt": row.prompt, "answer": row.answer}) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def trl_environment_of(point: Point) -> dict[str, str]:
    """Return the environment variables of TRL's processes."""
    threads = str(max(1, int(point["threads"]) // int(point["processes"])))
    return {
        **{name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"},
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "GOMP_SPINCOUNT": str(point["spins"]),
        # The tree's benchmarks and its scorer, but no file beside them as a package `trl`.
        "PYTHONPATH": str(ROOT),
        "PYTHONSAFEPATH": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def trl_command(python: Path, job: TrlJob, path: Path) -> list[str]:
    """Return the command that starts TRL on the job, whose file is `path`."""
    start = [str(python), "-m"]
    if job.processes > 1:
        start += [
            "torch.distributed.run", "--nproc-per-node", str(job.processes),
            "--master-addr", "127.0.0.1", "--master-port", str(free_port()), "-m",
        ]  # fmt: skip
    return [*start, "benchmarks.versus_trl.trl_trainer", str(path)]


class TrlOutput(NamedTuple):
    """Output of TRL's process, and its pid."""

    pid: int
    evaluations: list[dict[str, Any]]
    result: dict[str, Any]


def listen(
    command: Sequence[str], environment: Mapping[str, str], log: Path, *, wall_s: float = WALL_S
) -> TrlOutput:
    """Collect a process's JSON lines until it ends.

    RunFailedError when it fails, prints no `result`, or takes longer than `wall_s`."""
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
            preexec_fn=partial(die_with, os.getpid(), signal.SIGTERM),
        ) as process,
    ):  # fmt: skip
        output = ""
        try:
            output, _ = process.communicate(timeout=wall_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end(process)
    messages = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    results = [message["result"] for message in messages if "result" in message]
    if process.returncode != 0 or not results:
        tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise RunFailedError(f"{' '.join(command)} ended with {process.returncode}:\n{tail}")
    evaluations = [message["evaluation"] for message in messages if "evaluation" in message]
    return TrlOutput(process.pid, evaluations, results[-1])


def end(process: "subprocess.Popen[str]") -> None:
    """End a process that has not ended by itself, and those that it started."""
    if process.poll() is not None:
        return
    # A launcher of several processes ends them when it is asked to end, and only then.
    own = psutil.Process(process.pid)
    tree = [own, *own.children(recursive=True)]
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        for one in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
