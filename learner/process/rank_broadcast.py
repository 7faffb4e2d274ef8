"""Relay of the coordinator's messages to the ranks, and of their answers.

In: messages on rank 0. Out: the same messages on every rank, except that each rank gets only its
own parts of a batch; the answers of all ranks on rank 0. Promises: rank 0 holds one part of another
rank at a time; messages travel as bytes of the wire's codec in uint8 tensors, without pickle, in a
CPU group of their own, so that they never mix with the collectives of training.
"""

import logging
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from headrace.protocol.messages.batches import Shard
from headrace.protocol.messages.control import Batch, BatchPart, Message
from headrace.protocol.transport.codec import message_codec

# A rank may wait for a batch for as long as generation takes; a dead rank is noticed at once,
# because its connections close.
WAIT_LIMIT = timedelta(days=7)
_LOG = logging.getLogger("headrace.learner")


class RankRelay:
    """Messages between learner ranks, which all call the same methods in one order."""

    def __init__(self, *, rank: int, world: int) -> None:
        self._rank, self._world = rank, world
        self._codec = message_codec(max_bytes=1 << 40)
        self._group = dist.new_group(backend="gloo", timeout=WAIT_LIMIT) if world > 1 else None

    def share(self, message: Message | None) -> Message:
        """Broadcast rank 0's message; the others pass None."""
        if self._world == 1:
            assert message is not None
            return message
        frames = self._codec.encode(message) if message is not None else []
        sizes = torch.tensor([len(frame) for frame in frames] or [0, 0])
        dist.broadcast(sizes, src=0, group=self._group)
        data = _joined(frames) if frames else torch.empty(int(sizes.sum()), dtype=torch.uint8)
        dist.broadcast(data, src=0, group=self._group)
        return message if message is not None else self._decode(data, sizes)

    def deliver(self, batch: Batch, receive: Callable[[], Message] | None) -> list[Shard] | Message:
        """Return this rank's parts of a batch by index, or the message that came instead.

        Args:
            batch: the header that all ranks have. receive: returns the coordinator's next message
            on rank 0; None on the others.

        Returns:
            The parts. Any other message than a part ends the batch; all ranks get it, to act on it.

        Raises ValueError where the batch is for another number of ranks.
        """
        if len(batch.parts) != self._world:
            raise ValueError(f"a batch for {len(batch.parts)} ranks, but there are {self._world}")
        own: dict[int, Shard] = {}
        other = self._hand_out(batch, own, receive) if receive else self._receive_own(batch, own)
        if self._world > 1:
            whole = torch.tensor([other is None], dtype=torch.uint8)
            dist.broadcast(whole, src=0, group=self._group)
            other = None if bool(whole.item()) else self.share(other if receive else None)
        return [own[index] for index in sorted(own)] if other is None else other

    def _receive_own(self, batch: Batch, own: dict[int, Shard]) -> Message | None:
        while len(own) < batch.parts[self._rank]:
            message = self._receive(0)
            if not isinstance(message, BatchPart):
                return message
            own[message.index] = message.shard
        return None

    def _hand_out(
        self, batch: Batch, own: dict[int, Shard], receive: Callable[[], Message]
    ) -> Message | None:
        missing = [set(range(count)) for count in batch.parts]
        while any(missing):
            other = self._hand_on(receive(), batch, own, missing)
            if other is not None:
                for rank in range(1, self._world):
                    if missing[rank]:
                        self._send(other, rank)
                return other
        return None

    def _hand_on(
        self, message: Message, batch: Batch, own: dict[int, Shard], missing: list[set[int]]
    ) -> Message | None:
        """Keep a part or pass it on; return any message that is not a part."""
        if not isinstance(message, BatchPart):
            return message
        rank, index = message.rank, message.index
        known = message.batch_id == batch.batch_id and 0 <= rank < len(missing)
        if not known or index not in missing[rank]:
            _LOG.warning(
                "part %d for rank %d of batch %d ignored: update %d does not wait for it",
                index, rank, message.batch_id, batch.update,
            )  # fmt: skip
            return None
        missing[rank].discard(index)
        if rank:
            self._send(message, rank)
        else:
            own[index] = message.shard
        return None

    def collect(self, message: Message) -> list[Message]:
        """Return the messages of all ranks in order on rank 0, and nothing on the others."""
        if self._rank:
            self._send(message, 0)
            return []
        return [message, *(self._receive(rank) for rank in range(1, self._world))]

    def least(self, number: int) -> int:
        """Return the smallest of all ranks' numbers, within the time-out of messages."""
        found = torch.tensor(number)
        if self._world > 1:
            dist.all_reduce(found, op=dist.ReduceOp.MIN, group=self._group)
        return int(found.item())

    def _send(self, message: Message, rank: int) -> None:
        frames = self._codec.encode(message)
        dist.send(torch.tensor([len(frame) for frame in frames]), dst=rank, group=self._group)
        dist.send(_joined(frames), dst=rank, group=self._group)

    def _receive(self, rank: int) -> Message:
        sizes = torch.zeros(2, dtype=torch.int64)
        dist.recv(sizes, src=rank, group=self._group)
        data = torch.empty(int(sizes.sum()), dtype=torch.uint8)
        dist.recv(data, src=rank, group=self._group)
        return self._decode(data, sizes)

    def _decode(self, data: Tensor, sizes: Tensor) -> Message:
        view = data.numpy().data
        first = int(sizes[0])
        return self._codec.decode([view[:first], view[first:]])


def _joined(frames: list[bytes]) -> Tensor:
    return torch.from_numpy(np.frombuffer(b"".join(frames), dtype=np.uint8).copy())
