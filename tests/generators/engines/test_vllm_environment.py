"""What is decided before vLLM is imported: how it starts its processes, and what these load."""

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from generators.engines import vllm_worker
from generators.engines.model_files import read_config, weight_layout
from generators.engines.vllm_engine import VllmEngine, VllmSettings, prepare_environment
from generators.engines.weights import WeightLayout
from headrace.errors import UserError
from headrace.host.install import ROOT
from tests.generators.fixed_model import save_fixed_model
from tests.generators.test_run import make_config

ON_A_GPU_MACHINE = """
import asyncio, json, os, sys
from pathlib import Path

import torch

from headrace.config.sections.model import JudgeConfig
from headrace.config.sections.run import RunConfig
from headrace.host import hardware


def asked(*arguments):
    raise AssertionError("torch.cuda was asked")


hardware.has_gpu = lambda: True
for name in ("is_available", "device_count", "init", "_lazy_init", "get_device_capability"):
    setattr(torch.cuda, name, asked)
sys.modules["vllm"] = None
model, config = sys.argv[2:]
if sys.argv[1] == "generator":
    from generators.run import build_engine

    started = build_engine(RunConfig.model_validate_json(config)).start()
elif sys.argv[1] == "judge":
    from generators.serving.judge import serve

    started = serve(JudgeConfig(path=model), "a-judge", Path(model))
else:
    from benchmarks.performance.whole_path import raw_rate

    started = raw_rate("recipes/quickstart.toml", [])
try:
    asyncio.run(started)
except ModuleNotFoundError as error:
    assert (error.name or "").startswith("vllm"), error
    print(json.dumps(dict(os.environ)))
"""


@pytest.mark.parametrize("role", ["generator", "judge", "benchmark"])
def test_vllm_spawns_on_gpus_and_nobody_asked_cuda_before(role: str, model_folder: Path) -> None:
    """A process that asked CUDA cannot fork one that uses it. That vLLM then spawns its engine
    there needs a GPU; that it obeys the variable is seen on a CPU, where vLLM itself sets it."""
    config = make_config(model_folder, "vllm").model_dump_json()
    done = subprocess.run(
        [sys.executable, "-c", ON_A_GPU_MACHINE, role, str(model_folder), config],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    environment = json.loads(done.stdout.splitlines()[-1])
    assert environment["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert environment["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"


def test_what_a_cpu_does_is_left_to_vllm() -> None:
    with mock.patch.dict(os.environ):
        for name in ("VLLM_WORKER_MULTIPROC_METHOD", "PYTORCH_NVML_BASED_CUDA_CHECK"):
            os.environ.pop(name, None)
        before = set(os.environ)
        prepare_environment(VllmSettings("m", 32, ()))
        assert not {"VLLM_WORKER_MULTIPROC_METHOD", "PYTORCH_NVML_BASED_CUDA_CHECK"} & (
            set(os.environ) - before
        )


def test_a_home_that_takes_no_folder_is_one_line(tmp_path: Path) -> None:
    """As in a container whose user nobody knows: its home is /."""
    (tmp_path / "home").touch()
    with mock.patch.dict(os.environ, {"HOME": str(tmp_path / "home")}):
        for name in ("HEADRACE_CACHE", "TORCHINDUCTOR_CACHE_DIR"):
            os.environ.pop(name, None)
        with pytest.raises(
            UserError, match=r"home/.cache/headrace cannot be made .*HEADRACE_CACHE"
        ):
            prepare_environment(VllmSettings("m", 32, ()))
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path)
        prepare_environment(VllmSettings("m", 32, ()))
        os.environ.pop("TORCHINDUCTOR_CACHE_DIR")
        os.environ["HEADRACE_CACHE"] = str(tmp_path / "cache")
        prepare_environment(VllmSettings("m", 32, ()))
        assert (tmp_path / "cache").is_dir()


@pytest.mark.parametrize(
    ("chosen", "told"),
    [(None, None), ("", ",headrace"), ("other", "other,headrace"), ("headrace,b", "headrace,b")],
)
def test_a_choice_of_plugins_has_ours_as_well(chosen: str | None, told: str | None) -> None:
    with mock.patch.dict(os.environ):
        os.environ.pop("VLLM_PLUGINS", None)
        os.environ |= {} if chosen is None else {"VLLM_PLUGINS": chosen}
        prepare_environment(VllmSettings("m", 32, ()))
        prepare_environment(VllmSettings("m", 32, ()))
        assert os.environ.get("VLLM_PLUGINS") == told


@pytest.mark.parametrize("owner", [None, str(os.getpid()), "1"], ids=["none", "own", "other"])
def test_the_entry_point_does_nothing_outside_of_an_engine(owner: str | None) -> None:
    """Without a generator that owns it, in the generator, and in other programs that it starts."""
    signal_of_death = ctypes.c_int(-1)
    with mock.patch.dict(os.environ):
        os.environ.pop(vllm_worker.OWNER_VARIABLE, None)
        os.environ |= {} if owner is None else {vllm_worker.OWNER_VARIABLE: owner}
        with mock.patch.object(vllm_worker, "install_gatherer") as gatherer:
            vllm_worker.install()
    ctypes.CDLL(None).prctl(2, ctypes.byref(signal_of_death))
    assert signal_of_death.value == 0
    assert not gatherer.called


@pytest.mark.vllm
@pytest.mark.slow
async def test_an_engine_that_did_not_load_the_entry_point_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from generators.engines import vllm_engine

    model = str(save_fixed_model(tmp_path / "model"))
    settings = VllmSettings(model, 32, (), max_num_seqs=2, kv_cache_gib=0.1)
    engine = VllmEngine(settings, WeightLayout({}, frozenset()))
    here = str(vllm_engine.PLUGIN_FOLDER)
    monkeypatch.setattr(vllm_engine, "PLUGIN_FOLDER", tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != here])
    try:
        with pytest.raises(UserError, match="did not load the entry point 'headrace'"):
            await engine.start()
    finally:
        await engine.stop()


@pytest.mark.vllm
@pytest.mark.slow
async def test_an_engine_shares_neither_connections_nor_signals_with_its_owner(
    tmp_path: Path,
) -> None:
    """It is forked from a process with connections and an event loop that waits for signals."""
    model = str(save_fixed_model(tmp_path / "model"))
    settings = VllmSettings(model, 32, (), max_num_seqs=2, kv_cache_gib=0.1)
    engine = VllmEngine(settings, weight_layout(model, read_config(model)))
    mine, theirs = socket.socketpair()
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, heard.set)
    try:
        await engine.start()
        mine.close()
        theirs.settimeout(5)
        assert theirs.recv(1) == b"", "the engine holds a connection that its owner closed"
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGTERM)
        await asyncio.sleep(0.5)
        assert not heard.is_set(), "a signal to the engine arrived at its owner"
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        theirs.close()
        await engine.stop()
