"""What this machine is, and whether it has what pip cannot bring.

Out: the device to install for, and a `SetupError` with the command that helps if not.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

DISK_GB = {"cpu": 7, "cuda": 20}


class SetupError(Exception):
    """One line for the user, and the exit code."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


def choose_device() -> str:
    """`cpu` or `cuda`: as forced, else by the presence of an NVIDIA driver."""
    forced = os.environ.get("HEADRACE_DEVICE", "").strip().lower()
    if forced:
        if forced not in DISK_GB:
            raise SetupError(
                f"HEADRACE_DEVICE is {forced!r}: set it to cpu or cuda, or leave it out"
            )
        return forced
    if Path("/dev/nvidia0").exists():
        return "cuda"
    if shutil.which("nvidia-smi"):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            listing = subprocess.run(
                ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20
            )
            if listing.returncode == 0 and "GPU" in listing.stdout:
                return "cuda"
    return "cpu"


def install_command(needs: list[str]) -> str:
    """The command that installs `needs` (compiler, headers, venv) on this distribution."""
    words = ""
    with contextlib.suppress(OSError):
        release = Path("/etc/os-release").read_text(encoding="utf-8")
        words = " ".join(re.findall(r'^(?:ID|ID_LIKE)="?([^"\n]*)', release, re.MULTILINE))
    minor = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    sudo = "" if os.geteuid() == 0 else "sudo "
    if re.search(r"debian|ubuntu", words):
        names = {"compiler": "g++", "headers": f"{minor}-dev", "venv": f"{minor}-venv"}
        packages = " ".join(names[need] for need in needs)
        return f"{sudo}apt-get update && {sudo}apt-get install -y {packages}"
    if re.search(r"fedora|rhel|centos", words):
        names = {"compiler": "gcc-c++", "headers": f"{minor}-devel", "venv": minor}
        return f"{sudo}dnf install -y " + " ".join(names[need] for need in needs)
    names = {"compiler": "g++", "headers": f"the headers of {minor}", "venv": f"venv for {minor}"}
    return "your system's package manager: " + ", ".join(names[need] for need in needs)


def check_machine(device: str, folder: Path, fresh: bool) -> None:
    """Raise if tools lack, or disk space in `folder` before a fresh install."""
    if not sys.platform.startswith("linux"):
        raise SetupError(
            f"Headrace runs on Linux (vLLM has no wheels for {sys.platform}): use a container"
        )
    missing: dict[str, str] = {}
    if not any(
        shutil.which(name) for name in (os.environ.get("CXX", "g++").split()[0], "g++", "c++")
    ):
        missing["compiler"] = "a C++ compiler"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing["headers"] = "the Python headers (Python.h)"
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        missing["venv"] = "Python's venv module"
    if missing:
        what = ", ".join(missing.values())
        raise SetupError(
            f"this machine lacks {what}; install with: {install_command(list(missing))}"
        )
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb < DISK_GB[device] and fresh:
        raise SetupError(
            f"{free_gb:.1f} GB are free in {folder}, the {device} environment needs about"
            f" {DISK_GB[device]} GB: make room or clone to a larger disk"
        )
