"""Which GPUs a process has, by a scripted `nvidia-smi` and what the environment leaves of them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from headrace.errors import UserError
from headrace.host import hardware
from headrace.host.hardware import MIB, Gpu, detect, free_port, has_gpu, torch_cuda, visible_gpus
from headrace_cli.launch.plan import role_environment
from tests.scripted_driver import Card, answers, cuda_machine, uuid, write_driver

CARDS = (Card(), Card(free=2000), Card(migs=(40448, 9728)), Card(24564, 24000, "NVIDIA L4"))
MIG_0, MIG_1 = uuid(2, 0), uuid(2, 1)


def seen(env: dict[str, str], visible: str | None = None) -> dict[str, Any]:
    """What a process in this environment detects."""
    code = (
        "import json; from dataclasses import asdict; from headrace.host.hardware import *;"
        "m = detect(); print(json.dumps(asdict(m) | {'has': has_gpu(),"
        "'devices': [g.device for g in m.gpus]}))"
    )
    if visible is not None:
        env = {**env, "CUDA_VISIBLE_DEVICES": visible}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return cuda_machine(tmp_path_factory.mktemp("machine"), answers(CARDS))


def test_what_the_driver_lists(env: dict[str, str]) -> None:
    found = seen(env)
    assert found["devices"] == ["0", "1", MIG_0, MIG_1, "3"]
    assert found["has"]
    assert (found["driver"], found["driver_cuda"], found["torch_cuda"]) == (
        "580.95.05", "13.0", "13.0",
    )  # fmt: skip
    assert [gpu["memory_bytes"] // MIB for gpu in found["gpus"]] == [
        81559, 81559, 40448, 9728, 24564,
    ]  # fmt: skip
    assert [gpu["free_bytes"] // MIB for gpu in found["gpus"]] == [
        81004, 2000, 40436, 9716, 24000,
    ]  # fmt: skip
    assert (found["without"], found["misnamed"]) == ("", "")


@pytest.mark.parametrize(
    ("visible", "left", "stray"),
    [
        ("0", ["0"], ""),
        ("3,1", ["3", "1"], ""),
        (" 0, 1", ["0", "1"], ""),
        (uuid(1), ["1"], ""),
        (uuid(1)[:12], ["1"], ""),
        (f"{MIG_1},0", [MIG_1, "0"], ""),
        (MIG_0[:12], [MIG_0], ""),
        ("2", [MIG_0], ""),
        ("", [], ""),
        ("-1", [], ""),
        ("1,-1,0", ["1"], ""),
        ("NoDevFiles", [], ""),
        ("0,4,1", ["0"], "4"),
        ("4", [], "4"),
        ("GPU-aaaa", [], "GPU-aaaa"),
        ("GPU-cccc", [], "GPU-cccc"),
        ("1,1", ["1"], "1"),
        ("all", [], "all"),
    ],
)
def test_what_the_environment_leaves(
    env: dict[str, str], visible: str, left: list[str], stray: str
) -> None:
    """CUDA's own rule: entries behind the first that names no GPU are ignored. -1 and nothing end
    the list on purpose, so that they are no mistake."""
    found = seen(env, visible)
    assert found["devices"] == left
    assert found["has"] == bool(left)
    assert bool(found["misnamed"]) == bool(stray)
    assert f"{stray!r} names none of 0, 1" in found["misnamed"] or not stray
    assert ("leaves none" in found["without"]) == (not left)


def test_a_child_gets_the_same_card(env: dict[str, str]) -> None:
    """What the plan puts into a role's environment names the GPU that it was made for, whatever the
    parent's own list was."""
    for visible in ("3,1", uuid(1)[:12], "2", MIG_1):
        for gpu in seen(env, visible)["gpus"]:
            (device,) = [d for d in seen(env)["devices"] if d in (gpu["uuid"], str(gpu["index"]))]
            given = role_environment(1, (device,))
            assert given["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
            child = seen(env, given["CUDA_VISIBLE_DEVICES"])
            assert [one["uuid"] for one in child["gpus"]] == [gpu["uuid"]]


def test_a_driver_of_another_style(tmp_path: Path) -> None:
    told = answers([Card()], driver="610.43.02", cuda="13.3")
    for old, new in (("<driver_", "<kmd_"), ("</driver_", "</kmd_"), ("<cuda_", "<cuda_umd_")):
        told["-q -x"] = told["-q -x"].replace(old, new)
    told["-q -x"] = told["-q -x"].replace("</cuda_version", "</cuda_umd_version")
    found = seen(cuda_machine(tmp_path / "machine", told))
    assert (found["driver"], found["driver_cuda"]) == ("610.43.02", "13.3")


@pytest.mark.parametrize("told", [{}, {"-q -x": "No devices were found\n"}])
def test_a_driver_that_does_not_answer_lists_none(tmp_path: Path, told: dict[str, str]) -> None:
    found = seen(cuda_machine(tmp_path / "machine", told))
    assert (found["gpus"], found["without"]) == ([], "nvidia-smi lists none")
    assert not found["has"]


def test_a_gpu_whose_memory_is_not_said_is_left_out(tmp_path: Path) -> None:
    told = answers([Card(), Card(total=12345, free=0)])
    told["-q -x"] = told["-q -x"].replace("<total>12345 MiB<", "<total>N/A<")
    assert seen(cuda_machine(tmp_path / "machine", told))["devices"] == ["0"]


def test_a_cpu_build_of_torch_has_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This environment's torch, beside a driver."""
    if torch_cuda() is not None:
        pytest.skip("torch is a CUDA build here")
    folder = write_driver(tmp_path / "driver", answers([Card()]))
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setattr(hardware, "nvidia_smi", hardware.nvidia_smi.__wrapped__)  # uncached
    found = detect()
    assert (found.gpus, found.misnamed) == ((), "")
    assert found.without == "torch is a CPU build (1 listed)"
    assert found.driver == "580.95.05"
    assert not has_gpu()


def test_an_index_is_the_drivers_and_not_a_place_in_the_list() -> None:
    gpus = [Gpu(index, "card", 1, uuid=uuid(index)) for index in (4, 5)]
    assert visible_gpus(gpus, "5,0") == ((gpus[1],), "0")


def test_a_free_port_is_none_that_a_connection_gets_by_itself() -> None:
    lowest, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 40
    # A host may give connections all ports from 1024 on.
    assert max(ports) < max(int(lowest), hardware.CHOSEN_PORTS.stop)
    with pytest.raises(OSError, match="Cannot assign"):
        free_port("192.0.2.1")


USED = {"memory.current": "3", "memory.max": "8", "memory.stat": "anon 2\ninactive_file 1\n"}
VERSION_1 = {
    "memory.limit_in_bytes": "8",
    "memory.usage_in_bytes": "3",
    "memory.stat": "inactive_file 2\ntotal_inactive_file 1\n",
}
OPEN = {"memory.current": "60", "memory.max": "max", "memory.stat": "inactive_file 4\n"}


@pytest.mark.parametrize(
    ("own", "files", "left"),
    [
        ("0::/", {}, (64, 50)),
        ("0::/", {"": USED}, (8, 6)),
        ("0::/slurm/job/step", {"slurm": OPEN, "slurm/job": USED, "slurm/job/step": OPEN}, (8, 6)),
        ("0::/user", {"user": USED | {"memory.max": "64"}}, (64, 50)),
        ("4:memory:/docker/1\n3:cpuset:/\n0::/docker/1", {"memory": VERSION_1}, (8, 6)),
        ("4:memory:/job", {"memory/job": VERSION_1}, (8, 6)),
    ],
    ids=["none", "a container", "a job", "no bound", "a container, version 1", "a job, version 1"],
)
def test_memory_is_what_the_groups_around_a_process_leave(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: str,
    files: dict[str, dict[str, str]],
    left: tuple[int, int],
) -> None:
    write_groups(tmp_path, monkeypatch, own, files)
    machine = SimpleNamespace(total=64, available=50)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    assert hardware._memory() == left


def write_groups(
    folder: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, dict[str, str]]
) -> None:
    """Control groups of a process, and their files by group."""
    (folder / "own").write_text(f"{own}\n")
    for group, texts in files.items():
        (folder / group).mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / group / name).write_text(text)
    monkeypatch.setattr(hardware, "_OWN_GROUPS", folder / "own")
    monkeypatch.setattr(hardware, "_CONTROL_GROUPS", folder)


