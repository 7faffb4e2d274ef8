"""`headrace sink`: stream a run's metrics to TensorBoard, wandb, MLflow or others.

In: a run, a sink. Out: whatever the sink makes. What wakes it: the clock. How it ends: with the
run, with --once when all metrics were sent, or by Ctrl-C. Promises: it reads the run's store from a
process of its own, so that the run never waits for a sink; the position in the run is stored, so
that another call goes on from there; a sink that fails, or a server of the run, is one line, is
tried again after a while, and no figure is lost. Its package is imported when it is opened; names
of metrics are those of docs/metrics.md everywhere, a step is the number of an update.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from headrace.errors import RunFailedError, UserError, first_line, visible
from headrace.host.install import EXTRAS, require
from headrace.host.user_code import describe, place_of, thing_of
from headrace.metrics.registry import METRICS
from headrace.run_files import run_folder
from headrace.run_files.run_folder import write_atomically


class RunFacts(NamedTuple):
    """The run whose metrics are sent. `config`: its resolved configuration, without a password.
    `folder`: where the sink may write; what it wrote there in an earlier process is still there."""

    run_id: str
    name: str
    config: Mapping[str, Any]
    folder: Path


class Sink(Protocol):
    """Interface of a sink. It may be slow and may raise: its caller is a separate process."""

    def open(self, run: RunFacts) -> None:
        """Begin, or go on."""

    def write(self, step: int, at: float, metrics: Mapping[str, float]) -> None:
        """Store the numbers of a step, measured `at` seconds since the epoch, before returning."""

    def close(self) -> None:
        """The run has ended, or the stream was stopped."""


class Jsonl:
    """A line of JSON for each step in FOLDER/metrics.jsonl. Also the smallest example of a sink."""

    def open(self, run: RunFacts) -> None:
        """Go on behind what is there."""
        self._file: IO[str] = (run.folder / "metrics.jsonl").open("a", encoding="utf-8")

    def write(self, step: int, at: float, metrics: Mapping[str, float]) -> None:
        self._file.write(json.dumps({"step": step, "at": at, **metrics}) + "\n")
        self._file.flush()

    def close(self) -> None:
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
        self._writer.close()


class Trackio:
    """Trackio's projects on this machine, by the recipe's name and run id; see `trackio show`."""

    def open(self, run: RunFacts) -> None:
        """Begin or continue the run of this id, without measurements of the sink's own process."""
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


class WeightsAndBiases:
    """A run of Weights & Biases with the run's id, in the project of the recipe's name; account,
    host and offline mode are wandb's own (`wandb login`, WANDB_MODE)."""

    def open(self, run: RunFacts) -> None:
        """Begin a run, or go on with the one of this id. Its x-axis is the update: a step of
        wandb's own never goes back, and an update may come twice."""
        import wandb

        self._run = wandb.init(
            project=run.name, id=run.run_id, name=run.run_id, config=dict(run.config),
            resume="allow", dir=str(run.folder),
            settings=wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True),
        )  # fmt: skip
        self._run.define_metric("update")
        self._run.define_metric("*", step_metric="update")

    def write(self, step: int, at: float, metrics: Mapping[str, float]) -> None:
        """All numbers of a step; wandb writes them down here and sends them later."""
        self._run.log({"update": step, "_timestamp": at, **metrics})

    def close(self) -> None:
        """Wait until wandb has sent everything."""
        self._run.finish()


class MLflow:
    """A run of MLflow, in the experiment of the recipe's name, at MLFLOW_TRACKING_URI, by default
    in the file FOLDER/mlflow.db; see it with `mlflow ui --backend-store-uri sqlite:///FILE`."""

    def open(self, run: RunFacts) -> None:
        """Begin a run, or go on with the one that has this run's id as a tag."""
        import mlflow
        import mlflow.entities

        self._metric = mlflow.entities.Metric
        theirs = os.environ.get("MLFLOW_TRACKING_URI")
        ours = f"sqlite:///{run.folder.resolve()}/mlflow.db"
        self._client = client = mlflow.MlflowClient(tracking_uri=theirs or ours)
        known = client.get_experiment_by_name(run.name)
        files = None if theirs else (run.folder.resolve() / "artifacts").as_uri()
        experiment = known.experiment_id if known else client.create_experiment(run.name, files)
        found = client.search_runs([experiment], f"tags.headrace_run = '{run.run_id}'")
        begun = found[0] if found else client.create_run(
            experiment, tags={"headrace_run": run.run_id}, run_name=run.run_id
        )  # fmt: skip
        self._id = begun.info.run_id
        client.log_dict(self._id, dict(run.config), "config.json")

    def write(self, step: int, at: float, metrics: Mapping[str, float]) -> None:
        taken = [self._metric(name, x, int(at * 1000), step) for name, x in metrics.items()]
        self._client.log_batch(self._id, metrics=taken)

    def close(self) -> None:
        self._client.set_terminated(self._id)


SINKS: dict[str, type[Sink]] = {
    "tensorboard": TensorBoard, "trackio": Trackio, "wandb": WeightsAndBiases, "mlflow": MLflow,
    "jsonl": Jsonl,
}  # fmt: skip


