"""The generator as a process with a real vLLM engine: streams, loads weights in flight, ends well,
and leaves nothing behind when it is killed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import xxhash

from generators.engines.vllm_engine import VllmEngine, VllmSettings
from generators.engines.weights import WeightLayout
from generators.run import build_engine, receiver
from headrace.config.device_defaults import ALONE, GpuSharing
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.host import stack_dumps
from headrace.host.hardware import has_gpu
from headrace.protocol.messages.control import (
    Goodbye,
    Hello,
    Leases,
    Shutdown,
    WeightNotice,
    WeightsLoaded,
)
from headrace_cli.launch.plan import ProcessSpec, generator_argv, role_environment
from headrace_cli.launch.process import ChildProcess, ProcessLauncher
from tests.generators.rollout.test_chunking import make_lease
from tests.generators.scripted import NAME, ScriptedCoordinator
from tests.headrace_cli.launch.test_supervisor import gone
from tests.warm_roles import Started, warm_role

START_S = 240.0
ROOT = Path(__file__).parents[2]


def make_config(model: Path, engine: str) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"path": str(model)},
            "task": {"kind": "chain_sums", "max_prompt_length": 32, "max_response_length": 400},
            "algorithm": {"advantages": {"kind": "group"}},
            "schedule": {"window": 64, "num_generations": 2},
            "generator": {"engine": engine, "max_num_seqs": 8, "kv_cache_gib": 0.1},
        }
    )


def make_notice(path: Path, version: int) -> WeightNotice:
    data = path.read_bytes()
    return WeightNotice(
        version=version,
        update=version,
        digest=xxhash.xxh3_128(data).hexdigest(),
        num_bytes=len(data),
        sources=[f"file:{path}"],
    )


def start_generator(coordinator: ScriptedCoordinator, *, cold: bool = False) -> Started:
    """A generator's process, with shared imports unless it is to be `cold`, as a user's is."""
    argv = generator_argv(coordinator.router.address, NAME, None)
    if cold or has_gpu():
        return subprocess.Popen(argv, cwd=ROOT, start_new_session=True)
    return warm_role(argv[2], *argv[3:], log=sys.stderr)


async def exit_code(process: Started, within_s: float = 30.0) -> int:
    return await asyncio.to_thread(process.wait, within_s)


@pytest.fixture
async def coordinator(model_folder: Path) -> AsyncIterator[ScriptedCoordinator]:
    scripted = ScriptedCoordinator(make_config(model_folder, "vllm").model_dump_json())
    server = asyncio.create_task(scripted.serve())
    yield scripted
    server.cancel()
    scripted.router.close()


async def until_ready(coordinator: ScriptedCoordinator, weights: Path) -> None:
    await coordinator.until(
        lambda: any(isinstance(m, Hello) and m.capacity == 9 for m in coordinator.seen), START_S
    )
    await coordinator.send(make_notice(weights, 0))
    await coordinator.until(lambda: bool(coordinator.got(WeightsLoaded)))


@pytest.mark.vllm
@pytest.mark.slow
async def test_a_vllm_generator_streams_while_weights_change_and_ends_well(
    coordinator: ScriptedCoordinator, weight_files: list[Path]
) -> None:
    process = start_generator(coordinator)
    await until_ready(coordinator, weight_files[0])
    leases = [
        make_lease(lease_id=i, trajectory_id=i, seed=i, window=64, max_total=400, stop_at=400)
        for i in range(8)
    ]
    await coordinator.send(Leases(leases=leases))
    await coordinator.until(lambda: bool(coordinator.chunks))
    await coordinator.send(make_notice(weight_files[1], 1))
    await coordinator.until(lambda: coordinator.ended(*range(8)), 60.0)
    for i in range(8):
        chunks = coordinator.of(i)
        length = sum(len(chunk.token_ids) for chunk in chunks)
        assert np.isfinite(np.concatenate([chunk.logprobs for chunk in chunks])).all()
        assert (chunks[-1].finish == "length") == (length == 400)
    loaded = [m for m in coordinator.seen if isinstance(m, WeightsLoaded)]
    assert [(m.version, m.error) for m in loaded] == [(0, None), (1, None)]
    versions = {s.version for chunk in coordinator.chunks for s in chunk.spans}
    assert versions == {0, 1}
    await coordinator.send(Shutdown(reason="done"))
    assert await exit_code(process) == 0
    assert coordinator.got(Goodbye) == [Goodbye()]


async def test_a_torch_generator_is_the_same_process(
    model_folder: Path, weight_files: list[Path]
) -> None:
    coordinator = ScriptedCoordinator(make_config(model_folder, "torch").model_dump_json())
    server = asyncio.create_task(coordinator.serve())
    process = start_generator(coordinator)
    await until_ready(coordinator, weight_files[0])
    await coordinator.send(Leases(leases=[make_lease(window=64, max_total=20, stop_at=20)]))
    await coordinator.until(lambda: coordinator.ended(7))
    process.send_signal(signal.SIGTERM)
    assert await exit_code(process) == 143
    await coordinator.until(lambda: bool(coordinator.got(Goodbye)))
    server.cancel()
    coordinator.router.close()


def test_the_scripted_engine_imports_no_library_of_models(model_folder: Path) -> None:
    code = (
        "import sys; from generators.run import RunConfig, build_engine;"
        "build_engine(RunConfig.model_validate_json(sys.argv[1]));"
        "print(sorted({'torch', 'transformers'} & {*sys.modules}))"
    )
    command = [sys.executable, "-c", code, make_config(model_folder, "fake").model_dump_json()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_folder_without_a_model_ends_with_exit_code_2(model_folder: Path) -> None:
    config = make_config(model_folder, "torch").model_dump(mode="json")
    config["model"]["path"] = str(model_folder / "none")
    coordinator = ScriptedCoordinator(RunConfig.model_validate(config).model_dump_json())
    server = asyncio.create_task(coordinator.serve())
    process = start_generator(coordinator)
    assert await exit_code(process, 60.0) == 2
    server.cancel()
    coordinator.router.close()


@pytest.mark.vllm
@pytest.mark.slow
async def test_a_killed_engine_is_named_and_its_tokens_are_kept(
    coordinator: ScriptedCoordinator, weight_files: list[Path]
) -> None:
    process = start_generator(coordinator)
    await until_ready(coordinator, weight_files[0])
    leases = [
        make_lease(lease_id=i, trajectory_id=i, seed=i, window=8, max_total=400, stop_at=400)
        for i in range(8)
    ]
    await coordinator.send(Leases(leases=leases))
    await coordinator.until(lambda: bool(coordinator.chunks))
    family = psutil.Process(process.pid).children(recursive=True)
    max(family, key=lambda child: child.memory_info().rss).kill()
    assert await exit_code(process) == 1
    await coordinator.until(lambda: bool(coordinator.got(Goodbye)))
    (goodbye,) = coordinator.got(Goodbye)
    assert isinstance(goodbye, Goodbye)
    assert "EngineDeadError" in (goodbye.failed or "")
    assert coordinator.ended(*range(8))


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize(("width", "supervised"), [(1, False), (2, False), (2, True)])
async def test_kill_9_leaves_no_engine_behind(
    width: int,
    supervised: bool,
    model_folder: Path,
    weight_files: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither its processes, workers of tensor parallelism among them, nor their shared memory: 2 s
    after the death of a generator on its own, 10 s under a supervisor, which kills the group and so
    whatever else would have removed it. With plugins of the user's choice, which lack ours."""
    cores = sorted(os.sched_getaffinity(0))[:width]
    if len(cores) < width:
        pytest.skip("a worker of tensor parallelism needs a core of its own")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "|".join(map(str, cores)))
    monkeypatch.setenv("VLLM_PLUGINS", "of-the-user")
    config = make_config(model_folder, "vllm").model_dump(mode="json")
    config["generator"] |= {"tensor_parallel_size": width, "cpus": cores}
    coordinator = ScriptedCoordinator(RunConfig.model_validate(config).model_dump_json())
    server = asyncio.create_task(coordinator.serve())
    argv = generator_argv(coordinator.router.address, NAME, None)
    child = ChildProcess(
        ProcessSpec(NAME, "generator", argv, role_environment(1), tmp_path / "log")
    )
    with ProcessLauncher() as launcher:
        alone = None if supervised else start_generator(coordinator, cold=True)
        pid = alone.pid if alone else launcher.start(child, {})
        await until_ready(coordinator, weight_files[0])
        family = [process.pid for process in psutil.Process(pid).children(recursive=True)]
        files = shared_memory_of(family)
        # EngineCore, with its worker or with several: each says what it is doing when asked.
        assert sum(map(stack_dumps._listens, family)) == (width + 1 if width > 1 else 1)
        # An engine of one process maps no shared memory.
        assert len(files) > 1 if width > 1 else files == []
        os.kill(pid, signal.SIGKILL)
        if alone:
            alone.wait()
        deadline = time.monotonic() + (10.0 if supervised else 2.0)

        def left() -> list[int | Path]:
            return [*(p for p in family if not gone(p)), *(f for f in files if f.exists())]

        while left() and time.monotonic() < deadline:
            launcher.reap(child)
            await asyncio.sleep(0.02)
        assert left() == []
    server.cancel()
    coordinator.router.close()


