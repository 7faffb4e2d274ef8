"""The command line: all commands and their options, without their work.

Subcommands live in `headrace_cli/commands/`, one module for each noun, and are imported when they
are used, so that `--help` is quick. Exit codes: 0 done, 2 the user's mistake (one line, no
traceback), 1 ours, 130 interrupted.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from headrace.errors import StorageBlockedError, exit_code
from headrace_cli.cli_data import add_data, add_replay
from headrace_cli.cli_options import CommandMaker, add_options
from headrace_cli.cli_reward import add_rank, add_reward, add_sft

Action = Callable[[argparse.Namespace], int]

EPILOG = """\
first steps:
  headrace train recipes/quickstart.toml                    train the demonstration, watch it
  headrace train recipes/quickstart.toml stop.updates=5     any key of a recipe can be overridden
  headrace train --resume latest                            resume the newest run
  headrace config explain recipes/quickstart.toml           what a recipe means in numbers
  headrace dashboard                                        look at all runs in a browser
  headrace reward try RECIPE answers.jsonl                  score finished answers without a run
  headrace reward train recipes/reward-models/lines.toml    train a reward model
  headrace sft recipes/sft/cold-start.toml                      fine-tune a policy, a start for RL
  headrace show latest --json                               a run's metrics and token account
  headrace audit latest                                     verify its token accounting
  headrace replay latest --update 5                         recompute an update, compare numbers
  headrace export latest trajectories --format parquet --out trajectories.parquet
  headrace sql latest "select avg(reward) from trajectories where purpose = 'train'"

more than one machine:
  headrace launch RECIPE --on slurm --nodes 4 --gpus-per-node 8     a job of a Slurm cluster
  headrace launch RECIPE --on ray                           a run on a Ray cluster
  headrace generator --connect latest                       one more generator for a run
  headrace generator --connect tcp://HOST:PORT --curve-keys keys/   elsewhere, with its keys
  headrace keys keys/                                       keys of your own (a run makes some)

`headrace COMMAND --help` shows the options and examples of one command.
"""

COMMAND_FUNCTIONS = {
    "train": "headrace_cli.commands.run.train.train",
    "launch": "headrace_cli.commands.run.launch.launch",
    "generator": "headrace_cli.commands.run.generator.generator",
    "stop": "headrace_cli.commands.inspection.runs.stop",
    "eval": "headrace_cli.commands.run.evaluate.evaluate",
    "try-environment": "headrace_cli.commands.run.try_environment.try_environment",
    "score": "headrace_cli.commands.data.prompt_scores.score",
    "dashboard": "headrace_cli.commands.inspection.runs.dashboard",
    "runs": "headrace_cli.commands.inspection.runs.runs",
    "show": "headrace_cli.commands.inspection.runs.show",
    "audit": "headrace_cli.commands.inspection.audit.audit",
    "replay": "headrace_cli.commands.inspection.replay.replay",
    "export": "headrace_cli.commands.data.export.export",
    "sql": "headrace_cli.commands.data.sql.sql",
    "select": "headrace_cli.commands.data.prompt_scores.select",
    "sink": "headrace_cli.commands.data.sink.sink",
    "config show": "headrace_cli.commands.system.config.show",
    "config check": "headrace_cli.commands.system.config.check",
    "config explain": "headrace_cli.commands.system.config.explain",
    "reward try": "headrace_cli.commands.reward.try_rewards.try_rewards",
    "reward label": "headrace_cli.commands.reward.labels.label",
    "reward anchors": "headrace_cli.commands.reward.anchors.anchors",
    "reward train": "headrace_cli.commands.reward.train.train",
    "sft": "headrace_cli.commands.reward.train.sft",
    "rank train": "headrace_cli.commands.reward.rank.train",
    "rank eval": "headrace_cli.commands.reward.rank.evaluate",
    "doctor": "headrace_cli.commands.system.doctor.doctor",
    "sandbox run": "headrace_cli.commands.system.sandbox.run",
    "keys": "headrace_cli.commands.run.generator.keys",
    "bench": "headrace_cli.commands.system.benchmark.bench",
}
"""The function of each command, by its words."""
REQUIRED_EXTRAS = {
    "train": "train", "launch": "train", "generator": "train", "eval": "train",
    "score": "train", "replay": "train",
    "dashboard": "dashboard",
}  # fmt: skip
"""Extras of the commands that cannot do without, most of them because they start processes."""


class _Parser(argparse.ArgumentParser):
    """One line for a mistake."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    root = _Parser(
        prog="headrace",
        description="Asynchronous reinforcement learning of language models: trains on "
        "trajectories that are still being written.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="store_true", help="print the version and end")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)

    def command(
        name: str, text: str, example: str, *, takes: str = "", within: Any = None
    ) -> argparse.ArgumentParser:
        made = (within or commands).add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_options(made, takes)
        return made

    _training(command)
    _looking(command)
    add_data(command)
    _checking(command)
    return root


