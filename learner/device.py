"""A learner rank's device, number, limits and collectives.

In: nothing but settings. Out: `RankContext`, with the few collectives that an update needs.
Promise: with one rank nothing is sent, so that an update also runs without a process group.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch import distributed as dist

from headrace.config.device_defaults import GPU_MEMORY_SHARE
from headrace.config.estimates.memory import gpu_memory
from headrace.config.estimates.model_shape import model_shape
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.host.hardware import has_gpu
from headrace.host.progress_reporter import ProgressReporter
from headrace.protocol.token_spans import MediaRun


class ImageShapes(Protocol):
    """Sizes and positions of the images in openings, as packs read them."""

    def placed(
        self, token_ids: npt.NDArray[np.int32], media: Sequence[MediaRun]
    ) -> list[tuple[str, npt.NDArray[np.int64]]]:
        """Return each image's digest, and the places of its embeddings in a sequence."""

    def positions(self, length: int, media: Sequence[MediaRun]) -> npt.NDArray[np.int64] | None:
        """[3, length] positions of a sequence's tokens; None: one row, as of text."""

    def tokens(self, digest: str) -> int:
        """Return the number of an image's embeddings."""

    def cost(self, media: Sequence[MediaRun]) -> int:
        """Return the tokens by which the images enlarge a micro-batch."""


@dataclass(frozen=True)
class RankContext:
    """Device, number, settings and collectives of one learner rank.

    Attributes:
        device: of its tensors. rank, world: this rank among all. dtype: of losses and what
        surrounds them (float64 for a float64 model). budget: maximum number of tokens per
        micro-batch. frozen_context: no gradient flows through the tokens before a sequence's first
        read. seed: of everything random in an update. shares_openings: a prompt that several
        sequences of a micro-batch begin with is computed once (only our own attention can).
        forward_together: ranks must run the same number of forward passes (ZeRO 3 gathers
        parameters in them). work: receives an update's progress. images: of a model that sees any.
    """

    device: torch.device
    rank: int = 0
    world: int = 1
    dtype: torch.dtype = torch.float32
    budget: int = 4096
    frozen_context: bool = False
    seed: int = 0
    forward_together: bool = False
    shares_openings: bool = False
    work: ProgressReporter = field(default_factory=ProgressReporter)
    images: ImageShapes | None = None

    def total(self, x: Tensor) -> Tensor:
        """Sum x over all ranks."""
        if self.world > 1:
            dist.all_reduce(x, op=dist.ReduceOp.SUM)
        return x

    def largest(self, x: Tensor) -> Tensor:
        """Return the elementwise maximum of x over all ranks."""
        if self.world > 1:
            dist.all_reduce(x, op=dist.ReduceOp.MAX)
        return x

    def gathered(self, x: Tensor) -> Tensor:
        """Gather the rows of all ranks' x [N, ...], rank after rank; N may differ."""
        if self.world == 1:
            return x
        sizes = [torch.zeros(1, dtype=torch.int64, device=x.device) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([x.shape[0]], device=x.device))
        counts = [int(size.item()) for size in sizes]
        padded = x.new_zeros((max(counts), *x.shape[1:]))
        padded[: x.shape[0]] = x
        found = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(found, padded)
        return torch.cat([rows[:n] for rows, n in zip(found, counts, strict=True)])

    def most(self, count: int) -> int:
        """Return the largest count of all ranks if `forward_together`, else its own."""
        if not (self.forward_together and self.world > 1):
            return count
        return int(self.largest(torch.tensor(count, device=self.device)).item())


def choose_device(
    wanted: Literal["auto", "cpu", "cuda"], rank: int = 0, *, key: str = "learner.device"
) -> torch.device:
    """Choose the device of a host's rank of this number.

    UserError where the configuration asks by `key` for one that is not there."""
    found = has_gpu()
    if wanted == "cuda" and not found:
        raise UserError(f"{key} is cuda, but torch sees no GPU; use {key}=cpu")
    if wanted == "cpu" or not found:
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def claim_memory(config: RunConfig, device: torch.device) -> None:
    """Reserve a rank's estimated memory on its GPU: torch keeps what is freed here.

    A generator on the same GPU measures what is left after that."""
    reckoned = gpu_memory(config, model_shape(Path(config.model.path))).total
    most = int(GPU_MEMORY_SHARE * torch.cuda.mem_get_info(device)[1])
    torch.empty(min(reckoned, most), dtype=torch.uint8, device=device)
