"""Whole runs for benchmarks: a recipe with overrides in, the run's figures out.

Every run is `headrace train` in a process of its own, as a user starts it. Rows are kept in a JSONL
file, one finished run a row under its key, so that an interrupted study goes on where it stopped.
"""

import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.errors import RunFailedError
from headrace.hardware import detect
from headrace.install import ROOT
from storage.queries import metric_series

Summary = dict[str, Any]


def train(recipe: str, overrides: Sequence[str], *, root: Path, name: str) -> Summary:
    """Run a recipe to its end; its `headrace show --json` and, as `folder`, its run folder.

    `name` must be new in `root`: the run is found by it. RunFailedError when it ended badly.
    """
    root = root.resolve()
    root.mkdir(parents=True, exist_ok=True)
    log = root / f"{name}.log"
    command = [
        sys.executable, "-m", "headrace", "train", recipe, "--plain", "--no-dashboard",
        "--root", str(root), f"name={name}", *overrides,
    ]  # fmt: skip
    with log.open("wb") as file:
        code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT).returncode
    if code != 0:
        tail = log.read_text(errors="replace")[-2000:]
        raise RunFailedError(f"{' '.join(command)} ended with {code}:\n{tail}")
    (run_id,) = [p.name for p in root.iterdir() if p.is_dir() and p.name.startswith(f"{name}-")]
    shown = subprocess.run(
        [sys.executable, "-m", "headrace", "show", run_id, "--json", "--root", str(root)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return {**json.loads(shown.stdout), "folder": str(root / run_id)}


def series(folder: Path, names: Sequence[str]) -> dict[str, list[Any]]:
    """Metrics of a run: `update`, and a list for each name, None where it has no finite value."""
    frame = metric_series(folder, names).pivot(index="x", columns="name", values="value")
    columns = {str(name): frame[name] for name in frame.columns}
    return {
        "update": [int(x) for x in frame.index],
        **{name: [_rounded(v) for v in column] for name, column in columns.items()},
    }


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def machine() -> dict[str, Any]:
    """The machine a row was measured on."""
    hardware = detect()
    return {
        "processor": _processor(),
        "cores": len(hardware.cores),
        "memory_gib": round(hardware.memory_bytes / 2**30, 1),
        "gpus": len(hardware.gpus),
        "python": platform.python_version(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


class Rows:
    """Finished runs of a study, by key, in a JSONL file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.rows[row["key"]] = row

    def add(self, key: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Write a row; returns it."""
        row = {"key": key, "at": round(time.time()), **values, "machine": machine()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.rows[key] = row
        return row


def seconds_to(summary: Summary, accuracy: float, *, successive: int = 1) -> float | None:
    """Training seconds at the first of `successive` evaluations in a row at or over `accuracy`.

    Evaluations and start-up are not on this clock. None: it never got there.
    """
    evaluations = sorted(summary["evaluations"], key=lambda e: (e["train_time_s"], e["label"]))
    for index in range(len(evaluations) - successive + 1):
        piece = evaluations[index : index + successive]
        if all(e["accuracy"] >= accuracy for e in piece):
            return float(piece[0]["train_time_s"])
    return None
