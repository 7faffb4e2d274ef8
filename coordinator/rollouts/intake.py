"""Chunks in: checked, made records, acknowledged once they are on disk.

A chunk is taken when it is the next of a lease that is in force; a duplicate is acknowledged again,
but not while acknowledgements wait for a disk. Where a chunk comes too early its generator is asked
for those before it, which a broken connection may have lost; if they do not come the lease is over.
A chunk of a lease that was taken back or is another generator's, or one that skips a position, is
refused (`message_checks.chunk_problem`) and counted: as moved where another generator got the
trajectory while this one was silent, else as refused, which a healthy generator's never are. Only
chunks that are taken count as progress.
"""

import time

import numpy as np

from coordinator.connections.message_checks import (
    TokenLimits,
    arrival,
    chunk_problem,
    end_record,
    holds_lease,
)
from coordinator.hub import Hub
from coordinator.rollouts.limits import tokens_left
from headrace.protocol.messages.control import ChunkAck, Chunks, Hold, Resend, TrajectoryChunk
from headrace.protocol.records.record_types import TrajectoryStatus
from headrace.trajectory.trajectories import Trajectory

MAX_FAILURES = 3
GAP_S = 2.0
"""Seconds in which a healthy generator sends missing chunks again."""


class ChunkIntake:
    """Intake of chunks, from the wire to the state."""

    def __init__(self, hub: Hub, vocabulary: int) -> None:
        self._hub = hub
        self._limits = TokenLimits(hub.config.task.max_response_length, vocabulary)
        self._gaps: dict[int, tuple[str, TrajectoryChunk, float]] = {}
        """By lease: the generator that was asked for chunks before this one, and the time."""

    async def receive(self, sender: str, message: Chunks) -> list[Trajectory]:
        """Take the valid chunks, and return the trajectories that ended."""
        hub = self._hub
        acked: list[tuple[int, int]] = []
        touched: dict[int, Trajectory] = {}
        early = False
        holds: list[tuple[int, int]] = []
        for chunk in message.chunks:
            trajectory = hub.account.trajectories.get(chunk.trajectory_id)
            lease, versions = hub.leases.of(chunk.trajectory_id), hub.state.versions
            if trajectory is not None and holds_lease(chunk, lease, sender):
                if chunk.chunk_index > trajectory.next_chunk:
                    early |= chunk.lease_id not in self._gaps
                    self._gaps.setdefault(chunk.lease_id, (sender, chunk, time.monotonic()))
                    continue
                self._gaps.pop(chunk.lease_id, None)
            known = chunk.trajectory_id, chunk.chunk_index
            if trajectory is None or chunk.chunk_index < trajectory.next_chunk:
                # A full disk has all come again every few seconds: answers would fill the memory.
                if not hub.recorder.waits_for:
                    acked.append(known)
                continue
            acked.append(known)
            problem = chunk_problem(chunk, trajectory, lease, sender, self._limits, versions)
            if problem:
                self._refuse(sender, chunk, problem)
                if chunk.finish is None:
                    holds.append((chunk.lease_id, -1))
                continue
            self._take(sender, trajectory, chunk)
            touched[chunk.trajectory_id] = trajectory
        hub.settle_windows(touched.values())
        holds += [hold for t in touched.values() if (hold := self._hold(t)) is not None]
        if holds:  # Before the acknowledgement, for which generators wait at borders.
            await hub.send(sender, Hold(leases=holds))
        if early:
            await hub.send(sender, Resend())
        if acked:
            hub.send_after(sender, ChunkAck(acked=acked))
        if touched:
            hub.progress("trajectories")
        return [trajectory for trajectory in touched.values() if trajectory.ended]

    async def expire(self) -> None:
        """End the leases of missing chunks that did not come."""
        limit = time.monotonic() - GAP_S
        for lease_id, (sender, chunk, asked_at) in list(self._gaps.items()):
            if asked_at > limit:
                continue
            del self._gaps[lease_id]
            trajectory = self._hub.account.trajectories.get(chunk.trajectory_id)
            lease = self._hub.leases.of(chunk.trajectory_id)
            if trajectory is not None and holds_lease(chunk, lease, sender):
                index, next_chunk = chunk.chunk_index, trajectory.next_chunk
                problem = f"chunk {index} came, and those from {next_chunk} on never did"
                self._refuse(sender, chunk, problem)
                if (generator := self._hub.peers.generators.get(sender)) is not None:
                    generator.drop_lease(chunk.trajectory_id)
                await self._hub.send(sender, Hold(leases=[(lease_id, -1)]))

    def _refuse(self, sender: str, chunk: TrajectoryChunk, problem: str) -> None:
        """Count a chunk that cannot be taken, and end its lease if that is in force.

        Another lease resumes the tokens acknowledged so far."""
        hub = self._hub
        generator = hub.peers.generators.get(sender)
        if tokens := chunk.token_ids.size:
            moved = generator is not None and chunk.lease_id in generator.moved
            hub.refused_tokens[sender, "moved" if moved else "refused"] += tokens
        if holds_lease(chunk, hub.leases.of(chunk.trajectory_id), sender):
            hub.leases.release(chunk.trajectory_id)
        text = f"trajectory {chunk.trajectory_id}: {problem}"
        hub.rejections.add(sender, "chunk_rejected", text)
        self._release(sender, chunk)

    def _take(self, sender: str, trajectory: Trajectory, chunk: TrajectoryChunk) -> None:
        if not np.isfinite(chunk.logprobs).all():
            versions = sorted({span.version for span in chunk.spans})
            text = (
                f"{sender} sent non-finite behaviour logprobs under weight versions {versions} "
                f"(trajectory {trajectory.trajectory_id}); those tokens are not trained"
            )
            self._hub.incident("error", "non_finite_logprobs", text)
        self._hub.record_event(arrival(sender, chunk))
        self._release(sender, chunk)
        self._end_if_over(trajectory, chunk)

    def _release(self, sender: str, chunk: TrajectoryChunk) -> None:
        generator = self._hub.peers.generators.get(sender)
        if generator and chunk.finish is not None:
            generator.drop_lease(chunk.trajectory_id)

    def _end_if_over(self, trajectory: Trajectory, chunk: TrajectoryChunk) -> None:
        ends: dict[str, TrajectoryStatus] = {"stop": "finished", "length": "truncated"}
        status = ends.get(chunk.finish or "")
        if trajectory.paused:
            status = None  # A turn ended, and the environment answers.
        left = tokens_left(trajectory, self._hub.config)
        full = [name for name, amount in left.items() if amount <= 0]
        if status is None and chunk.finish in ("window", "held") and full:
            status = "truncated"
        if chunk.finish == "failed":
            text = f"trajectory {trajectory.trajectory_id}: {chunk.error or 'no reason given'}"
            self._hub.incident("warning", "generation_failed", text)
            status = "failed" if trajectory.failures >= MAX_FAILURES else None
        if status is not None:
            limit = full[0] if full and self._hub.config.environment is not None else None
            self._hub.record_event(end_record(trajectory, status, chunk.error or limit))

    def _hold(self, trajectory: Trajectory) -> tuple[int, int] | None:
        """Return lease and border of a trajectory that the scheduler stops, or None."""
        lease, scheduler = self._hub.leases.of(trajectory.trajectory_id), self._hub.scheduler
        if lease is None or lease.holding or trajectory.purpose != "train":
            return None
        if scheduler.lockstep or trajectory.open_tokens or scheduler.goes_on(trajectory):
            return None
        lease.holding = True
        return lease.lease_id, trajectory.length
