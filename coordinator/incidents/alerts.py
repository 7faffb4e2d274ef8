"""What a user should know: alerts about rewards, and troubles while they last.

Comes in: what was seen of a source at an update; what the learner says and the recorder waits for.
Goes out: the texts of the alerts that it crosses; incidents for the run's history, lines for its
watchers, and what the run waits for now. Promises: one alert for each crossing, not for each
update; another one only after the figure was back on the good side for a few updates
(`headrace.metrics.health_ranges.BACK`).
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from headrace.config.sections.reward_monitors import AlertConfig
from headrace.metrics.health_ranges import Crossing


class MeanEstimate(NamedTuple):
    """A mean, its standard error, and of how many."""

    mean: float
    error: float
    number: int


def estimate(values: Sequence[float]) -> MeanEstimate:
    """The mean of values as an estimate; of one value nothing is known of its error."""
    number = len(values)
    error = statistics.stdev(values) / math.sqrt(number) if number > 1 else math.inf
    return MeanEstimate(statistics.fmean(values), error, number)


class RewardStatistics(NamedTuple):
    """What was seen of a source; None where there is not enough of it."""

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
    # A rise within the noise of so few audited answers is none.
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


_RULES: tuple[Callable[[AlertConfig, RewardStatistics], str | None], ...] = (
    _gap,
    _length,
    _spread,
    _entropy,
)


class RewardAlerts:
    """Which alerts stand."""

    def __init__(self, config: AlertConfig) -> None:
        self._config = config
        self._crossings: dict[tuple[str, int], Crossing] = {}

    def judge(self, source: str, seen: RewardStatistics) -> Iterator[str]:
        """Texts of the alerts that are new."""
        for number, rule in enumerate(_RULES):
            text = rule(self._config, seen)
            # What was not seen at this update is not back on the good side.
            if text is None and not _knows(number, seen):
                continue
            crossing = self._crossings.setdefault((source, number), Crossing())
            if crossing.see(text is not None) == "begins":
                yield f"{source}: {text}"


def _knows(number: int, seen: RewardStatistics) -> bool:
    """Whether what a rule looks at was seen."""
    figures = (seen.gap, seen.length_correlation, seen.edit_distance, seen.entropy)
    return figures[number] is not None


KEPT = 20
"""Number of alerts that a monitor receives."""
MOST = 1000
"""Maximum number of alerts recorded in a coordinator's life."""
CAUGHT_UP = "SQL has caught up with the journal"
Level = Literal["info", "warning", "error"]


class ProcessWait(NamedTuple):
    """What somebody waits for, since a time of the monotonic clock."""

    text: str
    since: float


@dataclass
class Incidents:
    """The same text is reported once; kept and written texts are bounded.

    `write` takes a level, a kind and a text, and puts them into the run's history.
    """

    write: Callable[[Level, str, str], None]
    waits: dict[str, ProcessWait] = field(default_factory=dict)
    """What each process waits for, by its name."""
    newest: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT))
    _told: set[str] = field(default_factory=set)
    _written: int = 0
    _lags: bool = False

    def report(self, kind: str, text: str, level: Level = "warning") -> None:
        """Something happened."""
        if text in self._told or self._written >= MOST:
            return
        self._told.add(text)
        self._written += 1
        self.newest.append(text)
        self.write(level, kind, text)

    def set_wait(self, name: str, kind: str, text: str) -> None:
        """A process waits for this from now on; for nothing any more where the text is empty."""
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
        """Why the database is behind, empty where it is not; told when it begins and ends."""
        before, self._lags = self._lags, bool(text)
        if before != self._lags:
            self._told -= {text, CAUGHT_UP}
        if text:
            self.report("database_behind", text)
        elif before:
            self.report("database_behind", CAUGHT_UP, "info")
