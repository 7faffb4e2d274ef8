"""A scripted world for the coordinator's pure parts: trajectories of given lengths, no sockets."""

import time
from typing import Any

import numpy as np

from coordinator.admission import Admission
from coordinator.batches import Prepared, prepare
from coordinator.schedule import Scheduler
from coordinator.state import State
from coordinator.trajectories import Trajectory
from headrace.config.run import RunConfig
from headrace.protocol.messages import Span
from headrace.protocol.records import (
    ChunkArrived,
    GroupIssued,
    LeaseIssued,
    Record,
    RewardArrived,
    TrajectoryEnded,
    UpdateCommitted,
    VersionPublished,
)


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


class World:
    """State and scheduler with a generator and a learner played by hand; keeps every record."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.state = State(config)
        self.scheduler = Scheduler(config, self.state)
        self.admission = Admission(self.state)
        self.records: list[Record] = []
        self.note(VersionPublished(at=0.0, version=0, lineage=0, update=0, num_bytes=0))

    def note(self, record: Record) -> None:
        """Apply and keep."""
        self.state.apply(record)
        self.records.append(record)

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
        trajectories = [state.trajectories[i] for i in ids]
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
                version=self.state.version,
            )
        )

    def fill(self, free: int) -> list[Trajectory]:
        """Lease what the scheduler wants leased."""
        chosen, groups = self.scheduler.next_leases(free)
        for _ in range(groups):
            chosen.extend(self.issue())
        for trajectory in chosen[:free]:
            self.lease(trajectory)
        return chosen[:free]

    def chunk(self, trajectory: Trajectory, tokens: int, finish: str | None = None) -> None:
        """Tokens arrive."""
        start = trajectory.length
        spans = [Span(self.state.version, start, start + tokens)] if tokens else []
        self.note(
            ChunkArrived(
                at=time.time(),
                trajectory_id=trajectory.trajectory_id,
                lease_id=trajectory.lease_id or 0,
                chunk_index=trajectory.next_chunk,
                generator="g",
                start=start,
                token_ids=np.arange(start, start + tokens, dtype=np.int32),
                logprobs=np.full(tokens, -0.5, np.float32),
                spans=spans,
                finish=finish,
            )
        )
        if finish in ("stop", "length"):
            status = "finished" if finish == "stop" else "truncated"
            self.note(
                TrajectoryEnded(
                    at=time.time(),
                    trajectory_id=trajectory.trajectory_id,
                    status=status,  # type: ignore[arg-type]
                    length=trajectory.length,
                )
            )

    def must_hold(self, trajectory: Trajectory) -> bool:
        """At a window border: the bound says no."""
        at_border = trajectory.length == trajectory.open_start
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
        if self.config.algorithm.admit != "all":
            for drop in list(self.admission.judge([trajectory])):
                self.note(drop)

    def take(self) -> Prepared | None:
        """The next batch, taken."""
        selection = self.scheduler.next_batch()
        if selection is None:
            return None
        prepared = prepare(selection, self.state, self.config)
        self.note(prepared.taken)
        return prepared

    def commit(self, *, skipped: str | None = None, publish: bool = True) -> None:
        """The learner's update is in."""
        assert self.state.taken is not None
        update = self.state.taken.update
        self.note(
            UpdateCommitted(
                at=time.time(),
                update=update,
                lineage=self.state.lineage,
                version=self.state.version,
                train_time_s=0.0,
                trained_tokens=0,
                metrics={},
                diagnostics=[],
                skipped=skipped,
            )
        )
        self.scheduler.committed(None)
        if publish:
            self.note(
                VersionPublished(
                    at=time.time(),
                    version=self.state.issued_version + 1,
                    lineage=self.state.lineage,
                    update=update,
                    num_bytes=0,
                )
            )
