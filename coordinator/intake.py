"""Chunks in: checked, made records, acknowledged once they are on disk.

A chunk is taken when it is the next of a lease that is in force; a duplicate is acknowledged
again; a chunk of a lease that was taken back or is another generator's, or one that skips a
position, is refused and counted as lost (`values.chunk_problem`). Only what is taken counts as
progress.
"""

import math
import time

from coordinator.hub import Hub
from coordinator.trajectories import Trajectory
from coordinator.values import Limits, chunk_problem, cut, holds_lease
from headrace.protocol.messages import ChunkAck, Chunks, Hold, TrajectoryChunk
from headrace.protocol.records import ChunkArrived, TrajectoryEnded

MAX_FAILURES = 3


class Intake:
    """From the wire to the state."""

    def __init__(self, hub: Hub, vocabulary: int) -> None:
        self._hub = hub
        self._limits = Limits(hub.config.task.max_response_length, vocabulary)
        self.duplicates = 0

    async def receive(self, sender: str, message: Chunks) -> list[Trajectory]:
        """Take what is good; return the trajectories that ended."""
        acked: list[tuple[int, int]] = []
        ended: list[Trajectory] = []
        holds: list[tuple[int, int]] = []
        for chunk in message.chunks:
            trajectory = self._hub.state.trajectories.get(chunk.trajectory_id)
            acked.append((chunk.trajectory_id, chunk.chunk_index))
            if trajectory is None or chunk.chunk_index < trajectory.next_chunk:
                self.duplicates += 1
                continue
            problem = chunk_problem(
                chunk, trajectory, sender, self._limits, self._hub.state.issued_version
            )
            if problem:
                self._hub.lost_tokens += chunk.token_ids.size
                if holds_lease(chunk, trajectory, sender):
                    # The lease cannot be continued: what was acknowledged is kept, and resumed.
                    trajectory.lease_id = None
                self._hub.rejections.add(
                    sender, "chunk_rejected", f"trajectory {chunk.trajectory_id}: {problem}"
                )
                self._release(sender, chunk)
                if chunk.finish is None:
                    holds.append((chunk.lease_id, -1))
                continue
            self._take(sender, trajectory, chunk)
            self._hub.progress()
            if trajectory.ended:
                ended.append(trajectory)
            elif self._must_hold(trajectory, chunk):
                trajectory.holding = True
                holds.append((chunk.lease_id, trajectory.length))
        if holds:
            await self._hub.send(sender, Hold(leases=holds))
        self._hub.recorder.after(lambda: self._acknowledge(sender, acked))
        return ended

    async def _acknowledge(self, sender: str, acked: list[tuple[int, int]]) -> None:
        await self._hub.send(sender, ChunkAck(acked=acked))

    def _take(self, sender: str, trajectory: Trajectory, chunk: TrajectoryChunk) -> None:
        if not all(map(math.isfinite, chunk.logprobs.tolist())):
            versions = sorted({span.version for span in chunk.spans})
            self._hub.incident(
                "error",
                "non_finite_logprobs",
                f"{sender} sent non-finite behaviour logprobs under weight versions {versions} "
                f"(trajectory {trajectory.trajectory_id}); those tokens are not trained",
            )
        self._hub.note(
            ChunkArrived(
                at=time.time(),
                trajectory_id=chunk.trajectory_id,
                lease_id=chunk.lease_id,
                chunk_index=chunk.chunk_index,
                generator=sender,
                start=chunk.start,
                token_ids=chunk.token_ids,
                logprobs=chunk.logprobs,
                spans=chunk.spans,
                finish=chunk.finish,
            )
        )
        if chunk.finish is not None:
            self._release(sender, chunk)
        self._end_if_over(trajectory, chunk)

    def _release(self, sender: str, chunk: TrajectoryChunk) -> None:
        generator = self._hub.peers.generators.get(sender)
        if generator and chunk.finish is not None:
            generator.live.discard(chunk.trajectory_id)

    def _end_if_over(self, trajectory: Trajectory, chunk: TrajectoryChunk) -> None:
        status = {"stop": "finished", "length": "truncated"}.get(chunk.finish or "")
        full = trajectory.length >= self._hub.config.task.max_response_length
        if status is None and chunk.finish in ("window", "held") and full:
            status = "truncated"
        if chunk.finish == "failed":
            self._hub.incident(
                "warning",
                "generation_failed",
                f"trajectory {trajectory.trajectory_id}: {chunk.error or 'no reason given'}",
            )
            status = "failed" if trajectory.failures >= MAX_FAILURES else None
        if status is not None:
            self._hub.note(
                TrajectoryEnded(
                    at=time.time(),
                    trajectory_id=trajectory.trajectory_id,
                    status=status,  # type: ignore[arg-type]
                    length=trajectory.length,
                    error=cut(chunk.error),
                )
            )

    def _must_hold(self, trajectory: Trajectory, chunk: TrajectoryChunk) -> bool:
        """A streaming trajectory at a window border asks the bound whether it may go on."""
        if trajectory.purpose == "eval" or self._hub.scheduler.lockstep:
            return False
        if chunk.finish is not None or trajectory.holding:
            return False
        at_border = trajectory.length == trajectory.open_start
        if not at_border:
            trajectory.window_open = True
            return False
        return not self._hub.scheduler.goes_on(trajectory)
