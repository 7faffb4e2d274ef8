"""Messages grow while acknowledgements are awaited; what frees a slot does not wait for them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import numpy as np
import pytest

from generators.rollout import outbox as outbox_module
from generators.rollout.outbox import Outbox
from headrace.protocol.messages.control import ChunkAck, Chunks, Finish, TrajectoryChunk
from tests.coordinator.peers import until

Sent = list[list[int]]
"""Indices of the chunks of each message."""


def chunk(index: int, finish: Finish | None = None) -> TrajectoryChunk:
    return TrajectoryChunk(
        lease_id=1,
        trajectory_id=1,
        chunk_index=index,
        start=index,
        token_ids=np.array([5], np.int32),
        logprobs=np.array([-0.5], np.float32),
        spans=[],
        finish=finish,
    )


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[tuple[Outbox, Sent]]:
    """An outbox that sends into a list."""
    sent: Sent = []

    async def send(message: Chunks) -> None:
        sent.append([one.chunk_index for one in message.chunks])

    outbox = Outbox(send, gather_s=0.001)
    task = asyncio.create_task(outbox.run())
    try:
        yield outbox, sent
    finally:
        task.cancel()
        ended, _ = await asyncio.wait((task,), timeout=60)
        assert ended


async def test_chunks_gather_until_the_last_message_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_module, "ACK_S", 60.0)
    async with running() as (outbox, sent):
        outbox.put(chunk(0))
        await until(lambda: sent)
        for index in (1, 2, 3):
            outbox.put(chunk(index))
            await asyncio.sleep(0.02)
        assert sent == [[0]]
        outbox.acknowledge(ChunkAck(acked=[(1, 0)]))
        await until(lambda: len(sent) > 1)
        outbox.put(chunk(4))
        outbox.acknowledge(ChunkAck(acked=[(1, 1), (1, 2)]))
        await asyncio.sleep(0.02)
        assert sent == [[0], [1, 2, 3]]
        outbox.acknowledge(ChunkAck(acked=[(1, 3)]))
        await until(lambda: len(sent) > 2)
        assert sent == [[0], [1, 2, 3], [4]]


async def test_a_lease_that_ends_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "ACK_S", 60.0)
    async with running() as (outbox, sent):
        outbox.put(chunk(0))
        await until(lambda: sent)
        outbox.put(chunk(1))
        outbox.put(chunk(2, "stop"))
        await until(lambda: len(sent) > 1)
        assert sent == [[0], [1, 2]]


async def test_without_acknowledgements_chunks_go_out_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_module, "ACK_S", 0.05)
    async with running() as (outbox, sent):
        for index in range(3):
            outbox.put(chunk(index))
            await until(lambda count=index + 1: len(sent) == count)
        outbox.resend()
        await until(lambda: len(sent) > 3)
        assert sent == [[0], [1], [2], [0, 1, 2]]


@pytest.mark.parametrize("ticks", range(5))
async def test_a_cancellation_right_behind_an_acknowledgement_ends_it(ticks: int) -> None:
    """`asyncio.wait_for` of Python 3.11 drops one that comes just as its own wait ends."""
    async with running() as (outbox, sent):
        outbox.put(chunk(0))
        await until(lambda: sent)
        outbox.put(chunk(1))
        await asyncio.sleep(0.02)
        outbox.acknowledge(ChunkAck(acked=[(1, 0)]))
        for _ in range(ticks):
            await asyncio.sleep(0)
