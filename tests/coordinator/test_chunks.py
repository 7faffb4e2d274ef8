"""One chunk or many: how a generator cuts its messages is nothing that the learner sees."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.messages import control as m
from headrace.protocol.messages.batches import Shard
from headrace.protocol.records.record_types import ChunkArrived
from headrace.protocol.token_spans import Span
from headrace.protocol.transport.codec import message_codec
from tests.coordinator.peers import (
    CoordinatorProcess,
    ScriptedGenerator,
    ScriptedLearner,
    ScriptedPeer,
    ScriptedReward,
)
from tests.coordinator.test_loop import run_config
from tests.coordinator.world import World, make_config

VERSIONS = 5


def encoded(shard: Shard) -> list[bytes]:
    """As on the wire."""
    part = m.BatchPart(batch_id=0, rank=0, index=0, shard=shard)
    return message_codec(max_bytes=1 << 20).encode(part)


def deliver(lengths: list[int], cuts: list[set[int]], pace: int) -> list[list[list[bytes]]]:
    """Batches made of responses that arrive in pieces; every `pace` tokens new weights sampled. Of
    tokens those of the first versions are too old, and the last of each cut window is at a cut."""
    schedule = {"mode": "streaming", "max_staleness": 3, "batch_windows": 4}
    advantages = {"kind": "egae", "boundary_mask": 1}
    world = World(make_config(schedule=schedule, algorithm={"advantages": advantages}))
    for version in range(1, VERSIONS + 1):
        world.publish(version, update=version)
    world.state.update = VERSIONS
    for length, inside in zip(lengths, cuts, strict=True):
        (trajectory,) = world.issue()
        world.lease(trajectory)
        borders = [0, *sorted(c for c in inside if c < length), length]
        for start, end in itertools.pairwise(borders):
            versions = np.minimum(np.arange(start, end) // pace, VERSIONS)
            spans = [
                Span(int(v), start + int(at[0]), start + int(at[-1]) + 1)
                for v in np.unique(versions)
                for at in [np.flatnonzero(versions == v)]
            ]
            positions = np.arange(start, end) + 100 * trajectory.trajectory_id
            world.note(
                ChunkArrived(
                    at=0.0,
                    trajectory_id=trajectory.trajectory_id,
                    lease_id=0,
                    chunk_index=trajectory.next_chunk,
                    generator="g",
                    start=start,
                    token_ids=positions.astype(np.int32),
                    logprobs=(-0.01 * positions).astype(np.float32),
                    spans=spans,
                    finish="stop" if end == length else None,
                )
            )
            if end < length:
                world.settle([trajectory])
        world.end(trajectory, "finished")
        world.reward(trajectory, float(length % 2))
    batches = []
    while (prepared := world.take()) is not None:
        batches.append([encoded(shard) for shard in prepared.parts[0]])
        world.commit()
    return batches


@given(
    st.lists(
        st.tuples(st.integers(1, 12), st.sets(st.integers(1, 11))), min_size=4, max_size=9
    ),
    st.integers(1, 5),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_however_a_response_is_cut_the_batches_are_the_same(
    responses: list[tuple[int, set[int]]], pace: int
) -> None:
    """Windows, masks, version spans and value trajectories, to the byte; a chunk may hold several
    windows and several weight versions."""
    lengths = [length for length, _ in responses]
    whole = deliver(lengths, [set() for _ in responses], pace)
    assert whole
    assert deliver(lengths, [cut for _, cut in responses], pace) == whole
    assert deliver(lengths, [set(range(12)) for _ in responses], pace) == whole


class PiecewiseGenerator(ScriptedGenerator):
    """Sends what a lease gives in chunks of so many tokens, each in a message of its own."""

    piece = 1

    async def answer(self, message: m.Message) -> None:
        if not isinstance(message, m.Leases):
            await super().answer(message)
            return
        for lease in message.leases:
            whole = super().generate(lease)
            start, end, finish = whole[0].start, self.end_of(whole), whole[-1].finish
            borders = [*range(start, end, self.piece), end]
            for index, (a, b) in enumerate(itertools.pairwise(borders)):
                chunk = self.chunk(lease, index, a, b, finish if b == end else None)
                await self.dealer.send(m.Chunks(chunks=[chunk]))

    def end_of(self, chunks: list[m.TrajectoryChunk]) -> int:
        return chunks[-1].start + int(chunks[-1].token_ids.size)

    def chunk(
        self, lease: m.Lease, index: int, start: int, end: int, finish: m.Finish | None
    ) -> m.TrajectoryChunk:
        """Every token and logprob differs."""
        made = super().chunk(lease, index, start, end, finish)
        positions = np.arange(start, end) + 100 * lease.trajectory_id
        made.token_ids[:] = positions % 61
        made.logprobs[:] = -0.001 * positions
        return made


async def batches_of(run_dir: Path, *, piece: int) -> list[Any]:
    config = run_config(
        schedule={"mode": "streaming", "window": 4, "batch_windows": 8, "max_staleness": 0},
        evaluation={"num_prompts": 4, "before": False, "after": False},
        stop={"updates": 4},
    )
    coordinator = CoordinatorProcess(run_dir, config)
    address = coordinator.start()
    generator = PiecewiseGenerator(address, "generator-0", capacity=8)
    generator.piece = piece
    learner = ScriptedLearner(address, "learner-0")
    peers: list[ScriptedPeer] = [generator, ScriptedReward(address, "reward-0"), learner]
    await asyncio.wait_for(asyncio.gather(*(peer.run() for peer in peers)), 90)
    assert coordinator.wait() == 0
    batches = [s for s in learner.seen if isinstance(s, m.Batch)]
    parts = [s for s in learner.seen if isinstance(s, m.BatchPart)]
    updates = {b.batch_id: b.update for b in batches}
    heads: list[Any] = [(b.update, b.version, b.value_epochs, b.parts) for b in batches]
    return heads + [(updates[p.batch_id], p.index, encoded(p.shard)) for p in parts]


@pytest.mark.slow
async def test_a_run_in_one_chunk_is_a_run_in_many(tmp_path: Path) -> None:
    """A real coordinator, real sockets, a stream of staleness 0: the batches its learner gets."""
    one = await batches_of(tmp_path / "run-1", piece=12)
    many = await batches_of(tmp_path / "run-2", piece=1)
    assert [update for update, *_ in one][:4] == [1, 2, 3, 4]
    assert many == one