def shared_memory_of(pids: list[int]) -> list[Path]:
    """What of /dev/shm these processes map, and their generator's record of it."""
    inodes: set[int] = set()
    for pid in pids:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        inodes |= {int(line.split()[4]) for line in lines if " /dev/shm/" in line}
    files = [f for f in Path("/dev/shm").iterdir() if f.is_file() and f.stat().st_ino in inodes]
    words = {word for pid in pids for word in psutil.Process(pid).cmdline()}
    return [*files, *(Path(word) for word in words if word.startswith("/dev/shm/"))]


def test_a_host_without_the_folder_of_images_is_refused(tmp_path: Path) -> None:
    """Before the engine starts, and not at each prompt."""
    config = make_config(ROOT / "recipes" / "models" / "shapes-cold", "vllm")
    task = config.task.model_copy(update={"max_response_length": 12})
    config = config.model_copy(update={"task": task})
    with pytest.raises(UserError, match=r"reads images, .*elsewhere, and this host does not see"):
        build_engine(config, tmp_path / "elsewhere")


def test_beside_the_learner_on_a_gpu_weights_come_by_file() -> None:
    """NCCL refuses two ranks on one GPU, and of two workers the other one would wait for them."""
    engine = VllmEngine(VllmSettings("m", 32, ()), WeightLayout({"w": (2,)}))
    assert receiver(engine, GpuSharing(ranks=1, generators=1)) is None
    assert receiver(engine, ALONE) == engine.receive_weights
