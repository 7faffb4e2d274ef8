"""Ranks that torchrun starts: their place, and the exit code that remains of them."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from headrace.errors import UserError
from headrace.host.hardware import free_port
from learner import run
from learner.device import choose_device
from learner.models import deepspeed_engine

RANK = """
import os, sys, time
if os.environ["RANK"] != "1":
    time.sleep(600)
sys.exit(int(sys.argv[1]))
"""
MINIMUM = ["--run-dir", "r", "--connect", "tcp://h:1"]


@pytest.mark.slow
@pytest.mark.parametrize(("told", "code"), [(2, 2), (1, 1)])
def test_the_first_failure_of_a_host_is_its_exit_code(tmp_path: Path, told: int, code: int) -> None:
    """And ends the other rank, which would go on for ten minutes."""
    (tmp_path / "some_rank.py").write_text(RANK)
    done = subprocess.run(
        [sys.executable, "-m", "learner.process.ranks", "--nnodes=1", "--nproc-per-node=2",
         "--node-rank=0", "--master-addr=127.0.0.1", f"--master-port={free_port()}",
         "-m", "some_rank", str(told)],
        env={**os.environ, "OMP_NUM_THREADS": "1",
             "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "learner rank 1 of this host failed first" in done.stderr


def test_torchrun_tells_a_rank_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "MASTER_PORT": "7"}
    for name, value in {**places, "MASTER_ADDR": "node-0"}.items():
        monkeypatch.setenv(name, value)
    found = run._parse(MINIMUM)
    assert (found.rank, found.local_rank, found.world_size) == (5, 1, 8)
    assert (found.master_address, found.master_port) == ("node-0", 7)


def test_options_go_before_what_torchrun_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    found = run._parse([*MINIMUM, "--rank", "1", "--world-size", "2", "--master-port", "9"])
    assert (found.rank, found.local_rank, found.master_address) == (1, 1, "127.0.0.1")


def test_a_rank_without_a_place_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in run.TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as caught:
        run._parse(MINIMUM)
    assert caught.value.code == 2
    assert "no RANK is set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rank", "told", "visible", "index"), [(3, 3, 1, 0), (6, 2, 4, 2), (5, 1, 4, 1), (0, 0, 8, 0)]
)
def test_local_rank_is_an_index_among_the_cards_that_a_rank_sees(
    rank: int, told: int, visible: int, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One card where the supervisor or Ray chose it, all of the host's under torchrun. DeepSpeed
    sets the device by it, which needs several GPUs to be seen."""
    monkeypatch.setattr("learner.device.has_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(deepspeed_engine, "check_devices", mock.Mock())
    stores = mock.Mock(return_value=iter([(None, rank, 8)]))
    monkeypatch.setattr(deepspeed_engine, "rendezvous", stores)
    monkeypatch.setattr("deepspeed.init_distributed", lambda **settings: None)
    device = choose_device("cuda", told)
    with mock.patch.dict(os.environ):
        deepspeed_engine.join_ranks(rank=rank, world_size=8, port=7, device=device, local_rank=told)
        assert (os.environ["LOCAL_RANK"], os.environ["RANK"]) == (str(index), str(rank))
    assert device == torch.device("cuda", index)


def test_a_rank_on_the_cpu_leaves_the_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed saw one when it was imported. A run hides it from such a rank, the commands that
    replay or train by themselves do not."""
    gpu, chosen = mock.Mock(device_name=lambda: "cuda"), list[Any]()
    monkeypatch.setattr(deepspeed_engine, "get_accelerator", lambda: gpu)
    monkeypatch.setattr(deepspeed_engine, "set_accelerator", chosen.append)
    monkeypatch.setattr(deepspeed_engine, "check_devices", mock.Mock())
    stores = mock.Mock(return_value=iter([(None, 0, 1)]))
    monkeypatch.setattr(deepspeed_engine, "rendezvous", stores)
    monkeypatch.setattr("deepspeed.init_distributed", lambda **settings: None)
    with mock.patch.dict(os.environ):
        deepspeed_engine.join_ranks(rank=0, world_size=1, port=7, device=torch.device("cpu"))
    assert [one.device_name() for one in chosen] == ["cpu"]


def test_ranks_that_see_different_devices_are_told_so() -> None:
    """A driver is broken on one of two hosts, say: gloo and NCCL would wait for each other."""
    store = HashStore()

    def told(rank: int) -> str:
        with pytest.raises(UserError) as caught:
            deepspeed_engine.check_devices(store, rank, 3, "cpu" if rank == 1 else "cuda")
        return str(caught.value)

    with ThreadPoolExecutor(3) as pool:
        texts = set(pool.map(told, range(3)))
    (text,) = texts
    assert "(0: cuda, 1: cpu, 2: cuda): set learner.device" in text
