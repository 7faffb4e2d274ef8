"""TensorBoard, by its own writer, which needs neither TensorFlow nor torch."""

from collections.abc import Mapping

from tensorboard.summary import Writer

from headrace.metrics.registry import METRICS
from headrace_cli.commands.data.sinks import RunFacts


class Sink:
    """Writes event files into FOLDER; see them with `tensorboard --logdir FOLDER`."""

    def open(self, run: RunFacts) -> None:
        """Begin a further event file: TensorBoard reads all of a folder as one run."""
        self._writer = Writer(str(run.folder))

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
