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
Rows are appended to `--rows`. Takes some ten minutes on two calm cores, up to an hour on busy ones.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command_line import command_line, take_rows
from benchmarks.learner_load import MODEL
from benchmarks.rows import RESULTS, Rows, result_line
from benchmarks.runs import train
from headrace.errors import RunFailedError
from headrace.hardware import detect
from headrace.processes.launch import SPINS

REFERENCE = "one"
SMALL_TRAJECTORIES, LARGE_TRAJECTORIES = 128, 12
RUN_UPDATES = 6
RUN_LIMIT_S = 120.0
"""Where an update takes so long that this comes first, its seconds are of fewer updates."""

Seconds = dict[str, list[float]]
"""Setting to the seconds of its measurements, turn by turn."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Threads of the learner, and how often one that waits for another looks before it sleeps."""

    threads: int
    spins: int

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the process; the count of spins goes before OMP_WAIT_POLICY."""
        threads = str(self.threads)
        return {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "GOMP_SPINCOUNT": str(self.spins),
        }


def settings(cores: int) -> dict[str, Setting]:
    """The settings on a machine with so many cores."""
    # 300,000 is libgomp's own count where neither variable is set.
    return {
        "spinning": Setting(cores, 300_000),
        "short": Setting(cores, SPINS),
        "passive": Setting(cores, 0),
        REFERENCE: Setting(1, 0),
    }


class Steps:
    """A learner in a process of its own that makes one update when it is asked."""

    def __init__(self, model: Path, trajectories: int, setting: Setting) -> None:
        arguments = (str(model), str(trajectories), str(setting.threads))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.learner_steps", *arguments],
            env={**os.environ, **setting.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __call__(self, seed: int) -> float:
        """Seconds of an update on the batch of this seed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{seed}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                return float(json.loads(line)["seconds"])
        raise RunFailedError(f"the learner's process ended with {self._process.wait()}")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Run:
    """Synchronous runs of the quickstart with a setting."""

    def __init__(self, name: str, setting: Setting, root: Path) -> None:
        self._name, self._setting, self._root, self._count = name, setting, root, 0

    def __call__(self, seed: int) -> float:
        """Seconds an update, generation included, start-up not."""
        self._count += 1
        summary = train(
            "recipes/quickstart.toml",
            [
                "schedule.mode=synchronous",
                f"learner.lockstep_threads={self._setting.threads}",
                "algorithm.value.warmup_updates=0",
                "evaluation.before=false",
                "evaluation.after=false",
                "evaluation.every_updates=null",
                f"stop.updates={RUN_UPDATES}",
                f"stop.train_time_s={RUN_LIMIT_S}",
                f"seed={seed}",
            ],
            root=self._root,
            name=f"{self._name}-{self._count}",
            environment={"GOMP_SPINCOUNT": str(self._setting.spins)},
        )
        return float(summary["train_time_s"] / max(1, summary["updates"]))


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


def in_turn(measure: dict[str, Callable[[int], float]], repeats: int) -> Seconds:
    """Each measurement `repeats` times; who is first changes from turn to turn."""
    names = list(measure)
    seconds: Seconds = {name: [] for name in names}
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(round(measure[name](repeat + 1), 4))
    return seconds


def ratios(seconds: Seconds) -> dict[str, dict[str, float]]:
    """Each setting's seconds over the reference's in the same turn: median, least, largest."""
    found = {}
    for name, values in seconds.items():
        each = [ours / one for ours, one in zip(values, seconds[REFERENCE], strict=True)]
        figures = {"median": statistics.median(each), "min": min(each), "max": max(each)}
        found[name] = {key: round(value, 3) for key, value in figures.items()}
    return found


def large_model(folder: Path) -> Path:
    """A random Llama with 25 million parameters that reads the demonstration's tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

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
    rows, began = Rows(options.rows), round(time.time())
    # How busy the machine was without us; the `load` of a row has our own processes in it.
    load_before = round(os.getloadavg()[0], 2)
    found: dict[str, Any] = {}

    def measured(part: str, measure: dict[str, Callable[[int], float]], repeats: int) -> None:
        for busy in options.busy if repeats else ():
            with company(busy):
                seconds = in_turn(measure, repeats)
            row = {
                "part": part,
                "busy": busy,
                "load_before": load_before,
                "seconds": seconds,
                "ratio": ratios(seconds),
            }
            rows.add(f"threads/{part}/busy {busy}/{began}", row)
            found[f"{part}, busy {busy}"] = row["ratio"]
            show(part, busy, seconds)

    chosen = settings(len(detect().cores))
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        folder = Path(scratch)
        parts = (
            ("small", MODEL, SMALL_TRAJECTORIES),
            ("large", large_model(folder / "large"), LARGE_TRAJECTORIES),
        )
        for part, model, trajectories in parts:
            with ExitStack() as stack:
                measure = {name: Steps(model, trajectories, s) for name, s in chosen.items()}
                for steps in measure.values():
                    stack.callback(steps.close)
                    steps(0)
                measured(part, dict(measure), options.repeats)
        measured("run", {name: Run(name, s, folder) for name, s in chosen.items()}, options.runs)
    if options.json:
        print(result_line({"name": "threads", "load_before": load_before, "ratio": found}))
    return 0


def show(part: str, busy: int, seconds: Seconds) -> None:
    """The figures of a part on the terminal."""
    for name, ratio in ratios(seconds).items():
        print(
            f"{part:<6} busy {busy}  {name:<9} {statistics.median(seconds[name]):8.3f} s, ratio "
            f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
