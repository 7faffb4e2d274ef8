"""Trackio, on this machine: the project is the recipe's name, the run is the run's id."""

from collections.abc import Mapping

import trackio

from headrace_cli.commands.data.sinks import RunFacts


class Sink:
    """Writes where Trackio keeps its projects; see them with `trackio show`."""

    def open(self, run: RunFacts) -> None:
        """Begin a run, or go on with the one of this id. Trackio would measure the machine beside
        it, and that is the sink's own process."""
        config = dict(run.config)
        trackio.init(
            project=run.name, name=run.run_id, config=config, resume="allow", embed=False,
            auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip

    def write(self, step: int, at: float, metrics: Mapping[str, float]) -> None:
        """All numbers of a step. Trackio takes the time itself."""
        trackio.log(dict(metrics), step=step)

    def close(self) -> None:
        """Wait until Trackio has stored everything."""
        trackio.finish()
