"""The arms of `headrace bench trl`: what each may be tuned to, and how one of its runs is made.

In: an arm, its settings, and the work of a run. Out: the run's figures, taken alike for all arms:
training seconds, completion tokens trained, processor seconds while the clock ran, evaluations.
Ours are runs of `recipes/algorithms/grpo.toml`; TRL's are processes of its own environment that
get the same model, prompts in the same order, reward, sampling and optimizer from that recipe.
"""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine_state import Interval, Watch
from benchmarks.runs import train
from benchmarks.trl_environment import trl_python
from benchmarks.trl_job import Job
from headrace.config.algorithm import ClippedLossConfig
from headrace.config.load import load_recipe
from headrace.config.run import RunConfig
from headrace.errors import RunFailedError
from headrace.hardware import free_port
from headrace.install import ROOT
from storage.queries import events
from tasks.rows import Row as TaskRow
from tasks.source import build_source

RECIPE = "recipes/algorithms/grpo.toml"
TRL, STREAMING, SYNCHRONOUS = "trl", "streaming", "synchronous"
LIMIT_S = 600.0
"""Most seconds of training in one run."""
WALL_S = 3600.0
"""A process of TRL that takes longer is ended."""
GRACE_S = 10.0
CACHE_BYTES = 2**29
"""For TRL's continuous batching: ample for an update of the recipe. It writes zeros over all of it
before each batch, so that its default, half the memory, would be slow."""
WARM_UP_PROMPTS = 128
"""Of the evaluation that goes before a run whose speed is measured: nobody starts cold."""
CLOCK_STOPS = ("evaluating", "closing")

Settings = Mapping[str, Any]
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of the comparison: where its tuning begins, and what it tries."""

    name: str
    base: Settings
    stages: tuple[tuple[Settings, ...], ...]
    """Changes that are tried one by one on top of the best settings of the stages before."""

    @property
    def budget(self) -> int:
        """Runs that tuning takes."""
        return 1 + sum(map(len, self.stages))


ARMS = (
    Arm(
        TRL,
        base={
            "processes": 1,
            "threads": 2,
            "wait_policy": None,
            "bf16": True,
            "continuous_batching": False,
            "micro_batch": 64,
        },
        stages=(
            (
                {"wait_policy": "passive"},
                {"threads": 1},
                {"processes": 2, "threads": 1, "micro_batch": 32},
            ),
            ({"bf16": False},),
            ({"continuous_batching": True},),
            ({"micro_batch": 32}, {"micro_batch": 16}),
        ),
    ),
    Arm(
        STREAMING,
        base={},
        stages=(
            ({"learner.precision": "float32"},),
            ({"generator.dtype": "bfloat16"},),
            ({"generator.stream_interval": 16},),
            ({"generator.max_num_seqs": 192}, {"schedule.max_in_play": 256}),
            ({"learner.micro_batch_tokens": 2048}, {"learner.micro_batch_tokens": 8192}),
        ),
    ),
    Arm(
        SYNCHRONOUS,
        base={},
        stages=(
            ({"learner.lockstep_threads": 1},),
            ({"learner.precision": "float32"},),
            ({"generator.dtype": "bfloat16"},),
            ({"generator.stream_interval": 16},),
            ({"generator.count": 2, "generator.max_num_seqs": 64},),
            ({"learner.micro_batch_tokens": 2048}, {"learner.micro_batch_tokens": 8192}),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Work:
    """What a run does, whatever its arm."""

    seed: int
    updates: int
    accuracy: float | None = None
    """None: the speed of all updates is measured, without evaluations. A number: how long it takes
    to this held-out accuracy, and the run ends there."""

    every_updates: int = 2
    """Updates between evaluations of a run to an accuracy."""

    def overrides(self) -> tuple[str, ...]:
        """The work in the words of a recipe."""
        common = (
            f"seed={self.seed}",
            f"stop.updates={self.updates}",
            f"stop.train_time_s={LIMIT_S}",
            "evaluation.before=true",
            "evaluation.after=false",
        )
        if self.accuracy is None:
            return (*common, f"evaluation.num_prompts={WARM_UP_PROMPTS}")
        return (
            *common,
            f"evaluation.every_updates={self.every_updates}",
            f"stop.accuracy={self.accuracy}",
        )


def tuned(arm: Arm, speed: Callable[[Settings], float | None]) -> tuple[Settings, Settings | None]:
    """The best settings of those measured, and those to be measured next (None: tuning is done).
    `speed`: tokens a second with some settings; None where they were not measured."""
    best, fastest = arm.base, speed(arm.base)
    if fastest is None:
        return best, best
    for stage in arm.stages:
        start = best
        for change in stage:
            settings = {**start, **change}
            found = speed(settings)
            if found is None:
                return best, settings
            if found > fastest:
                best, fastest = settings, found
    return best, None


def measure(arm: Arm, settings: Settings, work: Work, root: Path, name: str) -> Figures:
    """One run to its end; RunFailedError when it ends badly. `name` must be new in `root`."""
    root.mkdir(parents=True, exist_ok=True)
    with Watch() as processor:
        if arm.name == TRL:
            figures, clock = run_trl(settings, work, root / name)
        else:
            figures, clock = run_ours(arm.name, settings, work, root, name)
    usage = processor.usage(clock)
    return {
        **figures,
        "tokens_per_s": figures["tokens"] / figures["train_time_s"],
        "cpu_s": round(usage.own_s, 2),
        "cpu_ms_per_token": 1000 * usage.own_s / figures["tokens"],
        "others": round(usage.others, 3),
        "stolen": round(usage.stolen, 3),
    }


def intervals(phases: Sequence[tuple[float, str]]) -> list[Interval]:
    """When the clock of training ran, from `(at, phase)` in order."""
    found: list[Interval] = []
    since: float | None = None
    for at, phase in phases:
        if phase == "training" and since is None:
            since = at
        elif phase in CLOCK_STOPS and since is not None:
            found.append((since, at))
            since = None
    return found


def points(evaluations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a row keeps of evaluations."""
    kept = ("label", "update", "train_time_s", "num_prompts", "accuracy", "response_length")
    return [{name: one[name] for name in kept} for one in evaluations]


