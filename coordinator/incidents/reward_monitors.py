"""What the coordinator watches of each source of rewards, to see when they are hacked.

Comes in: every score of a training answer and every audit, as they arrive; distances within sampled
groups. Goes out: `rewards/SOURCE/...` metrics for every update, queues as gauges, alerts as events.
Promises: a score costs one pass of numpy over its answer's logprobs and a few additions, and what
is kept is bounded. A coordinator that takes over starts with empty statistics.
"""

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from coordinator.incidents.alerts import MeanEstimate, RewardAlerts, RewardStatistics, estimate
from headrace.config.sections.reward import RewardConfig
from headrace.config.sections.reward_monitors import AlertConfig
from headrace.protocol.records.record_types import AuditArrived, RewardArrived
from headrace.protocol.token_spans import Float32
from headrace.trajectory.trajectories import Trajectory


@dataclass
class _UpdateSums:
    """Sums since the last update."""

    answers: int = 0
    failed: int = 0
    seconds: float = 0.0
    surprise: float = 0.0
    tokens: int = 0
    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    distances: list[int] = field(default_factory=list)
    audits: int = 0
    audits_failed: int = 0


class _SourceMonitor:
    """One source: sums since the last update, the newest answers, and how it began."""

    def __init__(self, config: AlertConfig) -> None:
        self.since = _UpdateSums()
        self.answers: deque[tuple[int, float]] = deque(maxlen=config.answers)
        """(sampled tokens, reward) of the newest answers."""
        self.audits: deque[tuple[float, float]] = deque(maxlen=config.answers)
        """(reward, audited reward) of the newest audited ones."""
        self.first_length: MeanEstimate | None = None
        self.first_gap: MeanEstimate | None = None
        self._least_answers = max(2, config.answers // 4)
        self._least_audits = max(2, config.answers // 8)

    def answer(self, length: int, reward: float) -> None:
        """One more good score."""
        self.answers.append((length, reward))
        if self.first_length is None and len(self.answers) >= self._least_answers:
            self.first_length = estimate([tokens for tokens, _ in self.answers])

    def audit(self, reward: float, truth: float) -> None:
        """One more good audit."""
        self.audits.append((reward, truth))
        if self.first_gap is None and len(self.audits) >= self._least_audits:
            self.first_gap = self.gap()

    def gap(self) -> MeanEstimate:
        """Reward minus audited reward of the newest audited answers."""
        return estimate([reward - truth for reward, truth in self.audits])

    def pop_figures(self) -> tuple[dict[str, float], RewardStatistics]:
        """Figures by the last part of their names, and the input of alerts; resets the sums."""
        since, self.since = self.since, _UpdateSums()
        figures = {"count": float(since.answers)}
        if since.answers:
            figures["failed"] = since.failed / since.answers
            figures["seconds"] = since.seconds / since.answers
            figures["length"] = statistics.fmean(since.lengths)
        if since.rewards:
            figures["mean"] = statistics.fmean(since.rewards)
            figures["std"] = statistics.pstdev(since.rewards)
        if since.tokens:
            figures["entropy_estimate"] = since.surprise / since.tokens
        if since.distances:
            figures["edit_distance"] = statistics.fmean(since.distances)
        correlation = _correlation(self.answers)
        if correlation is not None:
            figures["length_correlation"] = correlation
        if since.audits:
            figures["audits"] = float(since.audits)
            figures["audits_failed"] = since.audits_failed / since.audits
        if self.audits:
            figures["audited_mean"] = statistics.fmean(truth for _, truth in self.audits)
            figures["gap"] = self.gap().mean
        enough = len(self.answers) >= self._least_answers
        seen = RewardStatistics(
            gap=self.gap() if self.first_gap else None,
            first_gap=self.first_gap,
            length=estimate([tokens for tokens, _ in self.answers]) if enough else None,
            first_length=self.first_length,
            length_correlation=correlation if enough else None,
            edit_distance=figures.get("edit_distance"),
            entropy=figures.get("entropy_estimate") if enough else None,
        )
        return figures, seen


class RewardMonitors:
    """All sources. `alert` is called with the kind and the text of each alert."""

    def __init__(self, config: RewardConfig, alert: Callable[[str, str], None]) -> None:
        self._sources = {name: _SourceMonitor(config.alerts) for name in config.each()}
        self._alerts = RewardAlerts(config.alerts)
        self._alert = alert
        self.queues: Callable[[], Mapping[str, int]] = dict
        """How many answers each source has to score; `Scoring` says it."""
        self.in_flight: Callable[[], Mapping[str, int]] = dict
        """How many of them reward workers have."""

    def scored(self, trajectory: Trajectory, arrived: RewardArrived) -> None:
        """A score of a training answer is there, good or not."""
        source = self._sources[arrived.source]
        since = source.since
        since.answers += 1
        since.failed += arrived.status != "ok"
        since.seconds += arrived.seconds
        since.lengths.append(trajectory.sampled)
        since.surprise += surprise(trajectory.logprobs)
        since.tokens += trajectory.sampled
        if arrived.reward is not None:
            since.rewards.append(arrived.reward)
            source.answer(trajectory.sampled, arrived.reward)

    def audited(self, source: str, reward: float | None, arrived: AuditArrived) -> None:
        """A second source scored an answer of `source`, which had earned `reward`."""
        watched = self._sources[source]
        watched.since.audits += 1
        watched.since.audits_failed += arrived.status != "ok"
        if reward is not None and arrived.reward is not None:
            watched.audit(reward, arrived.reward)

    def spread(self, source: str, distance: int) -> None:
        """The largest edit distance between two answers of a sampled group."""
        self._sources[source].since.distances.append(distance)

    def at_commit(self) -> dict[str, float]:
        """Metrics of all sources at an update's commit; alerts that it crosses are raised."""
        metrics = self.gauges()
        for name, source in self._sources.items():
            figures, seen = source.pop_figures()
            metrics |= {f"rewards/{name}/{what}": value for what, value in figures.items()}
            for text in self._alerts.judge(name, seen):
                self._alert("reward_alert", text)
        return metrics

    def gauges(self) -> dict[str, float]:
        """Queues by source, and what of them is with workers."""
        counts = {"queue": self.queues(), "in_flight": self.in_flight()}
        return {
            f"rewards/{name}/{what}": float(number)
            for what, numbers in counts.items()
            for name, number in numbers.items()
        }


def surprise(logprobs: Float32) -> float:
    """The sum of negative logprobs, those that are not finite left out. Its mean over answers that
    were sampled from these logprobs is the entropy of an answer, without bias. Inserted tokens have
    a logprob of 0 and count nothing."""
    known = logprobs[np.isfinite(logprobs)]
    return -float(known.sum(dtype=np.float64))


def _correlation(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Pearson's correlation; None where one side does not vary."""
    table = np.array(list(pairs), np.float64).reshape(-1, 2)
    if len(table) < 2:
        return None
    deviations = table - table.mean(axis=0)
    squares = (deviations**2).sum(axis=0)
    if (squares <= 1e-12 * (table**2).sum(axis=0)).any():
        return None
    return float(deviations.prod(axis=1).sum()) / math.sqrt(float(squares.prod()))
