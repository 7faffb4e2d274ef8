"""`headrace config explain --measure`: a recipe's speed on this machine, and its limits.

In: a recipe. Out: facts: speeds of generators and learner, what the learner computes for each loss
token, seconds of an update, who is waited for, which key would change that most, and the memory
that each role took. Three updates of the recipe itself are run, without warm-up, with a batch that
such a machine should train in a minute; the run's folder is removed. The forecast takes seconds as
proportional to tokens computed, a backward pass as two forward ones, answers as long as those that
were seen, and the prompt of a group as computed once.
"""

import argparse
import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import psutil
from numpy.typing import NDArray
from rich.console import Console

from headrace.config.device_defaults import resolve
from headrace.config.estimates.memory import MemoryEstimate, host_memory
from headrace.config.estimates.model_shape import ModelShape
from headrace.config.preflight.checks import problems
from headrace.config.preflight.explain import Fact
from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError, UserError
from headrace.host.hardware import GIB, Hardware
from headrace.host.install import require
from headrace.run_files import run_folder
from headrace_cli.commands.checks.preflight import check_start
from headrace_cli.commands.run.train import prepare_run, report, supervise
from headrace_cli.launch.keys import with_keys
from headrace_cli.launch.plan import plan_processes
from headrace_cli.launch.supervisor import DONE

UPDATES, MAX_TRAIN_S = 3, 180
"""Number of updates, of which the first is not measured (it also makes what later ones use again)
if another was done, and the seconds of training after which none begins."""
TARGET_BATCH_S = 60.0
CORE_FLOPS = {True: 225e9, False: 75e9}
"""Operations a second of a core, with bfloat16 products or not, to size the measured batch."""
COMPARED_UPDATES = 10
"""First updates of the policy that a forecast is compared with."""
FIGURES = (
    "timing_s/update", "timing_s/forward", "timing_s/policy", "timing_s/value", "timing_s/publish",
    "perf/loss_tokens", "perf/policy_tokens", "perf/value_tokens", "ledger/generated",
    "ledger/trained_policy", "ledger/ready", "ledger/dropped/filtered", "idle/generator",
)  # fmt: skip
RUN_OVERRIDES = (
    "name=measure", f"stop.updates={UPDATES}", f"stop.train_time_s={MAX_TRAIN_S}",
    "stop.tokens=null", "stop.accuracy=null", "stop.after_warmup=false", "evaluation.before=false",
    "evaluation.after=false", "evaluation.every_updates=null", "evaluation.mode=exact",
    "evaluation.spacing=0", "evaluation.spacing_from_s=0", "dashboard.enabled=false",
    "storage.database=null", "checkpoint.every_updates=null",
)  # fmt: skip
NO_WARM_UP = (
    "algorithm.value.warmup_updates=0", "algorithm.value.warmup_explained_variance=null",
    "algorithm.value.warmup_prompts=null",
)  # fmt: skip
LOOK_EVERY_S = 0.5
FORECAST_FACT = "seconds per update"
_WINDOWS = """select w.start, w."end", w.final::int, len(t.prompt_ids), w."update"
from windows w join trajectories t using (trajectory_id)
where w.state = 'trained' and w."update" >= least(2, (select max("update") from windows))"""
"""Windows of the updates that are measured."""
_ANSWERS = """select len(prompt_ids), length from trajectories
where purpose = 'train' and length > 0"""
Ints = NDArray[np.int64]


class LearnerCost(NamedTuple):
    """Computed tokens per loss token: `prompt` and `prefix` that the policy reads again, `judged`
    ones of unfinished windows whose value is asked for, `taught` ones that the value model
    learns from, which takes as long as `passes` forward ones."""

    prompt: float
    prefix: float
    judged: float
    taught: float = 0.0
    passes: float = 3.0

    @property
    def policy(self) -> float:
        """Return the policy's computed tokens, the loss token itself included."""
        return 1.0 + self.prompt + self.prefix

    @property
    def value(self) -> float:
        """Forward passes of the value model."""
        return self.judged + self.passes * self.taught


