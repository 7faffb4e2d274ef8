"""Groups of NCCL need more than those of gloo, which engines and the publisher try."""

import os
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from headrace.host import weight_group
from headrace.host.weight_group import WeightGroup, open_rendezvous

GPU = torch.device("cuda", 0)
BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"


class Nccl:
    """A group of torch, as far as one is made here. It reads variables then."""

    Options = SimpleNamespace

    def __init__(self, store: object, rank: int, size: int, options: SimpleNamespace) -> None:
        self.timeout, self.waits = options._timeout, os.environ.get(BLOCKING_WAIT)


@pytest.fixture(autouse=True)
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BLOCKING_WAIT, raising=False)
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(WeightGroup, "receive", lambda *_: None)


def test_no_group_begins_before_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator may end between the learner's answer and its own worker: NCCL would wait for it
    for ever, with the lock that the next version needs."""
    monkeypatch.setattr(weight_group, "TIMEOUT", timedelta(seconds=1))
    with pytest.raises(RuntimeError):
        WeightGroup(open_rendezvous("127.0.0.1"), 0, 2, GPU)


def test_no_watchdog_looks_at_a_group_and_others_keep_theirs() -> None:
    """A watchdog that sees a failed call has the process's first group end it 8 minutes later."""
    group = WeightGroup(open_rendezvous("127.0.0.1"), 0, 1, GPU)
    assert (group._group.waits, group._group.timeout) == ("1", weight_group.TIMEOUT)
    assert BLOCKING_WAIT not in os.environ


def test_ranks_that_nccl_does_not_connect_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker had no memory for its first tensor, say: NCCL would wait for it in the learner's
    first call, which no timeout ends."""
    store = open_rendezvous("127.0.0.1")
    monkeypatch.setattr(weight_group, "TIMEOUT", timedelta(seconds=0.2))
    monkeypatch.setattr(WeightGroup, "receive", lambda *_: time.sleep(5))
    with pytest.raises(RuntimeError, match="NCCL"):
        WeightGroup(store, 0, 1, GPU)
