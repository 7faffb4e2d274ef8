"""Whole runs for benchmarks: a recipe with overrides in, the run's figures out.

Every run is `headrace train` in a process of its own, as a user starts it; it is asked to end when
the benchmark's process has, however that ended.
"""

import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.kit.machine_state import MachineWatch, roles_in
from headrace.errors import RunFailedError
from headrace.host.install import ROOT
from headrace.host.process_reaper import die_with
from storage.queries import metric_series, run_summary

Summary = dict[str, Any]
INTERRUPTED = 130
"""Exit code of a run that was interrupted."""


def train(recipe: str, overrides: Sequence[str], *, root: Path, name: str) -> Summary:
    """Run a recipe to its end; return its `run_summary` and further figures.

    These are `folder`, the run's, `watch`, over the machine meanwhile, and `machine_state`, the
    row's fields of that. `name` must be new in `root`: the run is found by it. RunFailedError if
    it fails, KeyboardInterrupt when interrupted."""
    root = root.resolve()
    root.mkdir(parents=True, exist_ok=True)
    log = root / f"{name}.log"
    command = [
        sys.executable, "-m", "headrace", "train", recipe, "--plain", "--no-dashboard",
        "--root", str(root), f"name={name}", *overrides,
    ]  # fmt: skip
    with log.open("wb") as file, MachineWatch() as watch:
        code = subprocess.run(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            preexec_fn=partial(die_with, os.getpid(), signal.SIGTERM),
        ).returncode  # fmt: skip
    if code == INTERRUPTED:
        # The user stopped the run: that says nothing about its settings.
        raise KeyboardInterrupt
    if code != 0:
        tail = log.read_text(errors="replace")[-2000:]
        raise RunFailedError(f"{' '.join(command)} ended with {code}:\n{tail}")
    (folder,) = (p for p in root.iterdir() if p.is_dir() and p.name.startswith(f"{name}-"))
    return {
        **run_summary(folder),
        "folder": str(folder),
        "watch": watch,
        "machine_state": watch.state(roles_in(folder)),
    }


def series(folder: Path, names: Sequence[str]) -> dict[str, list[Any]]:
    """Return a run's metrics: `update`, and a list per name, None if not finite."""
    frame = metric_series(folder, names).pivot(index="x", columns="name", values="value")
    columns = {
        str(name): [float(f"{value:.4g}") if math.isfinite(value) else None for value in column]
        for name, column in frame.items()
    }
    return {"update": [int(x) for x in frame.index], **columns}
