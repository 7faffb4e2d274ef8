"""Broadcasts of weights from the learner to the workers of one vLLM engine.

In: the rendezvous that the learner opens, a rank (0 is the learner), a device. Out: tensors on it,
over NCCL between GPUs, over gloo between CPUs. Promise: where the other end dies or stands still,
every call raises RuntimeError within `TIMEOUT`, and the process goes on.
"""

import os
import socket
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

TIMEOUT = timedelta(seconds=30)


def open_rendezvous(host: str) -> TCPStore:
    """Listen on one address of this host, where torch by itself would listen on all."""
    listener = socket.create_server((host, 0))
    return TCPStore(
        host, listener.getsockname()[1], is_master=True, wait_for_workers=False, timeout=TIMEOUT,
        master_listen_fd=listener.detach(),
    )  # fmt: skip


def join_rendezvous(address: str) -> TCPStore:
    """Connect to host:port of a rendezvous."""
    host, _, port = address.rpartition(":")
    return TCPStore(host, int(port), is_master=False, timeout=TIMEOUT)


class WeightGroup:
    """Rank 0 sends, `size` - 1 ranks receive."""

    def __init__(self, store: TCPStore, rank: int, size: int, device: torch.device) -> None:
        self._device = device
        # NCCL waits without end for a rank that never comes.
        store.set(f"here: {rank}", "yes")
        store.wait([f"here: {other}" for other in range(size)])
        if device.type == "cuda":
            # Without a watchdog, which would end this process minutes after a call that failed.
            os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
            options = torch.distributed.ProcessGroupNCCL.Options()
            options._timeout = TIMEOUT
            self._group: Any = torch.distributed.ProcessGroupNCCL(store, rank, size, options)
            del os.environ["TORCH_NCCL_BLOCKING_WAIT"]
            self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._connect()
        else:
            self._group = torch.distributed.ProcessGroupGloo(store, rank, size, TIMEOUT)
            self._stream = None

    def _connect(self) -> None:
        """Send a byte now: NCCL connects in its first call, and waits there without end for a rank
        that failed before its own, or that the network does not reach."""
        connected = threading.Event()

        def connect() -> None:
            torch.cuda.set_stream(self._stream)
            self.receive(torch.uint8, [1])
            connected.set()

        thread = threading.Thread(target=connect, name="NCCL", daemon=True)
        thread.start()
        thread.join(TIMEOUT.total_seconds())
        if not connected.is_set():
            raise RuntimeError("NCCL does not connect the ranks of a weight group")

    def send(self, tensor: Tensor) -> None:
        """Send a contiguous tensor to all other ranks, beside what else the device computes."""
        with torch.cuda.stream(self._stream):
            self._broadcast(tensor.to(self._device, non_blocking=True))

    def receive(self, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """Return the tensor that rank 0 sends, in memory of its own."""
        tensor = torch.empty(list(shape), dtype=dtype, device=self._device)
        self._broadcast(tensor)
        return tensor

    def _broadcast(self, tensor: Tensor) -> None:
        self._group.broadcast(tensor, 0).wait(TIMEOUT)
