"""The command line: all commands and their options, without their work.

`command_table.py` lists the commands; their functions live in `headrace_cli/commands/`, one module
for each noun, and are imported when they are used, so that `--help` is quick. Exit codes: 0 done,
2 the user's mistake (one line, no traceback), 1 ours, 130 interrupted.
"""

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from headrace.errors import StorageBlockedError, exit_code
from headrace_cli.command_table import COMMANDS, SHARED, Options

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
  headrace sft recipes/sft/cold-start.toml                  fine-tune a policy, a start for RL
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
    raw = argparse.RawDescriptionHelpFormatter
    root = _Parser(
        prog="headrace",
        description="Asynchronous reinforcement learning of language models: trains on "
        "trajectories that are still being written.",
        epilog=EPILOG,
        formatter_class=raw,
    )
    root.add_argument("--version", action="store_true", help="print the version and end")
    inner = {"": root.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)}
    for words, spec in COMMANDS.items():
        parent, _, name = words.rpartition(" ")
        made = inner[parent].add_parser(
            name,
            help=spec.meaning,
            description=spec.meaning[0].upper() + spec.meaning[1:] + ".",
            epilog=f"example:\n  {spec.example}",
            formatter_class=raw,
        )
        if not spec.function:
            inner[words] = made.add_subparsers(dest="action", metavar="ACTION", required=True)
        for word in spec.shared.split():
            _add_options(made, SHARED[word])
        _add_options(made, spec.options)
        for title, options in spec.groups.items():
            _add_options(made.add_argument_group(title), options)
    return root


def _add_options(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, options: Options
) -> None:
    """Add options in the form of `headrace_cli.command_table`."""
    for words, told in options.items():
        key, _, metavar = words.partition(" ")
        name = key.rstrip("!?*+.")
        count = key.removeprefix(name)
        settings: dict[str, Any] = {"metavar": metavar} if metavar else {}
        settings |= {"required": True} if count == "!" else {"nargs": count} if count else {}
        match told:
            case dict():
                settings |= told
            case (kind_or_default, text):
                settings |= {"help": text, **_value(kind_or_default)}
            case text:
                settings |= {"help": text} | ({} if metavar else {"action": "store_true"})
        parser.add_argument(name, **settings)


def _value(told: Any) -> dict[str, Any]:
    """The settings that may stand before a help: a type, choices, a list or a default."""
    match told:
        case type():
            return {"type": told}
        case tuple():
            return {"choices": told, "default": told[0]}
        case list():
            return {"action": "append", "default": told}
    return {"type": type(told), "default": told}


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
    module, _, function = COMMANDS[" ".join(filter(None, words))].function.rpartition(".")
    found: Action = getattr(importlib.import_module(f"headrace_cli.commands.{module}"), function)
    return found


def missing_package_line(error: ModuleNotFoundError) -> str:
    """Return a line on a missing package of the project or its extras; empty for a foreign one."""
    from headrace.host.install import PACKAGES, extra_line

    name = error.name or ""
    ours = name.partition(".")[0] in PACKAGES
    here = f"{name} is not installed; run `headrace doctor` to see what is" if ours else ""
    return here or extra_line(name)


def main(argv: Sequence[str] | None = None) -> int:
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
        code = action(arguments)(arguments)
        sys.stdout.flush()
        return code

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
        # What is left goes nowhere; at its end the interpreter would fail on it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        is_closed = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and error.filename
        if not (is_full or is_closed):
            raise
        place = f"{error.filename}: " if error.filename else ""
        print(f"error: {place}{error.strerror}", file=sys.stderr)
        return 1 if is_full else 2


if __name__ == "__main__":
    sys.exit(main())