@dataclass(frozen=True)
class AnswerWindows:
    """N windows, [N] each: start and end in the answer, whether it ends there, prompt tokens."""

    start: Ints
    end: Ints
    final: NDArray[np.bool_]
    prompt: Ints

    @classmethod
    def of(cls, prompts: Ints, lengths: Ints, window: int) -> "AnswerWindows":
        """All windows of answers of these lengths, [M], to prompts of these, [M]."""
        counts = -(-lengths // window)
        ends, whole = np.cumsum(counts), np.repeat(lengths, counts)
        start = (np.arange(ends[-1]) - np.repeat(ends - counts, counts)) * window
        end = np.minimum(start + window, whole)
        return cls(start, end, end == whole, np.repeat(prompts, counts))

    @property
    def tokens(self) -> int:
        """Return the number of tokens in all of them."""
        return int((self.end - self.start).sum())

    def cost(self, config: RunConfig) -> LearnerCost:
        """Return the cost of computing them, without what the value model learns from."""
        carried = config.learner.context == "carried"
        prompt = self.prompt / _sharing(config)
        prompt = np.where(self.start > 0, 0, prompt) if carried else prompt
        prefix = self.start * (not carried)
        judged = (prompt + prefix + self.end - self.start)[~self.final]
        cost = LearnerCost(*(float(part.sum() / self.tokens) for part in (prompt, prefix, judged)))
        return cost._replace(passes=1.0) if config.algorithm.fits_value else cost


def _sharing(config: RunConfig) -> int:
    """Return how many answers share the computation of their prompt."""
    return config.schedule.num_generations if config.learner.share_prompts else 1


@dataclass(frozen=True)
class Measurement:
    """Means of the measured updates: the learner's seconds with the policy, the value model and
    what does not grow with the batch, its tokens (masked ones of its windows are taken for loss
    tokens) and cost; tokens that generators sample in a busy second; tokens of the prompts and
    answers seen, [M] each; the share of tokens that are not dropped with their group."""

    policy_s: float
    value_s: float
    fixed_s: float
    loss_tokens: float
    policy_tokens: float
    value_tokens: float
    cost: LearnerCost
    sampled_per_s: float
    prompts: Ints
    lengths: Ints
    kept: float = 1.0


@dataclass(frozen=True)
class UpdateForecast:
    """An update in the long run: its loss tokens and cost, the learner's seconds, those in which
    generators sample as many tokens, and whether the two work in turns."""

    tokens: float
    cost: LearnerCost
    learner_s: float
    generator_s: float
    in_turns: bool

    @property
    def seconds(self) -> float:
        """From one update to the next."""
        both = (self.learner_s, self.generator_s)
        return sum(both) if self.in_turns else max(both)

    @property
    def speed(self) -> float:
        """Tokens trained a second."""
        return self.tokens / self.seconds


def forecast(config: RunConfig, measured: Measurement) -> UpdateForecast:
    """Updates of a recipe, of which some took what was seen."""
    schedule, whole = config.schedule, config.schedule.unit != "window"
    window = config.task.max_response_length if whole else config.window
    windows = AnswerWindows.of(measured.prompts, measured.lengths, window)
    cost, value_s = windows.cost(config), 0.0
    if config.algorithm.value is None:
        cost = cost._replace(judged=0.0)
    else:
        read = measured.prompts.sum() / _sharing(config) + measured.lengths.sum()
        epochs = 1 if config.algorithm.fits_value else config.learner.value.epochs
        cost = cost._replace(taught=epochs * float(read / windows.tokens))
        value_s = (
            measured.value_s * cost.value / measured.cost.value if measured.cost.value else 0.0
        )
    policy_s = measured.policy_s * cost.policy / measured.cost.policy
    tokens = schedule.batch_windows * windows.tokens / len(windows.end)
    return UpdateForecast(
        tokens=tokens,
        cost=cost,
        learner_s=(policy_s + value_s) * tokens / measured.loss_tokens + measured.fixed_s,
        generator_s=tokens / measured.sampled_per_s / measured.kept,
        in_turns=schedule.mode != "streaming",
    )


def gains(config: RunConfig, measured: Measurement) -> Iterator[tuple[float, str, str]]:
    """Tokens trained a second over those now, with what key set otherwise, and a remark."""
    now = forecast(config, measured)
    for section, name, value in (
        ("schedule", "window", 2 * config.window),
        ("schedule", "batch_windows", 2 * config.schedule.batch_windows),
        ("learner", "context", "carried"),
    ):
        changed = getattr(config, section).model_copy(update={name: value})
        other = config.model_copy(update={section: changed})
        if not problems(other):
            gain = forecast(other, measured).speed / now.speed
            yield gain, f"{section}.{name}={value}", "it changes what is learned, too"
    for key, number, part in (
        ("learner.ranks", config.learner.ranks, "learner_s"),
        ("generator.count", config.generator.count, "generator_s"),
    ):
        faster = replace(now, **{part: getattr(now, part) / 2})
        remark = "at best, on as many more cores or GPUs"
        yield faster.speed / now.speed, f"{key}={2 * number}", remark


def measured_facts(config: RunConfig, measured: Measurement) -> list[Fact]:
    """Return the measured figures, and what they mean for the recipe."""
    now, rate = forecast(config, measured), measured.loss_tokens
    learner_s = measured.policy_s + measured.value_s + measured.fixed_s
    passes = measured.policy_tokens / rate / measured.cost.policy
    parts = [
        ("prompt", passes * now.cost.prompt, passes * measured.cost.prompt),
        ("prefix", passes * now.cost.prefix, passes * measured.cost.prefix),
        ("window", passes, passes),
        ("value model", now.cost.judged + now.cost.taught, measured.value_tokens / rate),
    ]
    slower = "learner" if now.learner_s > now.generator_s else "generators"
    ways = sorted(gains(config, measured), reverse=True)
    equal = 1 - measured.kept
    dropped = f", where {equal:.2f} is dropped in groups of equal scores" if equal else ""
    return [
        Fact("generators", round(measured.sampled_per_s, 1), "tokens/s", "while they have work"),
        Fact("learner", round(rate / learner_s, 1), "loss tokens/s",
             f"while it has work: {learner_s:.2f} s for {rate:,.0f} loss tokens"),
        *(
            Fact(f"computed, {part}", round(later, 2), "tokens per loss token",
                 f"expected in the long run; {first:.2f} in the measured updates")
            for part, later, first in parts
        ),
        Fact("learner's update", round(now.learner_s, 2), "s", f"{now.tokens:,.0f} loss tokens"),
        Fact("generators' batch", round(now.generator_s, 2), "s", f"to sample as many{dropped}"),
        Fact(FORECAST_FACT, round(now.seconds, 2), "s", f"{now.speed:,.1f} tokens a second"),
        Fact("binds", slower, "", "takes longer for an update than the other"),
        Fact("changes most", ways[0][1], "", "in tokens trained a second, of these:"),
        *(Fact(key, round(gain, 2), "times", remark) for gain, key, remark in ways),
    ]  # fmt: skip


def run_overrides(config: RunConfig, shape: ModelShape, hardware: Hardware) -> list[str]:
    """The overrides that make of a recipe the run that is measured."""
    schedule, learner, value = config.schedule, config.learner, config.algorithm.value
    context = (config.task.max_prompt_length + config.task.max_response_length) // 2
    tokens = schedule.batch_windows * (config.window + context) * (1 + (value is not None))
    cores = learner.threads if schedule.mode == "streaming" else hardware.core_count
    flops = cores * CORE_FLOPS[hardware.bfloat16 and learner.precision != "float32"]
    seconds = 0.0 if hardware.gpus else 6 * shape.parameters * tokens / flops
    groups = max(1, schedule.batch_windows // schedule.num_generations)
    parts = [part for part in range(1, groups + 1) if groups % part == 0]
    share = next((part for part in parts if seconds / part <= TARGET_BATCH_S), parts[-1])
    return [
        *RUN_OVERRIDES, *(NO_WARM_UP if value is not None else ()),
        f"schedule.batch_windows={schedule.batch_windows // share}",
        # As many trajectories side by side as with the whole batch.
        f"schedule.max_staleness={(schedule.max_staleness + 1) * share - 1}",
    ]  # fmt: skip


def measure(
    arguments: argparse.Namespace, config: RunConfig, shape: ModelShape, hardware: Hardware
) -> tuple[list[Fact], int]:
    """The facts, and an exit code; the folder of a run that failed stays."""
    require("train")
    root, other = Path(config.root), arguments.against
    took_s = None if other is None else seconds_per_update(run_folder.find_run(root, other))
    overrides = [*arguments.overrides, *run_overrides(config, shape, hardware)]
    changed = {"overrides": overrides, "root": root / ".measured"}
    run_dir, own = prepare_run(
        argparse.Namespace(**vars(arguments) | changed),
        lambda config: check_start(config, hardware),
    )
    console = Console(file=sys.stderr)
    with run_folder.locked(run_dir):
        own = with_keys(run_dir, own)
        specs = plan_processes(own, run_dir, hardware)
        modules = {s.argv[s.argv.index("-m") + 1]: s.role for s in specs if "-m" in s.argv}
        with MemoryWatch(modules) as watch:
            outcome, _ = supervise(run_dir, own, specs, console)
    if outcome.code != DONE:
        return [], report(outcome, run_dir)
    found = measured_facts(config, read_measured(run_dir, own))
    resolved, on_gpu = resolve(own, hardware, shape).config, bool(hardware.gpus)
    found += memory_peaks(watch.peaks, host_memory(resolved, shape, on_gpu=on_gpu))
    run_folder.discard_run_folder(run_dir)
    with contextlib.suppress(OSError):  # another one is measured
        run_dir.parent.rmdir()
    if took_s is not None:
        forecast_s = next(float(fact.value) for fact in found if fact.name == FORECAST_FACT)
        meaning = f"the forecast over the {took_s:.2f} s of the first updates of {other}"
        found.append(Fact("forecast over run", round(forecast_s / took_s, 3), "", meaning))
    return found, DONE


class MemoryWatch(threading.Thread):
    """Peaks of the bytes that the processes below this one take, by role, every half second.

    Shared pages are divided among their processes where the system says so (Linux). Processes with
    one of `modules` in their command line have its role, and all others their parent's."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        super().__init__(daemon=True)
        self.peaks: Counter[str] = Counter()
        self._modules, self._ended = modules, threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            self.peaks |= self._look()

    def _look(self) -> Counter[str]:
        own, roles, found = psutil.Process(), dict[int, str](), Counter[str]()
        for process in (own, *own.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                named = (self._modules.get(word) for word in process.cmdline())
                role = next(filter(None, named), roles.get(process.ppid(), "coordinator"))
                roles[process.pid] = role
                memory = process.memory_full_info()
                found[role] += getattr(memory, "pss", memory.rss)
        return found


def memory_peaks(peaks: Mapping[str, int], estimate: MemoryEstimate) -> list[Fact]:
    """Return what each role's processes took at most, beside the estimate."""
    return [
        Fact(f"memory, {role}", round(size / GIB, 2), "GiB",
             f"at most, in the measured updates; {estimate.of_role(role) / GIB:.2f} estimated "
             "for full batches of the longest answers")
        for role, size in sorted(peaks.items())
    ]  # fmt: skip


def read_measured(run_dir: Path, config: RunConfig) -> Measurement:
    """Return a run's measurement; RunFailedError where it has no update of the policy."""
    from storage.queries import ask, metric_series

    rows = metric_series(run_dir, FIGURES, "train_time")
    table = rows.pivot(index="x", columns="name", values="value").reindex(columns=FIGURES)
    had = table[table["perf/loss_tokens"] > 0]
    if had.empty:
        raise RunFailedError(
            f"no update of the policy was done in {MAX_TRAIN_S} s of training: measure with a "
            "smaller schedule.batch_windows or task.max_response_length"
        )
    with ask(run_dir, _WINDOWS) as answer:
        start, end, final, prompt, update = np.array(list(answer.rows)).T
    updates = len(np.unique(update))
    mean, last = had.tail(updates).fillna(0).mean(), table.iloc[-1]
    policy_s = mean["timing_s/forward"] + mean["timing_s/policy"]
    rest_s = mean["timing_s/update"] - policy_s - mean["timing_s/value"]
    with ask(run_dir, _ANSWERS) as answer:
        prompts, lengths = np.array(list(answer.rows)).T
    windows = AnswerWindows(start, end, final.astype(bool), prompt)
    cost, tokens = windows.cost(config), windows.tokens / updates
    taught = mean["perf/value_tokens"] / tokens - cost.judged
    last = last.fillna(0)
    passed = last["ledger/trained_policy"] + last["ledger/ready"]
    busy_s = table.index[-1] * max(0.01, 1.0 - last["idle/generator"])
    return Measurement(
        policy_s=policy_s,
        value_s=mean["timing_s/value"],
        fixed_s=rest_s + mean["timing_s/publish"],
        loss_tokens=tokens,
        policy_tokens=mean["perf/policy_tokens"],
        value_tokens=mean["perf/value_tokens"],
        cost=cost._replace(taught=max(0.0, taught)),
        sampled_per_s=last["ledger/generated"] / busy_s,
        prompts=prompts,
        lengths=lengths,
        kept=passed / (passed + last["ledger/dropped/filtered"]),
    )


def seconds_per_update(run_dir: Path) -> float:
    """Return the mean seconds of a run's first policy updates; UserError where it has none."""
    from storage.queries import metric_series

    rows = metric_series(run_dir, ["perf/loss_tokens"], "train_time")
    ends = [0.0, *rows["x"]]
    policy = [i for i, tokens in enumerate(rows["value"], 1) if tokens > 0][:COMPARED_UPDATES]
    if not policy:
        raise UserError(f"{run_dir.name} has no update of the policy to compare with")
    return float(ends[policy[-1]] - ends[policy[0] - 1]) / len(policy)
