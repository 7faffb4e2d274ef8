"""Sinks: other programs that show a run's figures, each by its own package.

In: the name of a sink. Out: a `Sink`. Promise: its package is imported when it is opened. Names of
metrics are those of docs/metrics.md everywhere; a step is the number of an update.
"""

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple, Protocol, cast

from headrace.errors import UserError
from headrace.host.install import EXTRAS, require
from headrace.metrics.registry import METRICS


class RunFacts(NamedTuple):
    """The run whose metrics are sent. `config`: its resolved configuration, without a password.
    `folder`: where the sink may write; what it wrote there in an earlier process is still there."""

    run_id: str
    name: str
    config: Mapping[str, Any]
    folder: Path


class Sink(Protocol):
    """What a sink does. It may be slow and may raise: its caller is a separate process."""

    def open(self, run: RunFacts) -> None:
        """Begin, or go on."""

    def write(self, step: int, at: float, metrics: Mapping[str, float]) -> None:
        """Numbers of one step, measured at `at` seconds since the epoch. When it returns they are
        where they belong."""

    def close(self) -> None:
        """The run has ended, or nobody listens any more."""


class Jsonl:
    """A line of JSON for each step in FOLDER/metrics.jsonl. Also the smallest example of a sink."""

    def open(self, run: RunFacts) -> None:
        """Go on behind what is there."""
        self._file: IO[str] = (run.folder / "metrics.jsonl").open("a", encoding="utf-8")

    def write(self, step: int, at: float, metrics: Mapping[str, float]) -> None:
        """One line."""
        self._file.write(json.dumps({"step": step, "at": at, **metrics}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Event files in FOLDER, by TensorBoard's own writer, which needs neither TensorFlow nor torch;
    see them with `tensorboard --logdir FOLDER`."""

    def open(self, run: RunFacts) -> None:
        """Begin a further event file: TensorBoard reads all of a folder as one run."""
        import tensorboard.summary

        self._writer = tensorboard.summary.Writer(str(run.folder))

    def write(self, step: int, at: float, metrics: Mapping[str, float]) -> None:
        """A scalar for each number, with what it means."""
        for name, value in metrics.items():
            known = METRICS.get(name)
            self._writer.add_scalar(
                name, value, step, wall_time=at, description=known.meaning if known else None
            )
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class Trackio:
    """Trackio's own projects on this machine: the recipe's name is the project, the run's id the
    run; see them with `trackio show`."""

    def open(self, run: RunFacts) -> None:
        """Begin a run, or go on with the one of this id. Trackio would measure the machine beside
        it, and that is the sink's own process."""
        import trackio

        self._trackio, config = trackio, dict(run.config)
        trackio.init(
            project=run.name, name=run.run_id, config=config, resume="allow", embed=False,
            auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip

    def write(self, step: int, at: float, metrics: Mapping[str, float]) -> None:
        """All numbers of a step. Trackio takes the time itself."""
        self._trackio.log(dict(metrics), step=step)

    def close(self) -> None:
        """Wait until Trackio has stored everything."""
        self._trackio.finish()


SINKS: dict[str, type[Sink]] = {"tensorboard": TensorBoard, "trackio": Trackio, "jsonl": Jsonl}
"""Those that are there."""


def sink_of(name: str) -> Sink:
    """A sink by its name, or by a file of one's own (`path/my_sink.py`, with a class `Sink`);
    UserError where there is none."""
    if name.endswith(".py"):
        made = getattr(_module_of(Path(name)), "Sink", None)
    elif name in SINKS:
        if name in EXTRAS:
            require(name)
        made = SINKS[name]
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
