"""Sinks: other programs that show a run's figures, each by its own package.

In: the name of a sink. Out: a `Sink`. Promise: its package is imported when it is asked for. Names
of metrics are those of docs/metrics.md everywhere; a step is the number of an update.
"""

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, cast

from headrace.errors import UserError
from headrace.host.install import EXTRAS, require

SINKS = ("tensorboard", "trackio", "jsonl")
"""Those that are there. Each is a module beside this one with a class `Sink`."""


class RunFacts(NamedTuple):
    """The run that is told about. `config`: its resolved configuration, without a password.
    `folder`: where the sink may write; what it wrote there in an earlier process is still there."""

    run_id: str
    name: str
    config: Mapping[str, Any]
    folder: Path


class Sink(Protocol):
    """What a sink does. It may be slow and may raise: whoever calls it is a process of its own."""

    def open(self, run: RunFacts) -> None:
        """Begin, or go on."""

    def write(self, step: int, at: float, metrics: Mapping[str, float]) -> None:
        """Numbers of one step, measured at `at` seconds since the epoch. When it returns they are
        where they belong."""

    def close(self) -> None:
        """The run has ended, or nobody listens any more."""


def sink_of(name: str) -> Sink:
    """A sink by its name, or by a file of one's own (`path/my_sink.py`, with a class `Sink`);
    UserError where there is none."""
    if name.endswith(".py"):
        made = getattr(_module_of(Path(name)), "Sink", None)
    elif name in SINKS:
        if name in EXTRAS:
            require(name)
        made = importlib.import_module(f"headrace_cli.commands.data.sinks.{name}").Sink
    else:
        raise UserError(
            f"no sink {name!r}: take {', '.join(SINKS)}, or a file such as my_sink.py with a class "
            "Sink"
        )
    if made is None:
        raise UserError(f"{name} has no class Sink")
    return cast(Sink, made())


def _module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UserError(f"no sink: there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a sink is somebody else's code
        line = " ".join(str(error).split())
        raise UserError(f"{path} cannot be loaded: {type(error).__name__}: {line}") from error
    return module
