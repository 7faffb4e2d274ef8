"""Bring `.venv` to what a lock says, with the environment's own pip.

In: name -> version of the lock. Out: the packages, whole; a progress line; pip's output in the log.
Promises: what an interrupted pip left half-made is removed first; a CPU environment gets
a CPU build of torch, wherever it comes from.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from machine import SetupError

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOG = ROOT / ".cache" / "setup.log"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
FETCHED = re.compile("^(?:Collecting|Processing) ", re.MULTILINE)
PIP_OPTIONS = ["--disable-pip-version-check", "--no-input"]
# One process imports what a generator needs, the other what everybody else needs: a broken install
# shows here and not in the middle of a run, and only what is used is compiled to bytecode.
FIRST_IMPORTS = (
    "import vllm.v1.engine.async_llm, vllm.entrypoints.llm",
    "import torch, transformers, deepspeed, sqlalchemy, pyarrow, streamlit, altair, math_verify",
)


def say(text: str) -> None:
    print(f"[setup] {text}", flush=True)


def site_packages() -> Path:
    found = sorted(VENV.glob("lib/python3*/site-packages"))
    if not found:
        raise SetupError(f"{VENV} is damaged: remove it and run make setup again")
    return found[-1]


def installed() -> dict[str, str]:
    """Name -> version of every package that is completely installed.

    pip lists `INSTALLER` in `RECORD` as its last act on a package: without it, an install was
    interrupted, and pip would take the leftover for the package. Such leftovers are removed.
    """
    complete: dict[str, str] = {}
    for info in site_packages().glob("*.dist-info"):
        record = info / "RECORD"
        if record.exists() and f"{info.name}/INSTALLER" in record.read_text(encoding="utf-8"):
            name, _, version = info.name[: -len(".dist-info")].partition("-")
            complete[re.sub(r"[-_.]+", "-", name).lower()] = version
        else:
            shutil.rmtree(info)
    return complete


def still_missing(lock: dict[str, str]) -> list[str]:
    have = installed()
    return [
        f"{name}=={version}"
        for name, version in lock.items()
        if have.get(re.sub(r"[-_.]+", "-", name).lower(), "").split("+")[0] != version.split("+")[0]
    ]


class Progress:
    """One line that says how far pip is: rewritten on a terminal, every 15 s in a log."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.started = time.monotonic()
        self.shown = self.started
        self.terminal = sys.stdout.isatty()

    def show(self, count: int, what: str, last: bool = False) -> None:
        now = time.monotonic()
        if not last and now - self.shown < (0.2 if self.terminal else 15.0):
            return
        self.shown = now
        text = f"[setup] {count:3d}/{self.total} packages  {now - self.started:4.0f} s  {what}"
        if self.terminal:
            print(f"\r{text[:100]:<100}", end="\n" if last else "", flush=True)
        else:
            print(text, flush=True)


def pip(jobs: list[list[str]], total: int, progress: bool = True) -> None:
    """Run the environment's pip once a job, side by side: output to logs, one line to the user."""
    command = [str(VENV / "bin" / "python"), "-u", "-m", "pip", "install", *PIP_OPTIONS]
    logs = [LOG.with_suffix(f".{number}.log") for number in range(len(jobs))]
    with contextlib.ExitStack() as files:
        children = [
            subprocess.Popen(
                [*command, *job],
                stdout=files.enter_context(log.open("w", encoding="utf-8")),
                stderr=subprocess.STDOUT,
            )
            for job, log in zip(jobs, logs, strict=True)
        ]
    try:
        watch(children, logs, Progress(total) if progress else None)
    except KeyboardInterrupt:
        for child in children:
            child.terminate()
            child.wait()
        raise
    finally:
        texts = [log.read_text(encoding="utf-8", errors="replace") for log in logs]
        with LOG.open("a", encoding="utf-8") as whole:
            whole.writelines(texts)
        for log in logs:
            log.unlink()
    for child, text in zip(children, texts, strict=True):
        if child.returncode != 0:
            errors = [line[6:].strip() for line in text.splitlines() if line.startswith("ERROR:")]
            reason = errors[-1] if errors else f"exit {child.returncode}"
            if "connection broken by" in text:
                reason += "; a package index could not be reached, check the network"
            raise SetupError(f"pip failed: {reason} (log: {LOG}; run again to continue)", 1)


