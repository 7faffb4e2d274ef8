"""Alerts about rewards, and incidents of processes while they last.

In: statistics of a reward source at an update; messages of the learner and waits of the recorder.
Out: the texts of new alerts; incidents for the run's history, lines for its watchers, and the waits
of the run's processes. Promises: one alert per crossing, not per update; another one only after the
figure was back on the good side for a few updates (`health_ranges.MIN_UPDATES_BACK`).
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from headrace.config.sections.reward_monitors import AlertConfig
from headrace.metrics.health_ranges import BandCrossing


class MeanEstimate(NamedTuple):
    """A mean, its standard error, and the number of values."""

    mean: float
    error: float
    number: int


def estimate(values: Sequence[float]) -> MeanEstimate:
    """Estimate the mean of values; the error of a single one is infinite."""
    number = len(values)
    error = statistics.stdev(values) / math.sqrt(number) if number > 1 else math.inf
    return MeanEstimate(statistics.fmean(values), error, number)


class RewardStatistics(NamedTuple):
    """Statistics of a reward source; None where there is not enough data."""

    gap: MeanEstimate | None = None
    first_gap: MeanEstimate | None = None
    length: MeanEstimate | None = None
    first_length: MeanEstimate | None = None
    length_correlation: float | None = None
    edit_distance: float | None = None
    entropy: float | None = None


def _gap(config: AlertConfig, seen: RewardStatistics) -> str | None:
    if config.gap_rise is None or seen.gap is None or seen.first_gap is None:
        return None
    rise = seen.gap.mean - seen.first_gap.mean
    # A rise within the noise of a few audited answers is none.
    noise = 2 * math.hypot(seen.gap.error, seen.first_gap.error)
    if rise < config.gap_rise or rise <= noise:
        return None
    return (
        f"its rewards exceed the audited ones by {seen.gap.mean:.3f}, and did by "
        f"{seen.first_gap.mean:.3f} at first (over {seen.gap.number} audited answers): the policy "
        "learns what is paid for, and not what is meant"
    )


def _length(config: AlertConfig, seen: RewardStatistics) -> str | None:
    bound, correlation = config.length_correlation, seen.length_correlation
    if bound is None or correlation is None or seen.length is None or seen.first_length is None:
        return None
    grown = seen.length.mean - seen.first_length.mean
    if correlation <= bound or grown <= config.length_rise * seen.first_length.mean:
        return None
    return (
        f"reward and length go together ({correlation:.2f}) while answers grow, from "
        f"{seen.first_length.mean:.0f} to {seen.length.mean:.0f} tokens: length may be what is paid"
    )


def _spread(config: AlertConfig, seen: RewardStatistics) -> str | None:
    bound, distance = config.edit_distance, seen.edit_distance
    if bound is None or distance is None or distance > bound:
        return None
    return (
        f"the answers of a group differ in {distance:.1f} characters at most, on average: answers "
        "of a prompt have become one"
    )


def _entropy(config: AlertConfig, seen: RewardStatistics) -> str | None:
    bound, entropy = config.entropy, seen.entropy
    if bound is None or entropy is None or entropy >= bound:
        return None
    return f"the entropy of its answers is {entropy:.4f} nats a token: the policy hardly tries"


_RULES = (_gap, _length, _spread, _entropy)


class RewardAlerts:
    """Alerts of all reward sources that are raised now."""

    def __init__(self, config: AlertConfig) -> None:
        self._config = config
        self._crossings: dict[tuple[str, int], BandCrossing] = {}

    def judge(self, source: str, seen: RewardStatistics) -> Iterator[str]:
        """Yield the texts of new alerts."""
        figures = (seen.gap, seen.length_correlation, seen.edit_distance, seen.entropy)
        for number, (rule, figure) in enumerate(zip(_RULES, figures, strict=True)):
            text = rule(self._config, seen)
            # A figure without data at this update is not back on the good side.
            if text is None and figure is None:
                continue
            crossing = self._crossings.setdefault((source, number), BandCrossing())
            if crossing.add_update(text is not None) == "begins":
                yield f"{source}: {text}"


KEPT = 20
"""Number of alerts that a monitor receives."""
MOST, DAY_S = 1000, 86_400.0
"""Maximum number of alerts recorded in a day: every checkpoint of a large model is a wait."""
CAUGHT_UP = "SQL has caught up with the journal"
Level = Literal["info", "warning", "error"]


class ProcessWait(NamedTuple):
    """Reason and begin (time.monotonic) of a process's wait."""

    text: str
    since: float


@dataclass
class Incidents:
    """Incidents and waits of processes; each text is reported once a day, all are bounded.

    `write` takes a level, a kind and a text, and puts them into the run's history.
    """

    write: Callable[[Level, str, str], None]
    waits: dict[str, ProcessWait] = field(default_factory=dict)
    """Waits by the names of their processes."""
    newest: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT))
    _told: set[str] = field(default_factory=set)
    _written: int = 0
    _began: float = field(default_factory=time.monotonic)
    _lags: bool = False

    def report(self, kind: str, text: str, level: Level = "warning") -> None:
        """Report an incident, unless its text was reported in this day."""
        if time.monotonic() - self._began >= DAY_S:
            self._began, self._written, self._told = time.monotonic(), 0, set()
        if text in self._told or self._written >= MOST:
            return
        self._told.add(text)
        self._written += 1
        self.newest.append(text)
        self.write(level, kind, text)

    def set_wait(self, name: str, kind: str, text: str) -> None:
        """Set the reason for which a process waits; with an empty text it goes on."""
        before = self.waits.pop(name, None)
        if text:
            self.waits[name] = ProcessWait(text, before.since if before else time.monotonic())
        if text and not before:
            self._told.discard(f"{name} waits: {text}")
            self.report(kind, f"{name} waits: {text}", "error")
        elif before and not text:
            self._told.discard(f"{name} goes on")
            self.report(kind, f"{name} goes on", "info")

    def set_lag(self, text: str) -> None:
        """Set the reason why the database is behind ("": it is not); report changes."""
        before, self._lags = self._lags, bool(text)
        if before != self._lags:
            self._told -= {text, CAUGHT_UP}
        if text:
            self.report("database_behind", text)
        elif before:
            self.report("database_behind", CAUGHT_UP, "info")
