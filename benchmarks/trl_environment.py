"""TRL's own Python environment: built from its lock at the first use, below `.cache`.

In: `requirements/trl.lock`. Out: the environment's Python. The project does not depend on TRL, and
TRL's environment does not know the project's packages. An environment that another lock made, or
that was not finished, is made anew.
"""

import hashlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock

from headrace.errors import UserError
from headrace.install import ROOT

FOLDER = ROOT / ".cache" / "trl"
LOCK = ROOT / "requirements" / "trl.lock"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Where the set-up, too, takes torch from if pip's own sources have no build for a CPU."""

Run = Callable[[Sequence[str], Path], bool]
"""Runs a command with its output appended to a log; whether it succeeded."""


def run(command: Sequence[str], log: Path) -> bool:
    """Run a command to its end."""
    with log.open("ab") as file:
        return subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode == 0


def trl_python(folder: Path = FOLDER, lock: Path = LOCK, run: Run = run) -> Path:
    """The environment's Python, the environment built if need be; UserError when it cannot be. Of
    several that ask at once, one builds and the others wait."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.building")):
        return _built(folder, lock, run)


def _built(folder: Path, lock: Path, run: Run) -> Path:
    python, stamp = folder / "bin" / "python", folder / "headrace-lock"
    text = lock.read_text(encoding="utf-8")
    wanted = hashlib.sha256(text.encode()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"building TRL's environment in {folder} (once)", flush=True)
    log = folder.with_suffix(".log")
    log.write_bytes(b"")
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]
    (torch,) = (f"{pin}+cpu" for pin in pins if pin.startswith("torch=="))
    others = [pin for pin in pins if not pin.startswith("torch==")]
    # Bytecode of what is used comes with the first import; all of it would take longest of all.
    pip = [str(python), "-m", "pip", "install", "--no-deps", "--no-input", "--no-compile"]
    elsewhere = ["--extra-index-url", TORCH_CPU_INDEX]
    made = (
        run([sys.executable, "-m", "venv", "--clear", str(folder)], log)
        and (run([*pip, torch], log) or run([*pip, torch, *elsewhere], log))
        and run([*pip, *others], log)
    )
    if not made:
        raise UserError(f"TRL's environment could not be built; what pip said is in {log}")
    stamp.write_text(wanted, encoding="utf-8")
    return python
