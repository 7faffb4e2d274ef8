"""Set up the project's own Python environment in `.venv`.

In: the lock of this machine (`requirements/cpu.lock` or `cuda.lock`) and `pyproject.toml`.
Out: `.venv` with exactly those packages and the project itself, installed editable.
Promises: standard library only; names what pip cannot bring before it starts; a second call
installs nothing; an interrupted call is continued by the next one; two calls at once wait for
each other.

`HEADRACE_DEVICE=cpu|cuda` forces the lock.
Exit codes: 0 done, 1 pip failed, 2 the machine lacks something.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "headrace-setup.json"
LOG = ROOT / ".cache" / "setup.log"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DISK_GB = {"cpu": 7, "cuda": 20}
PIP_OPTIONS = ["--disable-pip-version-check", "--no-input"]
# One process imports what a generator needs, the other what everybody else needs: a broken install
# shows here and not in the middle of a run, and only what is used is compiled to bytecode.
FIRST_IMPORTS = (
    "import vllm.v1.engine.async_llm, vllm.entrypoints.llm",
    "import torch, transformers, deepspeed, sqlalchemy, pyarrow, streamlit, altair, math_verify",
)


class SetupError(Exception):
    """One line for the user, and the exit code."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


def say(text: str) -> None:
    print(f"[setup] {text}", flush=True)


# ---------------------------------------------------------------- what this machine is


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


def check_machine(device: str) -> None:
    """Raise with the command that helps if something is missing that pip cannot bring."""
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
    free_gb = shutil.disk_usage(ROOT).free / 1e9
    if free_gb < DISK_GB[device] and not STAMP.exists():
        raise SetupError(
            f"{free_gb:.1f} GB are free in {ROOT}, the {device} environment needs about"
            f" {DISK_GB[device]} GB: make room or clone to a larger disk"
        )


# ---------------------------------------------------------------- what is there already


def read_lock(device: str) -> dict[str, str]:
    """Package name -> pinned version, in the order of the file."""
    path = ROOT / "requirements" / f"{device}.lock"
    if not path.exists():
        raise SetupError(f"{path} is missing: restore it with git checkout requirements")
    lines = (line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return dict(line.split("==", 1) for line in lines if line)


def fingerprint(device: str) -> dict[str, str]:
    """What the finished environment depends on; equal fingerprints mean there is nothing to do."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
    ours = [project["build-system"], project["project"], project["tool"]["setuptools"], packages]
    lock = (ROOT / "requirements" / f"{device}.lock").read_bytes()
    return {
        "device": device,
        "lock": hashlib.sha256(lock).hexdigest(),
        "project": hashlib.sha256(json.dumps(ours, sort_keys=True).encode()).hexdigest(),
        "folder": str(VENV),
    }


def read_stamp() -> dict[str, str]:
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) and (VENV / "bin" / "python").exists() else {}


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


# ---------------------------------------------------------------- installing


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the set-up lock of this folder; the system frees it however the process ends."""
    LOG.parent.mkdir(exist_ok=True)
    with (LOG.parent / "setup.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up of this folder is running; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def make_venv(moved: bool) -> None:
    """Create `.venv`, or make it anew if it cannot run pip or stood in another folder."""
    python = VENV / "bin" / "python"
    if python.exists() and not moved:
        probe = [
            str(python),
            "-c",
            f"import pip, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})",
        ]
        if subprocess.run(probe, capture_output=True).returncode == 0:
            return
    say(f"making .venv with Python {sys.version.split()[0]}")
    base = getattr(sys, "_base_executable", None) or sys.executable
    made = subprocess.run(
        [base, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True
    )
    if made.returncode != 0:
        reason = (made.stdout + made.stderr).strip().splitlines()
        raise SetupError(f"cannot make .venv: {reason[-1] if reason else 'no reason given'}", 1)


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


def pip(arguments: list[str], total: int, progress: bool = True) -> None:
    """Run the environment's pip: its output goes to the log, one line of progress to the user."""
    command = [str(VENV / "bin" / "python"), "-u", "-m", "pip", "install", *PIP_OPTIONS, *arguments]
    display = Progress(total)
    folder = site_packages()
    before = sum(1 for _ in folder.glob("*.dist-info"))
    fetched, unpacking = 0, False
    with LOG.open("a", encoding="utf-8") as log:
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        try:
            while child.poll() is None:
                for line in iter(child.stdout.readline, ""):
                    log.write(line)
                    fetched += line.startswith(("Collecting ", "Processing "))
                    unpacking = unpacking or line.startswith("Installing collected")
                if progress and unpacking:
                    display.show(sum(1 for _ in folder.glob("*.dist-info")) - before, "installed")
                elif progress:
                    display.show(min(fetched, total), "fetched")
                time.sleep(0.1)
        except KeyboardInterrupt:
            child.terminate()
            child.wait()
            raise
        log.write(child.stdout.read() or "")
    if child.returncode != 0:
        errors = [
            line
            for line in LOG.read_text(encoding="utf-8").splitlines()
            if line.startswith("ERROR:")
        ]
        reason = errors[-1][len("ERROR:") :].strip() if errors else f"exit {child.returncode}"
        raise SetupError(f"pip failed: {reason} (whole log: {LOG}; run again to continue)", 1)
    if progress:
        display.show(total, "installed", last=True)


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


def install_packages(device: str) -> None:
    """Install what the lock names and the environment lacks, torch first."""
    lock = read_lock(device)
    missing = still_missing(lock)
    if not missing:
        return
    say(f"{len(missing)} of {len(lock)} packages of requirements/{device}.lock to install")
    # Bytecode is written by the first import: of 27 thousand modules a run uses six thousand.
    options = ["--no-deps", "--no-compile", "--progress-bar", "off"]
    torch = f"torch=={lock['torch']}"
    if device == "cpu" and torch in missing:
        missing.remove(torch)
        pip([*options, *cpu_torch(lock["torch"])], 1)
    if missing:
        wanted = LOG.parent / "setup-requirements.txt"
        wanted.write_text("\n".join(missing) + "\n", encoding="utf-8")
        pip([*options, "-r", str(wanted)], len(missing))
    left = still_missing(lock)
    if left:
        raise SetupError(
            f"pip reported success but these are not installed: {' '.join(left[:5])} (log: {LOG})",
            1,
        )


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


def set_up() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - started by whatever python3 is
        have = ".".join(str(part) for part in sys.version_info[:3])
        raise SetupError(
            f"Headrace needs Python 3.11 or newer, {sys.executable} is {have}:"
            " install python3.11, or name one with make setup PYTHON=/path/to/python3.11"
        )
    device = choose_device()
    if read_stamp() == fingerprint(device):
        return
    check_machine(device)
    started = time.monotonic()
    with one_at_a_time():
        wanted, stamp = fingerprint(device), read_stamp()
        if stamp == wanted:
            return
        LOG.write_text("", encoding="utf-8")
        make_venv(moved=bool(stamp) and stamp.get("folder") != wanted["folder"])
        STAMP.unlink(missing_ok=True)
        install_packages(device)
        pip(["--no-deps", "--no-build-isolation", "-e", str(ROOT)], 1, progress=False)
        if stamp.get("lock") != wanted["lock"]:
            first_import()
        fresh = STAMP.with_suffix(".new")
        fresh.write_text(json.dumps(wanted, indent=1), encoding="utf-8")
        fresh.replace(STAMP)
    say(f"ready: {device} environment in .venv after {time.monotonic() - started:.0f} s")


def main() -> int:
    try:
        set_up()
    except SetupError as error:
        print(f"[setup] {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("\n[setup] interrupted; run it again to continue where it stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
