"""Options that several commands share. Promise: one word for one thing."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

CommandMaker = Callable[..., argparse.ArgumentParser]
"""Adds a command: (name, what it does, example, takes="words of `OPTIONS`", within=...)."""
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "recipe": ("recipe", {"metavar": "RECIPE", "help": "a TOML file"}),
    "recipe?": ("recipe", {"metavar": "RECIPE", "help": "a TOML file", "nargs": "?"}),
    "overrides": (
        "overrides",
        {"nargs": "*", "metavar": "key=value", "help": "e.g. learner.policy.lr=1e-5"},
    ),
    "run": (
        "name",
        {"metavar": "RUN", "help": "`latest`, a run's id or how it begins, or its folder"},
    ),
    "json": ("--json", {"action": "store_true", "help": "one JSON object on standard output"}),
    "hardware": (
        "--hardware",
        {"type": Path, "metavar": "FILE", "help": "another machine, from `headrace doctor --json`"},
    ),
    "root": ("--root", {"type": Path, "metavar": "DIR", "help": "folder of the runs (runs)"}),
}


def add_options(command: argparse.ArgumentParser, words: str) -> None:
    """Let a command take these options."""
    for word in words.split():
        name, settings = OPTIONS[word]
        command.add_argument(name, **settings)
