"""What can become of a scripted run, written behind it: a collapse, a crash, signs of life."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headrace.protocol.records.record_types import BatchTaken, ProcessChanged, Record, RunPhase
from headrace.run_files.run_folder import NOW
from storage import queries
from storage.run_store import RunStore
from tests.storage.samples import commit

TRACEBACK = """\
Traceback (most recent call last):
  File "learner/loop.py", line 7, in train
    step(<img src=x onerror=alert(1)>)
MemoryError: 3 GiB
"""


def collapse(run_dir: Path, first: int, updates: int) -> None:
    """So many updates from `first` on in which the policy has no entropy left."""
    records: list[Record] = []
    for update in range(first, first + updates):
        at = 1_767_270_000.0 + update
        batch = BatchTaken(
            at=at, update=update, lineage=0, version=update, windows=[], value_trajectories=[]
        )
        metrics: dict[str, Any] = {"actor/entropy": 0.01, "reward/mean": 0.5}
        records += [batch, commit(batch, at=at + 0.5, metrics=metrics)]
    _append(run_dir, records)


def crash(run_dir: Path) -> None:
    """The learner dies with a traceback, and the run with it."""
    at = queries.run_line(run_dir).wall_s + 1_767_268_800.0
    lost = ProcessChanged(
        at=at, name="learner-0", role="learner", pid=4103, host="node-a", state="lost",
        detail="its connection is closed",
    )  # fmt: skip
    end = RunPhase(at=at, phase="failed", detail="learner-0 died 4 times (exit code 1)")
    _append(run_dir, [lost, end])
    events = [{"at": at, "event": "started", "name": "coordinator", "pid": 11}]
    died = {"event": "died", "name": "learner-0", "code": 1, "detail": "exit code 1"}
    events += [{"at": at + i, **died} for i in range(4)]
    lines = [json.dumps(event) + "\n" for event in events]
    (run_dir / "supervisor.jsonl").write_text("".join(lines))
    (run_dir / "logs").mkdir(exist_ok=True)
    (run_dir / "logs" / "learner-0.log").write_text(f"update 3\n{TRACEBACK}")


def breathe(
    run_dir: Path,
    silent: str = "",
    age_s: float = 0.0,
    waits: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """The coordinator of a live run says that it hears everybody, but for one, and what it waits
    for."""
    (run_dir / "coordinator.json").write_text(json.dumps({"pid": os.getpid()}))
    names = ("generator-0", "learner-0", "reward-0")
    said = {
        "at": time.time(),
        "phase": "training",
        "waits": [{"for": words, "age_s": age} for words, age in waits.items()],
        "heard": {name: age_s if name == silent else 0.5 for name in names},
    }
    (run_dir / NOW).write_text(json.dumps(said))


def _append(run_dir: Path, records: list[Record]) -> None:
    store = RunStore.open(run_dir)
    store.append(records)
    store.close()
