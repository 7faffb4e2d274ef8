"""Display of a run on a terminal and in a log.

In: `Status` messages, requested twice a second. Out: a live display (rich) on a terminal, one plain
line every few seconds elsewhere. `ConsoleController` is the supervisor's `RunController`: it owns
the monitor connection and one `Screen`.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.config.sections.run import RunConfig
from headrace.errors import visible
from headrace.protocol.messages.control import Status
from headrace_cli.launch.display.units import duration
from headrace_cli.launch.monitor import Monitor

ASK_EVERY_S = 0.5
PLAIN_EVERY_S = 5.0
LONG_WAIT_S = 10.0
DISPLAY_PAUSE_S = 1.0
"""A longer gap counts as a pause of the display itself."""


class Screen(Protocol):
    """Something that shows a status."""

    def show(self, status: Status) -> None:
        """A new status."""

    def note(self, text: str) -> None:
        """A line that stays."""

    def close(self) -> None:
        """No more will come."""


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print a line as it is, without wrapping and unseen characters, if anybody takes it: no run
    ends because of a full disk, a lost terminal or a closed pipe, at which rich exits."""
    with contextlib.suppress(OSError, SystemExit):
        console.print(Text(visible(text), style), soft_wrap=True)


def share_done(config: RunConfig, status: Status) -> float | None:
    """Return the done share of the run, 0 to 1, by its nearest stop condition; None without one."""
    stop, gauges = config.stop, status.gauges
    shares = []
    if stop.updates:
        shares.append(status.update / stop.updates)
    if stop.train_time_s:
        shares.append(gauges.get("train_time_s", 0.0) / stop.train_time_s)
    if stop.tokens:
        shares.append(status.ledger.get("trained_policy", 0) / stop.tokens)
    return min(1.0, max(shares)) if shares else None


def time_left(config: RunConfig, status: Status) -> float | None:
    """Seconds until the nearest stop condition at the present pace; None where unknown."""
    share, spent = share_done(config, status), status.gauges.get("train_time_s", 0.0)
    if not share or spent <= 0:
        return None
    return spent * (1 - share) / share


def phase_text(status: Status) -> str:
    """The phase in words, with an evaluation's progress."""
    gauges = status.gauges
    if status.phase == "evaluating" and gauges.get("eval/total"):
        return f"evaluating {gauges.get('eval/scored', 0):.0f}/{gauges['eval/total']:.0f}"
    if status.phase == "training" and gauges.get("warming_up"):
        return "training (value warm-up)"
    return status.phase


class StatusTexts:
    """The numbers of a status that both screens show, as short texts; empty where unknown."""

    def __init__(self, config: RunConfig, status: Status) -> None:
        self._gauges = status.gauges
        left = time_left(config, status)
        target = f"/{config.stop.updates}" if config.stop.updates else ""
        self.phase = phase_text(status)
        self.updates = f"{status.update}{target}"
        self.version = str(status.version)
        self.reward = self._number("reward/mean", "{:.3f}")
        self.length = self._number("response_length/mean", "{:.1f}")
        self.generator_rate = self._number("perf/generated_tokens_per_s", "{:,.0f}")
        self.learner_rate = self._number("perf/trained_tokens_per_s", "{:,.0f}")
        self.staleness = self._number("staleness/mean", "{:.2f}")
        self.staleness_max = self._number("staleness/max", "{:.0f}")
        self.left = "" if left is None else duration(left)
        ledger, dropped = status.ledger, sum(status.dropped.values())
        parts = [
            f"{ledger.get(key, 0):,} {name}"
            for key, name in (
                ("trained_policy", "trained"), ("ready", "ready"), ("in_flight", "in flight"),
            )
        ]  # fmt: skip
        parts.append(f"{dropped:,} dropped")
        self.ledger = f"{ledger.get('generated', 0):,} generated = {' + '.join(parts)}"
        self.waits = [
            f"{who} {duration(age)}"
            for who, age in sorted(status.waits.items(), key=lambda item: -item[1])
        ]
        self.long_waits = [
            f"{who} for {duration(age)}" for who, age in status.waits.items() if age > LONG_WAIT_S
        ]
        doing = [f"{name} {text}" for name, text in sorted(status.doing.items())]
        self.how_far = visible(", ".join(doing[-3:]))  # The learner is the last by name.

    def _number(self, name: str, form: str) -> str:
        value = self._gauges.get(name)
        return "" if value is None else form.format(value)


class PlainScreen:
    """One line every few seconds, and one whenever the phase changes."""

    def __init__(self, config: RunConfig, console: Console) -> None:
        self._config, self._console = config, console
        self._phase, self._printed_at = "", float("-inf")

    def show(self, status: Status) -> None:
        """Print a line if it is time."""
        now = time.monotonic()
        if status.phase == self._phase and now - self._printed_at < PLAIN_EVERY_S:
            return
        self._phase, self._printed_at = status.phase, now
        texts = StatusTexts(self._config, status)
        pairs = (
            ("reward", texts.reward),
            ("length", texts.length),
            ("generator tok/s", texts.generator_rate),
            ("learner tok/s", texts.learner_rate),
            ("staleness", texts.staleness),
            ("left", texts.left),
            ("waits", ", ".join(texts.long_waits)),
            ("now", texts.how_far),
        )
        shown = "  ".join(f"{name} {value}" for name, value in pairs if value)
        message = f"  {status.message}" if status.message else ""
        updates = "" if self._config.evaluation.only else f"update {texts.updates}  "
        self.note(f"{texts.phase:<12} {updates}{shown}{message}".rstrip())

    def note(self, text: str) -> None:
        print_line(self._console, text)

    def close(self) -> None:
        """Nothing to do."""


