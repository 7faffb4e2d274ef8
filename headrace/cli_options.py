"""Options that several commands share.

In: a command's parser. Out: nothing; the parser has the option. Promise: one word for one thing.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

Maker = Callable[..., argparse.ArgumentParser]
"""Adds a command: (name, what it does, example, within=...)."""


def take_recipe(command: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """What is run or looked at."""
    command.add_argument(
        "recipe", nargs="?" if optional else None, metavar="RECIPE", help="a TOML file"
    )


def take_overrides(command: argparse.ArgumentParser) -> None:
    """Keys of the recipe in dotted form."""
    command.add_argument(
        "overrides", nargs="*", metavar="key=value", help="e.g. learner.policy.lr=1e-5"
    )


def offer_json(command: argparse.ArgumentParser) -> None:
    """Machine-readable output."""
    command.add_argument("--json", action="store_true", help="one JSON object on standard output")


def take_run(command: argparse.ArgumentParser) -> None:
    """Which run."""
    command.add_argument(
        "name", metavar="RUN", help="`latest`, a run's id or how it begins, or its folder"
    )


def take_root(command: argparse.ArgumentParser) -> None:
    """Where runs are."""
    command.add_argument("--root", type=Path, metavar="DIR", help="folder of the runs (runs)")
