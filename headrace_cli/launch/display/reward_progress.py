"""What the training of a reward model looks like on a terminal and in a log.

In: steps and held-out figures as they come. Out: a bar with loss, held-out accuracy and the time
left on a terminal; one plain line every few seconds elsewhere.
"""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headrace.run_files.reward_model_run import EvaluationLine, StepLine
from headrace_cli.launch.display.progress import PLAIN_EVERY_S, say
from headrace_cli.launch.display.units import duration


class RewardScreen:
    """Shows a training; `live`: as a bar that is redrawn."""

    def __init__(self, console: Console, *, live: bool) -> None:
        self._console = console
        self._bar = _bar(console) if live else None
        self._task = None if self._bar is None else self._bar.add_task("reward model", total=None)
        self._printed_at = self._began_at = float("-inf")
        self._first_step = 0
        self._held_out = ""
        if self._bar is not None:
            self._bar.start()

    def note(self, text: str) -> None:
        """A line that stays."""
        say(self._console if self._bar is None else self._bar.console, text)

    def step(self, line: StepLine, steps: int) -> None:
        """A step was taken, of `steps`."""
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
        """The held-out examples were looked at."""
        accuracy = line.figures.get("accuracy")
        self._held_out = "" if accuracy is None else f"held-out accuracy {accuracy:.3f}"
        if self._bar is None:
            found = ", ".join(
                f"{name.replace('_', ' ')} {value:.4g}"
                for name, value in line.figures.items()
                if value is not None and name not in ("examples", "lines")
            )
            self.note(f"held out after {line.step} steps: {found}")

    def close(self) -> None:
        """Leave the last picture on the screen."""
        if self._bar is not None:
            self._bar.stop()


def _bar(console: Console) -> Progress:
    columns = (
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console)
