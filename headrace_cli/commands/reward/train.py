"""`headrace reward train`: from a recipe or an earlier run to a trained reward model.

In: parsed arguments. Out: an exit code, a run folder with a model, a report and its figures on the
terminal, which shows a bar meanwhile; elsewhere there is a line every few seconds. Ctrl-C is heard
between two steps: the last checkpoint is kept, and `--resume` goes on.
"""

import argparse
import json
import signal
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headrace.config.loading.hub import with_local_model
from headrace.config.loading.recipe import load_reward_model
from headrace.config.sections.reward_model import RewardModelConfig, RunDataConfig, SftConfig
from headrace.errors import UserError
from headrace.host.install import require
from headrace.run_files import run_folder
from headrace.run_files.reward_model_run import REPORT_PAGE, EvaluationLine, StepLine, read_status
from headrace.run_files.run_folder import LATEST
from headrace_cli.commands.run.train import root_option
from headrace_cli.launch.display.progress import PLAIN_EVERY_S, print_line
from headrace_cli.launch.display.units import duration
from headrace_cli.launch.supervisor import INTERRUPTED, signal_handler, stop_signals

COMMANDS = {"sft": "sft", "ranker": "rank train"}
"""The commands of objectives that `reward train` is not the first for."""


class RewardScreen:
    """Shows a training; `live`: as a bar that is redrawn."""

    def __init__(self, console: Console, *, live: bool) -> None:
        self._console = console
        columns = (
            BarColumn(bar_width=40), MofNCompleteColumn(), TextColumn("{task.description}"),
            TimeRemainingColumn(),
        )  # fmt: skip
        self._bar = Progress(*columns, console=console) if live else None
        self._task = None if self._bar is None else self._bar.add_task("training", total=None)
        self._printed_at = self._began_at = float("-inf")
        self._first_step = 0
        self._held_out = ""
        if self._bar is not None:
            self._bar.start()

    def note(self, text: str) -> None:
        print_line(self._console, text)

    def step(self, line: StepLine, steps: int) -> None:
        """Show a step, one of `steps`."""
        now = time.monotonic()
        if self._began_at < 0:
            self._began_at, self._first_step = now, line.step
        loss = "not finite" if line.loss is None else f"{line.loss:.4f}"
        if self._bar is not None and self._task is not None:
            text = f"loss {loss}  {self._held_out}".rstrip()
            self._bar.update(self._task, completed=line.step, total=steps, description=text)
        elif now - self._printed_at >= PLAIN_EVERY_S or line.step == steps:
            self._printed_at = now
            done = line.step - self._first_step
            left = (now - self._began_at) / done * (steps - line.step) if done else None
            ending = "" if left is None else f"  {duration(left)} left"
            self.note(f"step {line.step}/{steps}  loss {loss}  {self._held_out}{ending}".rstrip())

    def evaluated(self, line: EvaluationLine) -> None:
        """Show an evaluation on the held-out examples."""
        name = next((name for name in ("accuracy", "map") if name in line.figures), "loss")
        value = line.figures.get(name)
        self._held_out = "" if value is None else f"held-out {name} {value:.3f}"
        if self._bar is None:
            found = ", ".join(
                f"{name.replace('_', ' ')} {value:.4g}"
                for name, value in line.figures.items()
                if value is not None and name not in ("examples", "lines")
            )
            self.note(f"held out after {line.step} steps: {found}")

    def close(self) -> None:
        if self._bar is not None:
            with suppress(OSError):  # a terminal that is gone
                self._bar.stop()


def sft(arguments: argparse.Namespace) -> int:
    return train(arguments, expects=SftConfig)