# -- ours ------------------------------------------------------------------------------------------


def our_overrides(mode: str, settings: Settings, work: Work) -> list[str]:
    """What is changed of the recipe."""
    changes = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    return [f"schedule.mode={mode}", *changes, *work.overrides()]


def run_ours(
    mode: str, settings: Settings, work: Work, root: Path, name: str
) -> tuple[Figures, list[Interval]]:
    """A run of the recipe: figures, and when its clock ran."""
    summary = train(str(ROOT / RECIPE), our_overrides(mode, settings, work), root=root, name=name)
    frame = events(Path(summary["folder"]), kind="phase").sort_values("at")
    phases = [
        (float(at), str(text).split(":")[0])
        for at, text in zip(frame["at"], frame["text"], strict=True)
    ]
    figures = {
        "updates": summary["updates"],
        "train_time_s": summary["train_time_s"],
        "tokens": summary["tokens"]["trained_policy"],
        "generated": summary["tokens"]["generated"],
        "reward": summary["reward"]["last"],
        "evaluations": points(summary["evaluations"]),
    }
    return figures, intervals(phases)


# -- TRL's -----------------------------------------------------------------------------------------


def job_of(config: RunConfig, settings: Settings, work: Work, folder: Path) -> Job:
    """The recipe's work in TRL's words; its files are in `folder`."""
    optimizer, schedule = config.learner.policy, config.schedule
    loss, kl = config.algorithm.policy_loss, config.algorithm.kl
    assert isinstance(loss, ClippedLossConfig)
    assert kl is not None
    return Job(
        model=str(Path(config.model.path).resolve()),
        train_rows=str(folder / "train.jsonl"),
        held_out_rows=str(folder / "held-out.jsonl"),
        output=str(folder / "output"),
        seed=work.seed,
        updates=work.updates,
        limit_s=LIMIT_S,
        evaluate_before=config.evaluation.before,
        every_updates=config.evaluation.every_updates,
        accuracy=work.accuracy,
        completions=schedule.batch_windows,
        num_generations=schedule.num_generations,
        max_length=config.task.max_response_length,
        temperature=config.generator.temperature,
        minibatches=optimizer.minibatches,
        epochs=optimizer.epochs,
        lr=optimizer.lr,
        warmup_steps=optimizer.warmup_steps,
        betas=optimizer.betas,
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        grad_clip=optimizer.grad_clip,
        kl_coef=kl.coef,
        clip_low=loss.clip_ratio_low,
        clip_high=loss.clip_ratio_high,
        marker=config.reward.answer_marker,
        correct_reward=config.reward.correct_reward,
        wrong_reward=config.reward.wrong_reward,
        processes=settings["processes"],
        bf16=settings["bf16"],
        continuous_batching=settings["continuous_batching"],
        cache_share=CACHE_BYTES / psutil.virtual_memory().total,
        micro_batch=settings["micro_batch"],
    )