def _training(command: CommandMaker) -> None:
    train = command(
        "train", "train a model by a recipe, or resume a run",
        "headrace train recipes/quickstart.toml learner.policy.lr=5e-5 --no-dashboard",
        takes="recipe? overrides root",
    )  # fmt: skip
    train.add_argument("--resume", metavar="RUN", help="go on with this run (`latest`: the newest)")
    train.add_argument("--no-dashboard", action="store_true", help="start no web page")
    train.add_argument("--plain", action="store_true", help="plain lines, no live display")

    _launching(command)

    generator = command(
        "generator", "add a generator to a live run",
        "headrace generator --connect runs/RUN",
        takes="root",
    )  # fmt: skip
    generator.add_argument(
        "--connect", required=True, metavar="RUN|tcp://HOST:PORT",
        help="a run, whose folder says where it is and has its keys, or an address",
    )  # fmt: skip
    generator.add_argument("--name", help="unique in the run (default: by host and process)")
    generator.add_argument(
        "--curve-keys", type=Path, metavar="DIR", help="a copy of the run's keys, for an address"
    )
    generator.add_argument("--cpus", help="processor cores, e.g. 0,1")

    stop = command(
        "stop",
        "drain a run, write its checkpoint, end it",
        "headrace stop latest",
        takes="run root",
    )
    stop.add_argument(
        "--timeout", type=float, default=180.0, metavar="S", help="seconds without progress"
    )

    evaluate = command(
        "eval", "measure a model's accuracy on a recipe's held-out prompts",
        "headrace eval runs/RUN/checkpoints/step_60/policy --task recipes/quickstart.toml --json",
        takes="json root",
    )  # fmt: skip
    evaluate.add_argument("model", metavar="MODEL", help="a model folder")
    evaluate.add_argument(
        "--task", required=True, metavar="RECIPE", dest="recipe", help="whose held-out prompts"
    )
    add_options(evaluate, "overrides")

    play = command(
        "try-environment", "play episodes of a recipe's environment, one line per turn",
        "headrace try-environment recipes/calculator.toml --episodes 3",
        takes="recipe overrides root",
    )  # fmt: skip
    play.add_argument(
        "--policy", nargs="?", const="", metavar="DIR",
        help="let a model play: the recipe's, or one in a folder",
    )  # fmt: skip
    play.add_argument("--episodes", type=int, default=1, metavar="N", help="how many (1)")

    score = command(
        "score", "score a policy's answers to each training prompt, for `select`",
        "headrace score recipes/smollm2.toml --samples 16",
        takes="recipe? overrides json root",
    )  # fmt: skip
    score.add_argument(
        "--samples", type=int, default=16, metavar="M", help="answers to each prompt (16)"
    )
    score.add_argument(
        "--prompts", type=int, default=10**9, metavar="N", help="the first N prompts (all)"
    )
    score.add_argument("--resume", metavar="RUN", help="go on with this run")


def _looking(command: CommandMaker) -> None:
    page = command(
        "dashboard",
        "serve the web page of all runs",
        "headrace dashboard runs --port 8600",
        takes="root",
    )
    page.add_argument("folder", nargs="?", metavar="ROOT", help="folder of the runs (runs)")
    page.add_argument("--host", default="127.0.0.1", help="where it listens (127.0.0.1)")
    page.add_argument("--port", type=int, default=8501, help="0 takes a free one (8501)")

    runs = command("runs", "list all runs", "headrace runs --json", takes="json root")
    runs.add_argument("--archived", action="store_true", help="list archived runs, too")

    command(
        "show", "show a run's metrics and account", "headrace show latest", takes="run json root"
    )

    audit = command(
        "audit", "verify a run's token accounting, or repair its journal",
        "headrace audit latest --json",
        takes="run json root",
    )  # fmt: skip
    audit.add_argument(
        "--repair", action="store_true",
        help="end a damaged journal before its first unusable record; keeps the damaged one",
    )  # fmt: skip

    add_replay(command)


def _checking(command: CommandMaker) -> None:
    config = command(
        "config", "inspect a recipe without starting a run",
        "headrace config explain recipes/quickstart.toml",
    )  # fmt: skip
    inner = config.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text in (
        ("show", "every key with its value, defaults included"),
        ("check", "errors of a recipe on this machine"),
        ("explain", "what a recipe means: batch arithmetic, staleness, memory, processes"),
    ):
        made = command(
            name,
            text,
            f"headrace config {name} recipes/quickstart.toml",
            within=inner,
            takes="recipe overrides json root" + " hardware" * (name == "explain"),
        )
    made.add_argument(
        "--measure", action="store_true",
        help="run two updates on this machine (minutes), say how fast it will be and what binds",
    )  # fmt: skip
    made.add_argument(
        "--against", metavar="RUN",
        help="with --measure: compare the forecast with the first updates of a run of the recipe",
    )  # fmt: skip

    add_reward(command)
    add_rank(command)
    add_sft(command)

    command("doctor", "check the installation", "headrace doctor", takes="json")

    box = command(
        "sandbox", "run a program in the sandbox",
        "headrace sandbox run program.py --json",
    )  # fmt: skip
    within = box.add_subparsers(dest="action", metavar="ACTION", required=True)
    made = command(
        "run", "run one Python file and print its result", "headrace sandbox run program.py",
        within=within,
        takes="json",
    )  # fmt: skip
    made.add_argument("file", type=Path, metavar="FILE.py", help="the program")
    made.add_argument("--seconds", type=float, default=10.0, metavar="S", help="deadline (10)")
    made.add_argument(
        "--python", metavar="PROGRAM", help="another environment's Python, with its packages"
    )
    made.add_argument(
        "--package", action="append", default=[], metavar="NAME",
        help="an installed package that the program may import; repeat for more",
    )  # fmt: skip

    keys = command("keys", "make key files for connections off this machine", "headrace keys k/")
    keys.add_argument("folder", type=Path, metavar="DIR", help="the new folder for them")

    bench = command(
        "bench", "run a benchmark with its own options", "headrace bench generator --json"
    )
    bench.add_argument("name", nargs="?", metavar="NAME", help="none: list them")
    bench.add_argument(
        "options", nargs=argparse.REMAINDER, metavar="...", help="--help: its options"
    )


