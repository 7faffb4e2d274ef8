"""A pass without gradient: one number for every read of some sequences.

In: an engine and reads. Out: the numbers in flat order, 0 where a read's sequence was left out.
Promise: on all ranks the same number of forward passes, where the engine needs that.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from learner.batching.token_reads import TokenReads
from learner.device import RankContext
from learner.models.deepspeed_engine import StepLog
from learner.models.microbatches import empty_micro_batch, micro_batches
from learner.models.prefix_cache import PrefixCache


@torch.no_grad()
def infer(
    engine: Callable[..., Any],
    reads: TokenReads,
    sequences: Sequence[int],
    place: RankContext,
    *,
    log: StepLog,
    carried: PrefixCache | None = None,
    width: Sequence[int] = (),
) -> Tensor:
    """[N] logprobs or values of `sequences`' reads, or [N, F] features (`width` F).

    By an engine's or network's forward pass under its present weights; 0 for all other reads (see
    `TokenReads.within`). `carried`: keys and values of the model, which need not be computed."""
    size = (reads.position_of.size, *width)
    found = torch.zeros(size, dtype=place.dtype, device=place.device)
    micros = micro_batches(reads, sequences, place, carried)
    micros += [empty_micro_batch(place)] * (place.most(len(micros)) - len(micros))
    for pack, tokens in micros:
        output = engine(pack)
        if carried is not None:
            carried.store(pack.layout.past)
        log.count(pack, reads=0)
        found[tokens] = (output if isinstance(output, Tensor) else output.logprobs).to(place.dtype)
    return found