class LiveScreen:
    """A small table that is redrawn in place."""

    def __init__(self, config: RunConfig, console: Console) -> None:
        self._config = config
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._live.start()

    def show(self, status: Status) -> None:
        self._live.update(self._render(status))

    def note(self, text: str) -> None:
        """Print a line above the table."""
        print_line(self._live.console, text)

    def close(self) -> None:
        """Leave the last picture on the screen."""
        with contextlib.suppress(OSError):  # a lost terminal
            self._live.stop()

    def _render(self, status: Status) -> RenderableType:
        texts = StatusTexts(self._config, status)
        table = Table.grid(padding=(0, 3))
        for _ in range(4):
            table.add_column(no_wrap=True)
        rows = (
            ("phase", texts.phase, "updates", texts.updates),
            ("reward", texts.reward, "response length", texts.length),
            ("generator tok/s", texts.generator_rate, "learner tok/s", texts.learner_rate),
            (
                "staleness",
                f"{texts.staleness} (max {texts.staleness_max})" if texts.staleness else "",
                "weight version",
                texts.version,
            ),
        )
        for name, value, other, other_value in rows:
            table.add_row(
                Text(name, "dim"), Text(value or "-", "bold"), Text(other, "dim"),
                Text(other_value or "-", "bold"),
            )  # fmt: skip
        lines: list[RenderableType] = [table, Text.assemble(("tokens  ", "dim"), texts.ledger)]
        if texts.waits:
            lines.append(Text.assemble(("waits   ", "dim"), ", ".join(texts.waits[:4])))
        if texts.how_far:
            lines.append(Text.assemble(("now     ", "dim"), texts.how_far))
        share = share_done(self._config, status)
        if share is not None:
            bar = Table.grid(padding=(0, 1))
            left = f"{texts.left} left" if texts.left else ""
            bar.add_row(ProgressBar(total=1.0, completed=share, width=40), f"{share:4.0%}", left)
            lines.append(bar)
        if status.message:
            lines.append(Text(visible(status.message), "yellow"))
        return Group(*lines)


class SilenceTimer:
    """Seconds since a requested answer. `clock` gives seconds; those in which this process stood
    still, and sent no request, do not count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at, self._silent_s = clock(), 0.0

    def update(self, *, heard: bool) -> float:
        """Return the seconds of silence; called at short intervals."""
        before, self._looked_at = self._looked_at, self._clock()
        passed_s = self._looked_at - before
        if heard:
            self._silent_s = 0.0
        elif passed_s <= DISPLAY_PAUSE_S:
            self._silent_s += passed_s
        return self._silent_s


class ConsoleController:
    """The supervisor's view of the run: polls the coordinator, feeds a screen, passes on a stop."""

    def __init__(self, config: RunConfig, screen: Screen) -> None:
        self._config, self._screen = config, screen
        self._monitor: Monitor | None = None
        self._asked_at = float("-inf")
        self.last: Status | None = None
        self.troubles: list[str] = []
        """Notices shown to the user, in order."""
        self._silence, self._silent_s = SilenceTimer(), 0.0
        self._is_missed = False

    def connect(self, address: str) -> None:
        if self._monitor is not None:
            self._monitor.close()
        self._monitor = Monitor(self._config, address)
        self._silence, self._silent_s = SilenceTimer(), 0.0

    def tick(self) -> None:
        """Show the newest status and request the next."""
        if self._monitor is None:
            return
        status = self._monitor.latest_status()
        self._silent_s = self._silence.update(heard=status is not None)
        if (self._silent_s > self._config.transport.heartbeat_timeout_s) != self._is_missed:
            self._is_missed = not self._is_missed
            silent = f"has not answered for {self._silent_s:.0f} s"
            self._screen.note(f"the coordinator {silent if self._is_missed else 'answers again'}")
        if status is not None:
            self.last = status
            for text in status.troubles:
                if text not in self.troubles:
                    self.troubles.append(text)
                    self._screen.note(text)
            self._screen.show(status)
        if time.monotonic() - self._asked_at >= ASK_EVERY_S:
            self._asked_at = time.monotonic()
            self._monitor.request_status()

    def note(self, text: str) -> None:
        self._screen.note(text)

    @property
    def lost(self) -> str:
        """Return for how long the coordinator has been silent; empty unless it is too long."""
        if self._silent_s <= self._config.transport.stall_timeout_s:
            return ""
        return f"the coordinator has not answered for {self._silent_s:.0f} s"

    def run_progress(self) -> tuple[str, float]:
        """Return the last progress text and the seconds without progress, silent ones included."""
        if self.last is None:
            return "no update has begun", float("inf")
        how_far = StatusTexts(self._config, self.last).how_far
        newest = f"the newest checkpoint is of update {self.last.checkpoint}"
        return "; ".join(filter(None, (how_far, newest))), self.last.moved_s + self._silent_s

    @property
    def stalled(self) -> bool:
        """Return whether the coordinator last said that nobody makes progress."""
        return self.last is not None and self.last.stalled

    def request_stop(self) -> None:
        if self._monitor is not None:
            self._monitor.send_command("interrupt")

    def close(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
        self._screen.close()