def _launching(command: CommandMaker) -> None:
    """The command and its options."""
    launch = command(
        "launch", "train over several hosts of a cluster",
        "headrace launch recipe.toml --on slurm --nodes 4 --gpus-per-node 8 --time 12:00:00",
        takes="recipe? overrides root",
    )  # fmt: skip
    launch.add_argument(
        "--on", required=True, choices=("slurm", "ray"),
        help="slurm: write the scripts of a job into a new run folder; ray: run on a Ray cluster",
    )  # fmt: skip
    launch.add_argument("--resume", metavar="RUN", help="go on with this run")
    on_ray = launch.add_argument_group("on Ray")
    on_ray.add_argument(
        "--address", default="auto", metavar="HOST:PORT", help="the cluster (the one of this host)"
    )
    on_ray.add_argument("--plain", action="store_true", help="plain lines, no live display")
    _slurm(launch)


def _slurm(launch: argparse.ArgumentParser) -> None:
    job = launch.add_argument_group("on Slurm")
    job.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes of the job (1)")
    job.add_argument("--gpus-per-node", type=int, default=0, metavar="N", help="of each node (0)")
    job.add_argument(
        "--cpus-per-node", type=int, default=0, metavar="N",
        help="cores of each node (default: as many as the plan needs)",
    )  # fmt: skip
    job.add_argument(
        "--learner-nodes", type=int, default=0, metavar="N",
        help="nodes that share the learner's ranks (default: as few as have the GPUs)",
    )  # fmt: skip
    for name, metavar in (("time", "HH:MM:SS"), ("partition", "NAME"), ("account", "NAME")):
        job.add_argument(f"--{name}", metavar=metavar, help="as for sbatch")
    job.add_argument(
        "--sbatch", action="append", default=[], metavar="OPTION",
        help="a further option of sbatch, e.g. --sbatch=--qos=high; repeat for more",
    )  # fmt: skip
    # What the written script says to this command within the job.
    job.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    job.add_argument("--hosts", nargs="+", help=argparse.SUPPRESS)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parsed arguments; overrides may stand before, between and after options."""
    root = parser()
    arguments, left = root.parse_known_args(argv)
    overrides = [word for word in left if "=" in word and not word.startswith("-")]
    strangers = [word for word in left if word not in overrides]
    if strangers or (overrides and not hasattr(arguments, "overrides")):
        root.error(f"unknown argument {(strangers or overrides)[0]!r}")
    if overrides:
        arguments.overrides = [*arguments.overrides, *overrides]
    return arguments


def action(arguments: argparse.Namespace) -> Action:
    """The function that does a command's work and takes its arguments; it is imported only here."""
    words = (arguments.command, getattr(arguments, "action", None))
    module, _, function = COMMAND_FUNCTIONS[" ".join(filter(None, words))].rpartition(".")
    found: Action = getattr(importlib.import_module(module), function)
    return found


def missing_package_line(error: ModuleNotFoundError) -> str:
    """Return a line on a missing package of the project or its extras; empty for a foreign one."""
    from headrace.host.install import PACKAGES, extra_line

    name = error.name or ""
    ours = name.partition(".")[0] in PACKAGES
    here = f"{name} is not installed; run `headrace doctor` to see what is" if ours else ""
    return here or extra_line(name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = parse(argv)
    if arguments.version:
        from headrace.host.install import version

        print(version())
        return 0
    if not arguments.command:
        parser().print_help()
        return 0

    def run() -> int:
        if arguments.command in REQUIRED_EXTRAS:
            from headrace.host.install import require

            require(REQUIRED_EXTRAS[arguments.command])
        return action(arguments)(arguments)

    try:
        return exit_code(run)
    except ModuleNotFoundError as error:
        line = missing_package_line(error)
        if not line:
            raise
        print(f"error: {line}", file=sys.stderr)
        return 2
    except StorageBlockedError as error:
        print(f"error: this needs {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()
        return 0


if __name__ == "__main__":
    sys.exit(main())