def train(arguments: argparse.Namespace, *, expects: type[Any] | None = None) -> int:
    """Run the command; returns the exit code. `expects`: the kind of objective that it trains."""
    require("train")
    fresh = not arguments.resume
    earlier, config = (None, _configured(arguments)) if fresh else _resumed(arguments, expects)
    if expects is not None and not isinstance(config.objective, expects):
        kind = config.objective.kind
        command = COMMANDS.get(kind, "reward train")
        raise UserError(f"objective.kind = {kind!r} is trained by `headrace {command}`")
    run_dir = earlier or run_folder.make_run_folder(config)
    console = Console(file=sys.stderr if arguments.json else sys.stdout)
    print_line(console, f"run        {run_dir}")
    with run_folder.locked(run_dir), stop_on_interrupt() as stop:
        screen = RewardScreen(console, live=console.is_interactive and not arguments.plain)
        try:
            from rewards.models.training.train import train as train_model

            outcome = train_model(config, run_dir, screen, should_stop=stop)
        except UserError:
            if fresh and not read_status(run_dir).step:
                run_folder.discard_run_folder(run_dir)
            raise
        finally:
            screen.close()
    if outcome.model is None:
        print_line(console, f"interrupted after {outcome.step} steps; go on with:")
        command = COMMANDS.get(config.objective.kind, "reward train")
        print_line(console, f"  headrace {command} --resume {run_dir.name}{root_option(run_dir)}")
        return INTERRUPTED
    if arguments.json:
        print(json.dumps({"run_id": run_dir.name, "model": str(outcome.model), **outcome.figures}))
        return 0
    print_line(console, f"model      {outcome.model}")
    print_line(console, f"report     {run_dir / REPORT_PAGE}")
    return 0


def _configured(arguments: argparse.Namespace) -> RewardModelConfig:
    if not arguments.recipe:
        raise UserError(
            "name a recipe, e.g. headrace reward train recipes/reward-models/lines.toml"
        )
    overrides = list(arguments.overrides)
    for key, value in (("root", arguments.root), ("out", arguments.out)):
        if value is not None:
            overrides.append(f"{key}={json.dumps(str(value))}")
    config = load_reward_model(Path(arguments.recipe), overrides)
    out = Path(config.out).resolve() if config.out is not None else None
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is no empty folder; name another one with --out")
    if out is not None:  # said now if it cannot be, and the same wherever the run is resumed
        out.mkdir(parents=True, exist_ok=True)
        config = config.model_copy(update={"out": str(out)})
    return with_local_model(_with_run(config), download=True)


def _with_run(config: RewardModelConfig) -> RewardModelConfig:
    """The recipe with the folder of the run that it learns from: `latest` is the newest one now,
    evaluations and trainings of reward models apart."""
    if not isinstance(config.data, RunDataConfig):
        return config
    root, name = Path(config.root), config.data.run
    if name == LATEST:
        name = run_folder.newest_run(root, run_folder.is_training) or name
    run_dir = run_folder.find_run(root, name)
    return config.model_copy(update={"data": config.data.model_copy(update={"run": str(run_dir)})})


def _resumed(
    arguments: argparse.Namespace, expects: type[Any] | None
) -> tuple[Path, RewardModelConfig]:
    """The folder of an earlier run and its recipe; UserError where there is nothing left to do."""
    if arguments.recipe or arguments.overrides or arguments.out:
        raise UserError("--resume takes everything from the run; give no recipe and no overrides")
    root, name = Path(arguments.root or "runs"), arguments.resume
    if name == LATEST:
        newest = run_folder.newest_run(root, lambda run_dir: _trains(run_dir, expects))
        if newest is None:
            raise UserError(
                f"no reward model was trained under {root}; `headrace runs` lists the runs"
            )
        name = newest
    run_dir = run_folder.find_run(root, name)
    config = run_folder.read_reward_model_config(run_dir)
    if read_status(run_dir).status == "finished":
        raise UserError(f"{run_dir.name} has finished; train another one from its model instead")
    run_folder.name_latest(run_dir)
    return run_dir, config


def _trains(run_dir: Path, expects: type[Any] | None) -> bool:
    """Return whether `latest` of a command that trains this kind of objective may mean a run."""
    try:
        objective = run_folder.read_reward_model_config(run_dir).objective
    except UserError:
        return False  # of another command, or version
    return isinstance(objective, expects) if expects else objective.kind not in COMMANDS


@contextmanager
def stop_on_interrupt() -> Iterator[Any]:
    """Yield a function that a first Ctrl-C, SIGTERM or closed terminal makes true; a second Ctrl-C
    or SIGTERM ends the process."""
    asked: list[int] = []

    def note(number: int, _frame: types.FrameType | None) -> None:
        if asked and number != signal.SIGHUP:  # a terminal that closes sends two
            raise KeyboardInterrupt
        asked.append(number)
        with suppress(OSError):  # as it is gone
            print("stopping after this step; Ctrl-C again ends at once", file=sys.stderr)

    with signal_handler(note, *stop_signals()):
        yield lambda: bool(asked)
