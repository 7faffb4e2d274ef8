"""What rank 0 hears from the coordinator, the other ranks hear from rank 0, and back.

In: messages on rank 0. Out: the same messages on every rank; answers of all ranks on rank 0.
Promises: raw bytes of the wire's codec in uint8 tensors, no pickle; a group of its own on the CPU,
so that nothing here mixes with the collectives of training.
"""

from datetime import timedelta

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from headrace.protocol.codec import message_codec
from headrace.protocol.messages import Message

# A rank may wait for a batch for as long as generation takes; a dead rank is noticed at once,
# because its connections close.
WAIT_LIMIT = timedelta(days=7)


class Relay:
    """Messages between the learner's ranks. All ranks call the same method in the same order."""

    def __init__(self, *, rank: int, world: int) -> None:
        self._rank, self._world = rank, world
        self._codec = message_codec(max_bytes=1 << 40)
        self._group = dist.new_group(backend="gloo", timeout=WAIT_LIMIT) if world > 1 else None

    def share(self, message: Message | None) -> Message:
        """Rank 0's message on every rank; the others pass None."""
        if self._world == 1:
            assert message is not None
            return message
        sizes = torch.zeros(2, dtype=torch.int64)
        frames = self._codec.encode(message) if message is not None else []
        if frames:
            sizes = torch.tensor([len(frame) for frame in frames])
        dist.broadcast(sizes, src=0, group=self._group)
        data = _joined(frames) if frames else torch.empty(int(sizes.sum()), dtype=torch.uint8)
        dist.broadcast(data, src=0, group=self._group)
        return message if message is not None else self._decode(data, sizes)

    def collect(self, message: Message) -> list[Message]:
        """On rank 0 the messages of all ranks in order; elsewhere nothing."""
        if self._world == 1:
            return [message]
        frames = self._codec.encode(message)
        data, own = _joined(frames), torch.tensor([len(frame) for frame in frames])
        sizes = [torch.zeros(2, dtype=torch.int64) for _ in range(self._world)]
        dist.all_gather(sizes, own, group=self._group)
        if self._rank:
            dist.send(data, dst=0, group=self._group)
            return []
        messages = [message]
        for rank in range(1, self._world):
            received = torch.empty(int(sizes[rank].sum()), dtype=torch.uint8)
            dist.recv(received, src=rank, group=self._group)
            messages.append(self._decode(received, sizes[rank]))
        return messages

    def _decode(self, data: Tensor, sizes: Tensor) -> Message:
        view = data.numpy().data
        first = int(sizes[0])
        return self._codec.decode([view[:first], view[first:]])


def _joined(frames: list[bytes]) -> Tensor:
    return torch.from_numpy(np.frombuffer(b"".join(frames), dtype=np.uint8).copy())