def watch(
    children: list[subprocess.Popen[bytes]], logs: list[Path], shown: Progress | None
) -> None:
    """Wait for pip, showing first what it fetched, then what it installed."""
    folder = site_packages()
    before = sum(1 for _ in folder.glob("*.dist-info"))
    while any(child.poll() is None for child in children):
        if shown:
            texts = [log.read_text(encoding="utf-8", errors="replace") for log in logs]
            fetched = sum(len(FETCHED.findall(text)) for text in texts)
            present = sum(1 for _ in folder.glob("*.dist-info")) - before
            if all("\nInstalling collected" in text for text in texts):
                shown.show(max(present, 0), "installed")
            else:
                shown.show(min(fetched, shown.total), "fetched")
        time.sleep(0.2)
    if shown and all(child.returncode == 0 for child in children):
        shown.show(shown.total, "installed", last=True)


def cpu_torch(version: str, python: Path = VENV / "bin" / "python") -> list[str]:
    """pip's arguments for a CPU build of torch: its own sources, else PyTorch's wheel index."""
    wanted = f"torch=={version.split('+')[0]}+cpu"
    ask = [
        "install",
        *PIP_OPTIONS,
        "--dry-run",
        "--ignore-installed",
        "--no-deps",
        "--quiet",
        wanted,
    ]
    command = [str(python), "-m", "pip", *ask]
    if subprocess.run(command, capture_output=True).returncode == 0:
        return [wanted]
    say(f"pip's own sources have no CPU build of torch; taking it from {TORCH_CPU_INDEX}")
    return [wanted, "--extra-index-url", TORCH_CPU_INDEX]


def halves(requirements: list[str]) -> list[list[str]]:
    """Two lists of equal length; names with one first word, which may share folders, together."""
    parts: list[list[str]] = [[], []]
    for _, family in itertools.groupby(
        sorted(requirements), key=lambda name: re.split("[-=]", name)[0]
    ):
        min(parts, key=len).extend(family)
    return [part for part in parts if part]


def install_packages(device: str, lock: dict[str, str]) -> None:
    """Install what the lock names and the environment lacks.

    torch and setuptools go first: the one may have an index of its own, the other builds what
    has no wheel. The rest is shared by two processes, because pip uses one core and waits much.
    """
    missing = still_missing(lock)
    if not missing:
        return
    say(f"{len(missing)} of {len(lock)} packages of requirements/{device}.lock to install")
    # Bytecode is written by the first import: of 27 thousand modules a run uses six thousand.
    options = ["--no-deps", "--no-compile", "--progress-bar", "off"]
    first = [name for name in missing if re.match("(torch|setuptools)==", name)]
    rest = [name for name in missing if name not in first]
    if first:
        wanted = [name for name in first if not (device == "cpu" and name.startswith("torch=="))]
        torch = cpu_torch(lock["torch"]) if len(wanted) < len(first) else []
        pip([[*options, *wanted, *torch]], len(first))
    if rest:
        pip([[*options, *part] for part in halves(rest)], len(rest))
    left = still_missing(lock)
    if left:
        names = " ".join(left[:5])
        raise SetupError(f"pip succeeded but these are not installed: {names} (log: {LOG})", 1)


def first_import() -> None:
    """Import the heavy packages once, two processes side by side."""
    say("first import of the installed packages (once)")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment.update(OMP_NUM_THREADS="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1")
    python = str(VENV / "bin" / "python")
    children = [
        subprocess.Popen(
            [python, "-c", code],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for code in FIRST_IMPORTS
    ]
    for code, child in zip(FIRST_IMPORTS, children, strict=True):
        _, errors = child.communicate()
        if child.returncode != 0:
            with LOG.open("a", encoding="utf-8") as log:
                log.write(f"$ {code}\n{errors}\n")
            reason = (
                errors.strip().splitlines()[-1] if errors.strip() else f"exit {child.returncode}"
            )
            raise SetupError(f"the installed packages do not import: {reason} (log: {LOG})", 1)
