"""Metrics of the coordinator: ledger, lengths, rewards, rates, waits.

In: the state and the trajectories that ended since the last update. Out: metrics by name (see
headrace.metrics.registry), for every committed update and about once a second in between.
"""

import os
import socket
import statistics
import time
from collections import Counter
from typing import NamedTuple

from coordinator.dispatch.mixture import batch_shares
from coordinator.hub import Hub
from coordinator.training.host_use import HostUsage
from headrace.protocol.fields import Metric
from headrace.protocol.messages.control import GeneratorReport
from headrace.protocol.records.record_types import BatchTaken
from headrace.trajectory.account import Account
from headrace.trajectory.token_ledger import Ledger
from headrace.trajectory.trajectories import Trajectory
from headrace.trajectory.windows import Window

LOOK_EVERY_S = 5.0
"""Seconds between two measurements of all processes of the host."""
COORDINATOR = "coordinator"


class _TokenTotals(NamedTuple):
    """Token numbers of the ledger at a time (time.monotonic); `trained` of all lineages."""

    at: float
    generated: int
    trained: int
    stale: int


def _totals(ledger: Ledger) -> _TokenTotals:
    trained = ledger.accounts["trained_policy"] + ledger.abandoned
    return _TokenTotals(time.monotonic(), ledger.generated, trained, ledger.dropped["stale"])


class Gauges:
    """Counters and gauges between two updates."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._arrived: list[int] = []
        self._idle_before = 0.0
        self._last = _TokenTotals(time.monotonic(), 0, 0, 0)
        """Totals at the last commit, or when training began or went on."""
        self._reports: dict[str, GeneratorReport] = {}
        """Last report of each generator since training began or went on."""
        self._idle_s = self._whole_s = 0.0
        """Seconds of generators in training: idle ones, and all."""
        self.latest: dict[str, float] = {}
        self.carried: dict[str, float] = {}
        """Figures that go with the next commit, or the run's end."""
        self._host_use = HostUsage(hub.state.cpu_s)
        self._cpu_seen: dict[int, float] = {}
        self._used: dict[str, float] = {}
        self._looked_at = float("-inf")

    def scored(self, trajectory: Trajectory) -> None:
        """Count a training trajectory that has its reward."""
        self._arrived.append(trajectory.sampled)

    def carry(self, figures: dict[str, float]) -> None:
        """Add to `carried`."""
        self.carried |= figures

    def at_dispatch(self, taken: BatchTaken) -> dict[str, float]:
        """Return metrics of a batch that is sent, and of the scheduler."""
        account, idle = self._hub.account, self._hub.clock.idle()
        metrics = {
            "schedule/batch_windows": float(len(taken.windows)),
            "schedule/ready_windows": float(len(account.ready)),
            "schedule/in_play": float(self._hub.scheduler.in_play()),
            "schedule/bound": float(self._hub.scheduler.bound),
            "timing_s/wait_for_batch": idle - self._idle_before,
        }
        self._idle_before = idle
        windows = [account.window(window.window_id) for window in taken.windows]
        ending = [account.trajectories[w.trajectory_id] for w in windows if w.final]
        if windows:
            metrics["schedule/unfinished_share"] = (len(windows) - len(ending)) / len(windows)
        else:
            ending = [account.trajectories[i] for i in taken.value_trajectories]
        if self._hub.config.task.kind == "mixture":
            metrics |= batch_shares(self._hub.config.task, account, windows, ending)
        if self._hub.lines is not None:
            metrics |= _process_rewards(account, windows)
        return metrics | _outcomes(ending)

    def at_commit(self, metrics: dict[str, Metric]) -> dict[str, float]:
        """Return the coordinator's metrics at an update's commit, and reset the counters."""
        own = self._hub.account.ledger.as_metrics() | self._rates() | self.idle_shares()
        own |= self._hub.monitors.at_commit() | self._cpu()
        if self._arrived:
            own["rollout/finished_length"] = statistics.fmean(self._arrived)
        own |= self.carried
        self._arrived, self.carried = [], {}
        plain = {name: value for name, value in metrics.items() if isinstance(value, float)}
        self.latest = self.latest | plain | own
        return own

    def _rates(self) -> dict[str, float]:
        last, now = self._last, _totals(self._hub.account.ledger)
        self._last = now
        seconds = max(now.at - last.at, 1e-9)
        generated = now.generated - last.generated
        rates = {
            "perf/generated_tokens_per_s": generated / seconds,
            "perf/trained_tokens_per_s": (now.trained - last.trained) / seconds,
        }
        if generated > 0:
            dropped = max(0, now.stale - last.stale)
            rates["staleness/dropped_share"] = min(1.0, dropped / generated)
        return rates

    def mark_training(self) -> None:
        """Count rates and generators' idle time from now on: training begins or goes on."""
        self._last = _totals(self._hub.account.ledger)
        self._reports.clear()

    def reported(self, name: str, report: GeneratorReport) -> None:
        """Add a generator's work and waits between two reports of training.

        Evaluations, and the second around each, do not count."""
        if self._hub.clock.running:
            before = self._reports.get(name)
            if before is not None and before.idle_s <= report.idle_s:
                self._idle_s += report.idle_s - before.idle_s
                self._whole_s += _seconds(report) - _seconds(before)
            self._reports[name] = report

    def idle_shares(self) -> dict[str, float]:
        """Return the shares of training time in which learner and generators were idle."""
        clock = self._hub.clock
        return {
            "idle/learner": clock.idle() / clock.own() if clock.own() > 0 else 0.0,
            "idle/generator": self._idle_s / self._whole_s if self._whole_s > 0 else 0.0,
        }

    def _use(self) -> dict[str, float]:
        """Return memory, CPU and GPU use of this host's processes in the last seconds."""
        now, host = time.monotonic(), socket.gethostname()[:255]
        if now - self._looked_at >= LOOK_EVERY_S:
            peers = self._hub.peers
            pids = {
                name: peer.hello.pid
                for name, peer in peers.everyone()
                if name not in peers.monitors and peer.hello.host == host
            }
            pids[COORDINATOR] = os.getpid()
            sizes, gpus = self._host_use.find(pids.values()), self._host_use.gpus()
            before, self._cpu_seen = self._cpu_seen, self._host_use.seconds()
            rate = {
                pid: (self._cpu_seen[pid] - before[pid]) / (now - self._looked_at)
                for pid in before.keys() & self._cpu_seen.keys()
            }
            self._looked_at = now
            self._used = {
                f"{what}/{name}": float(of[pid])
                for what, of in (("memory", sizes), ("cpu", rate), ("gpu", gpus))
                for name, pid in pids.items()
                if pid in of
            }
        return self._used

    def _cpu(self) -> dict[str, float]:
        """Return the CPU seconds of these processes so far."""
        seconds = self._host_use.cpu_s()
        return {} if seconds is None else {"perf/cpu_s": seconds}

    def now(self, live: int, scoring: int) -> dict[str, float]:
        """Return the gauges between updates."""
        account, generators = self._hub.account, self._hub.peers.generators
        return (
            self._hub.account.ledger.as_metrics()
            | self.idle_shares()
            | {f"heartbeat/{name}": age for name, age in self._hub.peers.heard().items()}
            | self._use()
            | self._cpu()
            | self._hub.monitors.gauges()
            | {
                "transport/rejected": float(self._hub.rejections.total),
                "schedule/live": float(live),
                "schedule/ready_windows": float(len(account.ready)),
                "schedule/in_play": float(self._hub.scheduler.in_play()),
                "schedule/value_waiting": float(len(account.values)),
                "schedule/scoring": float(scoring),
                "schedule/learner_busy": float(account.taken is not None),
                "schedule/held": float(len(self._hub.leases.border.waits)),
                "schedule/paused": float(len(self._hub.leases.paused)),
                "weights/slowest_loaded": float(
                    min((g.loaded for g in generators.values()), default=-1)
                ),
            }
            | _prefill([g.report for g in generators.values() if g.report is not None])
        )


