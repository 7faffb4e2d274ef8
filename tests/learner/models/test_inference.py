"""A pass over some of the sequences: their numbers, and which reads have one."""

import math

import numpy as np
import torch
from torch import Tensor

from learner.batching.token_reads import TokenReads
from learner.device import RankContext
from learner.models.deepspeed_engine import StepLog
from learner.models.forward import Pack
from learner.models.inference import infer

PLACE = RankContext(device=torch.device("cpu"), dtype=torch.float64)


def three_sequences() -> TokenReads:
    """Two reads in each of three sequences of three tokens; flat order is not that of sequences."""
    return TokenReads(
        trajectories=[7, 8, 9],
        token_ids=[np.arange(3, dtype=np.int32) + 10 * s for s in range(3)],
        sequence_of=np.array([2, 0, 0, 1, 1, 2]),
        position_of=np.array([1, 1, 2, 1, 2, 2]),
        targets=np.array([21, 1, 2, 11, 12, 22]),
        openings=[1, 1, 1],
    )


def targets(pack: Pack) -> Tensor:
    return pack.targets.double()


def test_a_sequence_that_is_left_out_has_zeros_and_is_not_within() -> None:
    reads = three_sequences()
    assert infer(targets, reads, [2, 0], PLACE, log=StepLog()).tolist() == [21, 1, 2, 0, 0, 22]
    assert reads.within([2, 0]).tolist() == [True, True, True, False, False, True]
    assert not reads.within([]).any()


def test_nan_from_a_model_is_its_number_and_not_a_gap() -> None:
    reads = three_sequences()
    found = infer(lambda pack: targets(pack) * math.nan, reads, [1], PLACE, log=StepLog())
    assert found.isnan().tolist() == reads.within([1]).tolist()
