"""Monitors of each reward source, which show when a reward is hacked.

In: every score of a training answer and every audit, as they arrive; distances within sampled
groups. Out: `rewards/SOURCE/...` metrics for every update, queues as gauges, alerts as events.
Promises: a score costs one pass of numpy over its answer's logprobs and a few additions, and memory
is bounded. A coordinator that takes over starts with empty statistics.
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
    """Sums since the last update; `lengths`: sampled tokens of each answer."""

    failed: int = 0
    seconds: float = 0.0
    surprises: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    distances: list[int] = field(default_factory=list)
    audits: int = 0
    audits_failed: int = 0


class _SourceMonitor:
    """Monitor of one source: sums since the last update, newest and first answers."""

    def __init__(self, config: AlertConfig) -> None:
        self.since = _UpdateSums()
        self.answers: deque[tuple[int, float]] = deque(maxlen=config.answers)
        """Sampled tokens and reward of the newest answers."""
        self.audits: deque[tuple[float, float]] = deque(maxlen=config.answers)
        """Reward and audited reward of the newest audited answers."""
        self.first_length: MeanEstimate | None = None
        self.first_gap: MeanEstimate | None = None
        self._least_answers = max(2, config.answers // 4)
        self._scored, self._first_at = 0, 2 * config.answers
        self._least_audits = max(2, config.answers // 8)

    def answer(self, length: int, reward: float) -> None:
        """Add a good score."""
        self.answers.append((length, reward))
        self._scored += 1
        # Of all that a stream begins with short answers end first: length begins behind them.
        if self._scored == self._first_at:
            self.first_length = estimate([tokens for tokens, _ in self.answers])

    def audit(self, reward: float, truth: float) -> None:
        """Add a good audit."""
        self.audits.append((reward, truth))
        if self.first_gap is None and len(self.audits) >= self._least_audits:
            self.first_gap = self.gap()

    def gap(self) -> MeanEstimate:
        """Return reward minus audited reward of the newest audited answers."""
        return estimate([reward - truth for reward, truth in self.audits])

    def pop_figures(self) -> tuple[dict[str, float], RewardStatistics]:
        """Return figures by the last part of their names, and alert input; reset the sums."""
        since, self.since = self.since, _UpdateSums()
        answers, tokens = len(since.lengths), sum(since.lengths)
        figures = {"count": float(answers)}
        if answers:
            figures["failed"] = since.failed / answers
            figures["seconds"] = since.seconds / answers
            figures["length"] = statistics.fmean(since.lengths)
        if since.rewards:
            figures["mean"] = statistics.fmean(since.rewards)
            figures["std"] = statistics.pstdev(since.rewards)
        if tokens:
            figures["entropy_estimate"] = math.fsum(since.surprises) / tokens
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
    """Monitors of all sources. `alert` is called with each alert's kind and text."""

    def __init__(self, config: RewardConfig, alert: Callable[[str, str], None]) -> None:
        self._sources = {name: _SourceMonitor(config.alerts) for name in config.each()}
        self._alerts = RewardAlerts(config.alerts)
        self._alert = alert
        self.queues: Callable[[], Mapping[str, int]] = dict
        """Number of answers that each source has to score; `Scoring` sets both."""
        self.in_flight: Callable[[], Mapping[str, int]] = dict
        """Number of answers that reward workers have, by source."""

    def scored(self, trajectory: Trajectory, arrived: RewardArrived) -> None:
        """Add a score of a training answer, good or not."""
        source = self._sources[arrived.source]
        since = source.since
        since.failed += arrived.status != "ok"
        since.seconds += arrived.seconds
        since.lengths.append(trajectory.sampled)
        since.surprises.append(surprise(trajectory.logprobs))
        if arrived.reward is not None:
            since.rewards.append(arrived.reward)
            source.answer(trajectory.sampled, arrived.reward)

    def audited(self, source: str, reward: float | None, arrived: AuditArrived) -> None:
        """Add an audit of an answer of `source` that earned `reward`."""
        watched = self._sources[source]
        watched.since.audits += 1
        watched.since.audits_failed += arrived.status != "ok"
        if reward is not None and arrived.reward is not None:
            watched.audit(reward, arrived.reward)

    def spread(self, source: str, distance: int) -> None:
        """Add the largest edit distance between two answers of a sampled group."""
        self._sources[source].since.distances.append(distance)

    def at_commit(self) -> dict[str, float]:
        """Return metrics of all sources at an update's commit, and raise new alerts."""
        metrics = self.gauges()
        for name, source in self._sources.items():
            figures, seen = source.pop_figures()
            metrics |= {f"rewards/{name}/{what}": value for what, value in figures.items()}
            for text in self._alerts.judge(name, seen):
                self._alert("reward_alert", text)
        return metrics

    def gauges(self) -> dict[str, float]:
        """Return the queue lengths by source, and the requests in flight."""
        counts = {"queue": self.queues(), "in_flight": self.in_flight()}
        return {
            f"rewards/{name}/{what}": float(number)
            for what, numbers in counts.items()
            for name, number in numbers.items()
        }


def surprise(logprobs: Float32) -> float:
    """Return the sum of the finite negative logprobs.

    Its mean over answers that were sampled from these logprobs is the entropy of an answer, without
    bias. Inserted tokens have a logprob of 0 and count nothing."""
    return -float(logprobs[np.isfinite(logprobs)].sum(dtype=np.float64))


def _correlation(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Return Pearson's correlation, whatever their order; None where one side does not vary."""
    table = np.array(sorted(pairs), np.float64).reshape(-1, 2)
    if len(table) < 2:
        return None
    deviations = table - table.mean(axis=0)
    squares = (deviations**2).sum(axis=0)
    if (squares <= 1e-12 * (table**2).sum(axis=0)).any():
        return None
    return float(deviations.prod(axis=1).sum()) / math.sqrt(float(squares.prod()))