QUOTA_1 = {"cpu.cfs_quota_us": "250000", "cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("own", "files", "quota", "cores"),
    [
        ("0::/", {}, None, 4),
        ("0::/", {"": {"cpu.max": "max 100000"}}, None, 4),
        ("0::/", {"": {"cpu.max": "150000 100000"}}, 2, 2),
        ("0::/pod/1", {"pod": {"cpu.max": "50000 100000"}, "pod/1": {"cpu.max": "max 9"}}, 1, 1),
        ("0::/", {"": {"cpu.max": "900000 100000"}}, 9, 4),
        ("7:cpuset:/\n5:cpuacct,cpu:/docker/1\n4:memory:/", {"cpu": QUOTA_1}, 3, 3),
        ("5:cpu:/", {"cpu": QUOTA_1 | {"cpu.cfs_quota_us": "-1"}}, None, 4),
    ],
    ids=["none", "no bound", "a container", "a pod", "more than cores", "version 1", "open, 1"],
)
def test_cores_that_may_be_busy_are_what_a_quota_leaves(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: str,
    files: dict[str, dict[str, str]],
    quota: int | None,
    cores: int,
) -> None:
    write_groups(tmp_path, monkeypatch, own, files)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    assert hardware.cpu_quota() == quota
    assert detect().core_count == cores


def test_another_system_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "sched_getaffinity")
    with pytest.raises(UserError, match="needs Linux, and here is darwin"):
        detect()
