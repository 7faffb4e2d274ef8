"""Weights go from one GPU to another by NCCL, as they do between CPUs by gloo, and an end that is
killed raises at the other."""

import multiprocessing
import os

import pytest
import torch

from headrace.host.weight_group import WeightGroup, join_rendezvous, open_rendezvous

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs that torch can use"),
]


def receive_two(rendezvous: str) -> None:
    """Send the first tensor's mean back as an exit code, before the second one comes."""
    group = WeightGroup(join_rendezvous(rendezvous), 1, 2, torch.device("cuda", 1))
    os._exit(int(group.receive(torch.bfloat16, [1 << 20]).float().mean()))


def test_gpus_get_what_is_sent_until_one_dies() -> None:
    store = open_rendezvous("127.0.0.1")
    receiver = multiprocessing.get_context("spawn").Process(
        target=receive_two, args=(f"127.0.0.1:{store.port}",)
    )
    receiver.start()
    group = WeightGroup(store, 0, 2, torch.device("cuda", 0))
    sent = torch.full((1 << 20,), 7.0, dtype=torch.bfloat16).pin_memory()
    group.send(sent)
    receiver.join(60)
    assert receiver.exitcode == 7
    with pytest.raises(RuntimeError):  # of more than NCCL buffers at the dead end
        group.send(torch.zeros(1 << 30, dtype=torch.uint8))
