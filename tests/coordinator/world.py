"""A scripted world for the coordinator's pure parts: trajectories of given lengths, no sockets."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from coordinator.dispatch.leases import LeaseTable
from coordinator.line_rewards.line_ends import LineTokens
from coordinator.line_rewards.line_scoring import LineScoring
from coordinator.persistence.state import State
from coordinator.scheduling.base import Scheduler
from coordinator.scheduling.group_filter import GroupFilter
from coordinator.scheduling.streaming import StreamingScheduler
from coordinator.scheduling.synchronous import SynchronousScheduler
from coordinator.scheduling.window_lifecycle import WindowLifecycle
from coordinator.training.batches import PreparedBatch, prepare
from headrace.config.sections.run import RunConfig
from headrace.config.validation.batch_rules import batch_rules
from headrace.protocol.messages.batches import PolicyWindow, ValueTrajectory
from headrace.protocol.records.record_types import (
    BatchReturned,
    BatchTaken,
    ChunkArrived,
    GroupIssued,
    LeaseIssued,
    LineageBegan,
    MaskedRun,
    Record,
    Restarted,
    RewardArrived,
    TrajectoryEnded,
    UpdateCommitted,
    VersionIssued,
    VersionPublished,
)
from headrace.protocol.token_spans import Span, Streams
from headrace.trajectory.account import Account
from headrace.trajectory.trajectories import Trajectory


def make_config(**sections: Any) -> RunConfig:
    """A configuration with a value model; sections override."""
    base: dict[str, Any] = {
        "model": {"path": "nowhere"},
        "task": {"kind": "chain_sums", "max_prompt_length": 8, "max_response_length": 12},
        "algorithm": {"advantages": {"kind": "egae"}, "value": {}},
        "schedule": {"mode": "windowed", "window": 4, "batch_windows": 4},
    }
    for name, values in sections.items():
        base[name] = base.get(name, {}) | values
    return RunConfig.model_validate(base)


def policy_windows(prepared: PreparedBatch) -> list[PolicyWindow]:
    """All windows of a batch."""
    return [w for shards in prepared.parts for shard in shards for w in shard.windows]


def value_trajectories(prepared: PreparedBatch) -> list[ValueTrajectory]:
    """All value trajectories of a batch."""
    return [v for shards in prepared.parts for shard in shards for v in shard.values]


def counts(runs: Iterable[MaskedRun]) -> dict[str, int]:
    """Masked tokens by reason."""
    found: dict[str, int] = {}
    for run in runs:
        found[run.reason] = found.get(run.reason, 0) + run.tokens
    return found


class World:
    """State, leases and scheduler with a generator and a learner played by hand; keeps every
    record."""

    def __init__(
        self,
        config: RunConfig,
        line_tokens: LineTokens | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self._line_tokens, self._clock = line_tokens, clock
        self.records: list[Record] = []
        self._build(State(config))
        self.publish(0, update=0)

    def _build(self, state: State) -> None:
        self.state = state
        self.leases = LeaseTable(state.account)
        self.lines: LineScoring | None = None
        if self._line_tokens is not None:
            tokens, clock = self._line_tokens, self._clock
            self.lines = LineScoring(self.config, state.account, tokens, clock)
        self.settlement = WindowLifecycle(self.config, state.account, self.lines)
        kind = (
            StreamingScheduler if self.config.schedule.mode == "streaming" else SynchronousScheduler
        )
        self.scheduler: Scheduler = kind(self.config, state, self.leases)
        self.admission = GroupFilter(state.account)

    @property
    def account(self) -> Account:
        """Trajectories, windows, queues and the ledger."""
        return self.state.account

    def note(self, record: Record) -> None:
        """Apply and keep."""
        self.state.apply(record)
        self.leases.apply(record)
        self.records.append(record)

    def replayed(self) -> State:
        """What a replay of all records gives."""
        state = State(self.config)
        for record in self.records:
            state.apply(record)
        return state

    def restart(self) -> None:
        """The coordinator dies, and another one takes over."""
        self._build(self.replayed())
        self.note(Restarted(at=0.0, next_lease=self.state.next_lease + 1000))
        self.leases.restore(self.state.leases)
        self.scheduler.resume()
        self.settle(list(self.account.active.values()))

    def settle(self, trajectories: Iterable[Trajectory]) -> None:
        """Note what follows."""
        for record in self.settlement.next_records(trajectories):
            self.note(record)

    def publish(self, version: int, *, update: int | None = None) -> None:
        """Weights get a version."""
        self.note(VersionIssued(at=0.0, version=version))
        self.note(
            VersionPublished(
                at=0.0,
                version=version,
                lineage=self.state.lineage,
                update=self.state.update if update is None else update,
                num_bytes=0,
            )
        )

    # -- generation -------------------------------------------------------------------------------

    def running(self) -> list[Trajectory]:
        """Training trajectories that want tokens."""
        return [t for t in self.account.active.values() if t.status == "running"]

    def leased(self) -> list[Trajectory]:
        """Those of them with a lease."""
        return [t for t in self.running() if self.leases.of(t.trajectory_id)]

    def issue(self, purpose: str = "train") -> list[Trajectory]:
        """One new group."""
        state = self.state
        first = state.next_trajectory
        ids = list(range(first, first + self.config.schedule.num_generations))
        self.note(
            GroupIssued(
                at=time.time(),
                group_id=state.next_group,
                prompt_id=f"p{state.next_group}",
                position=state.position,
                purpose=purpose,  # type: ignore[arg-type]
                prompt="p",
                answer="a",
                info="{}",
                prompt_ids=np.array([1, 2], np.int32),
                trajectory_ids=ids,
                seeds=ids,
            )
        )
        trajectories = [self.account.trajectories[i] for i in ids]
        if purpose == "train":
            self.scheduler.issued(trajectories)
        return trajectories

    def lease(self, trajectory: Trajectory) -> None:
        """Give it to the generator."""
        self.note(
            LeaseIssued(
                at=time.time(),
                lease_id=self.state.next_lease,
                trajectory_id=trajectory.trajectory_id,
                generator="g",
                start=trajectory.length,
                version=self.state.versions.current,
            )
        )

    def fill(self, free: int) -> list[Trajectory]:
        """Lease what the scheduler wants leased."""
        if self.scheduler.selector.is_behind():
            return []
        chosen, groups = self.scheduler.next_leases(free)
        for _ in range(groups):
            chosen.extend(self.issue())
        for trajectory in chosen[:free]:
            self.lease(trajectory)
        return chosen[:free]

    def chunk(
        self,
        trajectory: Trajectory,
        tokens: int,
        finish: str | None = None,
        *,
        spans: list[Span] | None = None,
        streams: Streams | None = None,
    ) -> None:
        """Tokens arrive."""
        start = trajectory.length
        if spans is None:
            version = self.state.versions.current
            spans = [Span(version, start, start + tokens)] if tokens else []
        lease = self.leases.of(trajectory.trajectory_id)
        self.note(
            ChunkArrived(
                at=time.time(),
                trajectory_id=trajectory.trajectory_id,
                lease_id=lease.lease_id if lease else 0,
                chunk_index=trajectory.next_chunk,
                generator="g",
                start=start,
                token_ids=np.arange(start, start + tokens, dtype=np.int32),
                logprobs=np.full(tokens, -0.5, np.float32),
                spans=spans,
                finish=finish,
                streams=streams,
            )
        )
        if finish in ("stop", "length"):
            status = "finished" if finish == "stop" else "truncated"
            self.end(trajectory, status)
        else:
            self.settle([trajectory])

    def end(self, trajectory: Trajectory, status: str) -> None:
        """No more tokens."""
        self.note(
            TrajectoryEnded(
                at=time.time(),
                trajectory_id=trajectory.trajectory_id,
                status=status,  # type: ignore[arg-type]
                length=trajectory.length,
            )
        )
        self.settle([trajectory])

    def must_hold(self, trajectory: Trajectory) -> bool:
        """At a window border: the bound says no."""
        at_border = not trajectory.open_tokens
        return at_border and not self.scheduler.goes_on(trajectory)

    def reward(
        self, trajectory: Trajectory, reward: float | None = 1.0, *, correct: bool | None = None
    ) -> None:
        """A score arrives; None: the scoring failed. `correct` where it is not `reward > 0`."""
        if correct is None and reward is not None:
            correct = reward > 0
        self.note(
            RewardArrived(
                at=time.time(),
                trajectory_id=trajectory.trajectory_id,
                status="ok" if reward is not None else "timeout",
                reward=reward,
                correct=correct,
            )
        )
        self.settle([trajectory])
        if self.config.algorithm.admit != "all":
            for drop in self.admission.judge([trajectory], warming=self.scheduler.warming):
                self.note(drop)

    # -- updates ----------------------------------------------------------------------------------

    def take(self, *, ranks: int = 1, max_bytes: int = 1 << 20) -> PreparedBatch | None:
        """The next batch, taken."""
        selection = self.scheduler.next_batch()
        if selection is None:
            return None
        rules = batch_rules(self.config)
        prepared = prepare(
            selection,
            self.state,
            rules,
            ranks=ranks,
            max_bytes=max_bytes,
            batch_id=len(self.records),
        )
        self.note(prepared.taken)
        return prepared

    def taken(self) -> BatchTaken:
        """The batch that is out."""
        assert self.account.taken is not None
        return self.account.taken

    def commit(
        self, *, skipped: str | None = None, publish: bool = True, explained: float | None = None
    ) -> None:
        """The learner's update is in."""
        taken = self.taken()
        self.note(
            UpdateCommitted(
                at=time.time(),
                update=taken.update,
                lineage=self.state.lineage,
                version=self.state.versions.current,
                train_time_s=0.0,
                trained_tokens=0,
                window_ids=[w.window_id for w in taken.windows],
                value_trajectories=taken.value_trajectories,
                metrics={} if explained is None else {"critic/vf_explained_var": explained},
                diagnostics=[],
                skipped=skipped,
                batch_id=taken.batch_id,
            )
        )
        if not taken.windows:
            for record in self.settlement.drop_for_warmup(taken.value_trajectories):
                self.note(record)
        self.scheduler.committed(None)
        if publish:
            self.publish(self.state.versions.issued + 1)

    def give_back(self) -> None:
        """The learner died with the batch."""
        taken = self.taken()
        self.note(
            BatchReturned(
                at=0.0,
                update=taken.update,
                lineage=taken.lineage,
                reason="killed",
                window_ids=[w.window_id for w in taken.windows],
                value_trajectories=taken.value_trajectories,
                batch_id=taken.batch_id,
            )
        )

    def roll_back(self, update: int) -> None:
        """A learner with the weights after `update` takes over."""
        if self.account.taken is not None:
            self.give_back()
        undone = [batch for u, batch in self.account.committed.items() if u > update]
        self.note(
            LineageBegan(
                at=0.0,
                lineage=self.state.lineage + 1,
                update=update,
                version=self.state.versions.issued + 1,
                reason="test",
                window_ids=[w.window_id for batch in undone for w in batch.windows],
                value_trajectories=[t for batch in undone for t in batch.value_trajectories],
            )
        )
        self.scheduler.restart()
        self.publish(self.state.versions.issued + 1)
