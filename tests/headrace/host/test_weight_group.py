"""Groups of NCCL need more than those of gloo, which engines and the publisher try."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from headrace.host import weight_group
from headrace.host.weight_group import WeightGroup, open_rendezvous

GPU = torch.device("cuda", 0)


class Nccl:
    """A group of torch, as far as one is made here."""

    Options = SimpleNamespace

    def __init__(self, store: object, rank: int, size: int, options: SimpleNamespace) -> None:
        self.timeout = options._timeout


@pytest.fixture(autouse=True)
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)


def test_no_group_begins_before_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator may end between the learner's answer and its own worker: NCCL would wait for it
    for ever, with the lock that the next version needs."""
    monkeypatch.setattr(weight_group, "TIMEOUT", timedelta(seconds=1))
    with pytest.raises(RuntimeError):
        WeightGroup(open_rendezvous("127.0.0.1"), 0, 2, GPU)