def write_rows(path: Path, rows: Sequence[TaskRow]) -> None:
    """Prompts and answers as JSONL."""
    lines = (json.dumps({"prompt": row.prompt, "answer": row.answer}) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def trl_environment(settings: Settings) -> dict[str, str]:
    """Variables of TRL's processes."""
    threads = str(settings["threads"])
    environment = {
        **{name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"},
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        # The tree's benchmarks and its scorer, but no file beside them as a package `trl`.
        "PYTHONPATH": str(ROOT),
        "PYTHONSAFEPATH": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    if settings["wait_policy"]:
        environment["OMP_WAIT_POLICY"] = settings["wait_policy"]
    return environment


def trl_command(python: Path, settings: Settings, job: Path) -> list[str]:
    """What starts TRL's side."""
    start = [str(python), "-m"]
    if settings["processes"] > 1:
        start += [
            "torch.distributed.run", "--nproc-per-node", str(settings["processes"]),
            "--master-addr", "127.0.0.1", "--master-port", str(free_port()), "-m",
        ]  # fmt: skip
    return [*start, "benchmarks.trl_trainer", str(job)]


def run_trl(settings: Settings, work: Work, folder: Path) -> tuple[Figures, list[Interval]]:
    """A run of TRL: figures, and when its clock ran."""
    config = load_recipe(ROOT / RECIPE, work.overrides())
    job = job_of(config, settings, work, folder)
    folder.mkdir()
    source = build_source(config.task, work.seed)
    prompts = work.updates * job.completions // job.num_generations
    write_rows(Path(job.train_rows), [source.row_at(place) for place in range(prompts)])
    write_rows(Path(job.held_out_rows), source.eval_rows(config.evaluation.num_prompts))
    path = folder / "job.json"
    path.write_text(json.dumps(asdict(job)), encoding="utf-8")
    command = trl_command(trl_python(), settings, path)
    said = listen(command, trl_environment(settings), folder.with_suffix(".log"))
    (result,) = [message["result"] for message in said if "result" in message]
    evaluations = [message["evaluation"] for message in said if "evaluation" in message]
    phases = [(message["at"], message["phase"]) for message in said if "phase" in message]
    figures = {
        **{name: result[name] for name in ("updates", "train_time_s", "tokens", "reward")},
        "generated": result["tokens"],
        "evaluations": points(evaluations),
        "versions": result["versions"],
    }
    return figures, intervals(phases)


def listen(
    command: Sequence[str], environment: Mapping[str, str], log: Path, *, wall_s: float = WALL_S
) -> list[dict[str, Any]]:
    """What a process says in JSON lines until it ends. RunFailedError when it ends badly, says no
    `result`, or takes longer than `wall_s`."""
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
            start_new_session=True,
        ) as process,
    ):  # fmt: skip
        deadline = threading.Timer(wall_s, end, (process,))
        deadline.start()
        try:
            assert process.stdout is not None
            said = [json.loads(line) for line in process.stdout if line.startswith("{")]
            process.wait()
        finally:
            deadline.cancel()
            end(process)
    if process.returncode != 0 or not any("result" in message for message in said):
        tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise RunFailedError(f"{' '.join(command)} ended with {process.returncode}:\n{tail}")
    return said


def end(process: "subprocess.Popen[str]") -> None:
    """End a process that has not ended by itself, and those that it started."""
    if process.poll() is not None:
        return
    # A launcher of several processes ends them when it is asked to end, and only then.
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