def _prefill(reports: list[GeneratorReport]) -> dict[str, float]:
    """Return the prompt and prefix tokens computed per sampled token, and the preemptions."""
    sampled = sum(report.tokens for report in reports)
    computed = sum(report.prefill_tokens for report in reports)
    preempted = sum(report.preempted for report in reports)
    if not sampled:
        return {}
    return {"perf/prefill_per_token": computed / sampled, "perf/preempted": float(preempted)}


def _seconds(report: GeneratorReport) -> float:
    return report.idle_s + report.busy_s + report.pause_s


def _process_rewards(account: Account, windows: list[Window]) -> dict[str, float]:
    """Return numbers of early rewarded tokens, and of lines without scores."""
    counts = Counter(f"reward/lines_{window.lines}" for window in windows)
    tokens = unfinished = 0
    for window in windows:
        trajectory = account.trajectories[window.trajectory_id]
        last = trajectory.last_sampled if trajectory.ended else trajectory.length
        earned = {
            reward.position
            for reward in trajectory.rewards
            if window.start <= reward.position < min(window.end, last) and reward.value
        }
        tokens += len(earned)
        unfinished += len(earned) if not window.final else 0
    return {
        "reward/process_tokens": float(tokens),
        "reward/process_unfinished": float(unfinished),
        **{name: float(counts[name]) for name in ("reward/lines_late", "reward/lines_failed")},
    }


def _outcomes(trajectories: list[Trajectory]) -> dict[str, float]:
    """Return lengths and rewards of the trajectories that end in a batch."""
    if not trajectories:
        return {}
    lengths = [t.sampled for t in trajectories]
    played = [t for t in trajectories if t.steps]
    episodes: dict[str, float] = {}
    if played:
        steps = [step for t in played for step in t.steps]
        episodes["environment/turns"] = statistics.fmean(t.steps[-1].turn for t in played)
        found: dict[str, list[float]] = {}
        for name, value in (pair for step in steps for pair in step.metrics.items()):
            found.setdefault(f"environment/{name}", []).append(value)
        # Of the steps that have it.
        episodes |= {name: statistics.fmean(values) for name, values in found.items()}
        episodes["environment/step_s"] = statistics.fmean(step.seconds for step in steps)
    rewards = [t.reward for t in trajectories if t.reward is not None]
    return episodes | {
        "response_length/mean": statistics.fmean(lengths),
        "response_length/max": float(max(lengths)),
        "response_length/min": float(min(lengths)),
        "response_length/clip_ratio": statistics.fmean(
            t.status == "truncated" for t in trajectories
        ),
        "reward/mean": statistics.fmean(rewards),
        "reward/std": statistics.pstdev(rewards),
        "reward/max": max(rewards),
        "reward/min": min(rewards),
    }