def sink_of(name: str) -> Sink:
    """Return a sink by its name or file (`my_sink.py`, with a class `Sink`); UserError: none."""
    if name.endswith(".py"):
        try:
            return cast(Sink, thing_of(f"{name}:Sink")())
        except Exception as error:  # a sink is somebody else's code
            raise UserError(f"{name} cannot be loaded: {describe(error)}") from error
    if name not in SINKS:
        raise UserError(
            f"no sink {name!r}: take {', '.join(SINKS)}, or a file such as my_sink.py with a class "
            "Sink"
        )
    if name in EXTRAS:
        require(name)
    return SINKS[name]()


if TYPE_CHECKING:
    from storage.queries import MetricsPosition

POSITION = "position.json"
LOOK_EVERY_S = 2.0
FIRST_WAIT_S, MAX_WAIT_S = 1.0, 60.0
MAX_FAILURES = 5
"""Maximum number of consecutive failures of a sink once the run has ended."""
Sleep = Callable[[float], None]


def sink(arguments: argparse.Namespace) -> int:
    """Stream all unsent metrics to a sink."""
    run_dir = run_folder.find_run(Path(arguments.root or "runs"), arguments.name)
    run_folder.read_config(run_dir)
    target = sink_of(arguments.sink)
    folder = arguments.out or run_dir / "sinks" / Path(arguments.sink).stem
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error}); name a folder with --out") from error
    streamer = MetricStreamer(target, run_dir, folder)
    count = streamer.stream(once=arguments.once)
    print(f"{count:,} step{'s' * (count != 1)} of {run_dir.name} to {arguments.sink} ({folder})")
    return 0


class MetricStreamer:
    """Stream of one run's metrics to one sink."""

    def __init__(
        self, target: Sink, run_dir: Path, folder: Path, *, sleep: Sleep = time.sleep
    ) -> None:
        """`folder`: the sink's, with its position. UserError: it has figures of another run."""
        from storage.journal.store import run_id_of

        self._sink, self._run_dir, self._folder, self._sleep = target, run_dir, folder, sleep
        self._place, self._run_id = folder / POSITION, run_id_of(run_dir)
        self._position = self._last_position()
        self._is_open = False
        self._steps = self._failures = 0

    def stream(self, *, once: bool) -> int:
        """Stream until the run has ended; return the number of steps. RunFailedError: as
        `_failed`."""
        from storage.database.engine import DatabaseAwayError
        from storage.queries import ENDED, any_line

        try:
            while True:
                over = once
                try:
                    # Looked at before the news, so that none is missed.
                    over = once or not self._goes_on()
                    count = self._send_new()
                except Exception as error:  # a sink is somebody else's code
                    is_away = isinstance(error, DatabaseAwayError) and not once
                    if isinstance(error, UserError) and not is_away:
                        raise
                    # Its folder says, too, how a run ended whose server is away.
                    over |= is_away and any_line(self._run_dir).status in ENDED
                    self._failed(error, over=over)
                    continue
                if over and not count:
                    return self._steps
                if not count:
                    self._sleep(LOOK_EVERY_S)
        finally:
            self._close()

    def _send_new(self) -> int:
        """Send the new metrics; return the number of steps."""
        from storage.queries import metrics_since

        if not self._is_open:
            self._sink.open(self._facts())
            self._is_open = True
        found = metrics_since(self._run_dir, self._position)
        for item in found:
            self._sink.write(item.update, item.at, item.metrics)
            self._position = item.position
            kept = {"run": self._run_id, **self._position._asdict()}
            write_atomically(self._place, json.dumps(kept) + "\n")
            self._steps += 1
            if self._failures:
                self._failures = 0
                print("sink: goes on", file=sys.stderr)
        return len(found)

    def _failed(self, error: Exception, *, over: bool) -> None:
        """Report once, wait, reopen the sink. RunFailedError: MAX_FAILURES after the run's end."""
        self._close()
        self._failures = failures = self._failures + 1
        line = f"{type(error).__name__}: {first_line(error)}{place_of(error)}"
        if over and failures >= MAX_FAILURES:
            raise RunFailedError(f"the sink failed {failures} times in a row: {line}") from error
        if failures == 1:
            print(visible(f"sink: {line}; tries again, the run is not held up"), file=sys.stderr)
        self._sleep(min(FIRST_WAIT_S * 2.0 ** min(failures - 1, 9), MAX_WAIT_S))

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            try:
                self._sink.close()
            except Exception as error:  # a sink is somebody else's code
                print(visible(f"sink: {type(error).__name__} at its end: {error}"), file=sys.stderr)

    def _goes_on(self) -> bool:
        from storage.queries import ENDED, run_line

        return run_line(self._run_dir).status not in ENDED

    def _facts(self) -> RunFacts:
        config = run_folder.read_config(self._run_dir).public()
        plain = config.model_dump(mode="json")
        return RunFacts(self._run_id, config.name, plain, self._folder)

    def _last_position(self) -> "MetricsPosition":
        """Return the position that an earlier call reached."""
        from storage.queries import MetricsPosition

        try:
            kept = json.loads(self._place.read_text())
            run = kept.pop("run", self._run_id)
            position = MetricsPosition(**kept)
        except (OSError, ValueError, TypeError, AttributeError):
            return MetricsPosition()
        if run != self._run_id:
            raise UserError(f"{self._folder} was told of the run {run}: name another --out")
        return position
