"""OpenMP threads of a learner that may use all cores, on a calm and on a busy machine.

In `synchronous` and `windowed` the learner works while the generator waits, so that it may use as
many threads as there are cores. Four settings are measured in turn, first on the machine as it is,
then beside a process that keeps one core busy:

- spinning   as many threads as cores; a thread that waits for another spins for some milliseconds
             first, which is what libgomp, torch's OpenMP, does when nothing is said
- short      as many threads as cores; a thread that waits spins for some tenths of a millisecond:
             what Headrace tells every process it starts
- passive    as many threads as cores; a thread that waits sleeps at once: what libgomp does with
             OMP_WAIT_POLICY=passive
- one        one thread

Parts: an update of the learner alone with the demonstration's model (`small`, 0.65 million
parameters) and with a random one (`large`, 25 million), and an update of a synchronous run of the
quickstart, generation included (`run`). `ratio` is a setting's seconds over those of `one` in the
same turn, median with least and largest: below 1 is faster. A default that cannot collapse has no
ratio far above 1 beside the busy process; one that loses nothing has none on the calm machine.
Rows are appended to `--rows`, where nobody else disturbed them. Takes some ten minutes on two calm
cores.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.command_line import command_line, take_rows
from benchmarks.learner import Learner, demo_shard
from benchmarks.made_runs import MODEL
from benchmarks.pairs import Figures, in_turns, measured, ratios, took
from benchmarks.rows import RESULTS, Rows, result_line
from benchmarks.runs import train
from headrace.hardware import detect
from headrace.processes.launch import SPINS

REFERENCE = "one"
SMALL_TRAJECTORIES, LARGE_TRAJECTORIES, WINDOW = 128, 12, 240
RUN_UPDATES = 6
RUN_LIMIT_S = 120.0
"""Where an update takes so long that this comes first, its seconds are of fewer updates."""

Seconds = dict[str, list[float]]
"""Setting to the seconds of its measurements, turn by turn."""
Sides = dict[str, Callable[[int], float]]


class Setting(NamedTuple):
    """Threads of the learner, and how often one that waits for another looks before it sleeps."""

    threads: int
    spins: int

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the process; the count of spins goes before OMP_WAIT_POLICY."""
        counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        return {**counts, "GOMP_SPINCOUNT": str(self.spins)}


def settings(cores: int) -> dict[str, Setting]:
    """The settings on a machine with so many cores."""
    # 300,000 is libgomp's own count where neither variable is set.
    spins = {"spinning": 300_000, "short": SPINS, "passive": 0}
    return {**{name: Setting(cores, n) for name, n in spins.items()}, REFERENCE: Setting(1, 0)}


@cache
def _learner(model: Path, threads: int) -> Learner:
    torch.set_num_threads(threads)
    return Learner(model=model)


def update_s(model: Path, trajectories: int, threads: int, seed: int) -> float:
    """Seconds of an update; its process makes the learner once."""
    ours = _learner(model, threads)
    part = demo_shard(trajectories=trajectories, window=WINDOW, seed=seed)
    return took(partial(ours.run, part)).wall_s


@contextmanager
def updates(model: Path, trajectories: int, setting: Setting) -> Iterator[Callable[[int], float]]:
    """A learner in a process of its own: seconds of an update on the batch of a seed. It has made
    one already, and uses no core between two."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:

        def seconds(seed: int) -> float:
            asked = (model, trajectories, setting.threads, seed)
            return round(process.submit(update_s, *asked).result(), 4)

        with patch.dict(os.environ, setting.environment):
            seconds(0)
        yield seconds


def run_s(name: str, setting: Setting, root: Path, seed: int) -> float:
    """Seconds an update of a synchronous run of the quickstart, generation included, start-up
    not."""
    summary = train(
        "recipes/quickstart.toml",
        [
            "schedule.mode=synchronous",
            f"learner.lockstep_threads={setting.threads}",
            "algorithm.value.warmup_updates=0",
            "evaluation.before=false",
            "evaluation.after=false",
            "evaluation.every_updates=null",
            f"stop.updates={RUN_UPDATES}",
            f"stop.train_time_s={RUN_LIMIT_S}",
            f"seed={seed}",
        ],
        root=root,
        name=f"{name}-{seed}-{time.monotonic_ns()}",
        environment={"GOMP_SPINCOUNT": str(setting.spins)},
    )
    return round(summary["train_time_s"] / max(1, summary["updates"]), 4)


@contextmanager
def company(count: int) -> Iterator[None]:
    """`count` processes that keep a core busy each."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def over_one(seconds: Seconds) -> dict[str, dict[str, float]]:
    """Each setting's seconds over the reference's in the same turn: median, least, largest."""
    found = {}
    for name, values in seconds.items():
        each = ratios(values, seconds[REFERENCE])
        figures = {"median": statistics.median(each), "min": min(each), "max": max(each)}
        found[name] = {key: round(value, 3) for key, value in figures.items()}
    return found


def large_model(folder: Path) -> Path:
    """A random Llama with 25 million parameters that reads the demonstration's tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=512,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def in_company(part: str, busy: int, sides: Sides, repeats: int) -> Figures:
    """The settings in turns beside busy processes."""
    with company(busy):
        seconds = in_turns(sides, repeats, warm_up=False)
    found = over_one(seconds)
    for name, ratio in found.items():
        print(
            f"{part:<6} busy {busy}  {name:<9} {statistics.median(seconds[name]):8.3f} s, ratio "
            f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})",
            flush=True,
        )
    return {"part": part, "busy": busy, "seconds": seconds, "ratio": found}


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    parser = command_line("threads", __doc__)
    parser.add_argument("--repeats", type=int, default=7, help="turns of the learner's update")
    parser.add_argument("--runs", type=int, default=3, help="turns of whole runs; 0: none")
    parser.add_argument(
        "--busy", type=int, nargs="+", default=[0, 1], help="busy processes beside it, each counted"
    )
    take_rows(parser, RESULTS / "threads.jsonl")
    options = parser.parse_args(argv)
    rows = Rows(options.rows)
    chosen = settings(len(detect().cores))
    ratio: dict[str, Any] = {}

    def measure(part: str, sides: Sides, repeats: int) -> None:
        for busy in options.busy if repeats else ():
            turns = partial(in_company, part, busy, sides, repeats)
            row = measured(f"threads/{part}/busy {busy}", turns, rows)
            ratio[f"{part}, busy {busy}"] = row["ratio"]

    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        folder, runs = Path(scratch), Path(scratch) / "runs"
        parts = (
            ("small", MODEL, SMALL_TRAJECTORIES),
            ("large", large_model(folder / "large"), LARGE_TRAJECTORIES),
        )
        for part, model, trajectories in parts if options.repeats else ():
            with ExitStack() as stack:
                sides = {
                    name: stack.enter_context(updates(model, trajectories, setting))
                    for name, setting in chosen.items()
                }
                measure(part, sides, options.repeats)
        sides = {name: partial(run_s, name, setting, runs) for name, setting in chosen.items()}
        measure("run", sides, options.runs)
    if options.json:
        print(result_line({"benchmark": "threads", "ratio": ratio}))
    return 0
