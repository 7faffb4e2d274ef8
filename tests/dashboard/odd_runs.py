"""What can become of a scripted run, written behind it: a collapse, a crash, signs of life."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from headrace.protocol.records.record_types import (
    BatchTaken,
    ChunkArrived,
    EvaluationDone,
    GroupIssued,
    ProcessChanged,
    Record,
    RewardArrived,
    RunPhase,
    TrajectoryEnded,
)
from headrace.protocol.token_spans import Span
from headrace.run_files.checked_lines import checked_line
from headrace.run_files.run_folder import LIVE_STATE_FILE
from storage import queries
from storage.run_store import RunStore
from tests.dashboard.scripted_run import encode
from tests.storage.samples import commit

RAISED = "KeyError: 'gold' ![i](http://e.test/raised) <img src=http://e.test/raised>"
HOSTILE = (
    "<think>so ![t](http://e.test/t)</think>It **is** $x^2$ and \\(y\\) "
    "<img src=http://e.test/a onerror=alert(1)><script>alert(2)</script> ![b](http://e.test/b) "
    "![r] [r]: http://e.test/c [l](http://e.test/d) <http://e.test/e> http://e.test/f www.e.test "
    "$\\includegraphics{http://e.test/g}$ $\\href{javascript:alert(3)}{z}$ "
    "$\\htmlStyle{background:url(http://e.test/h)}{w}$ :material/home: &#33;[i](http://e.test/i)"
)
"""What would run, or make a browser ask e.test, if any of it were taken for what it looks like."""

TRACEBACK = """\
Traceback (most recent call last):
  File "learner/loop.py", line 7, in train
    step(<img src=x onerror=alert(1)>)
MemoryError: 3 GiB
"""


FIRST_ASKED = 100_000
"""No trajectory of a script has that id."""


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


def evaluate(
    run_dir: Path,
    texts: Mapping[str, list[str]],
    *,
    ends: bool = True,
    purpose: Literal["eval", "along"] = "eval",
) -> None:
    """So many evaluations as each prompt has texts, which are what was answered; those that are
    "1" are right. Where it does not end, the reward function raises and the run fails."""
    version = queries.run_figures(run_dir)["weight_version"]
    at = queries.run_line(run_dir).wall_s + 1_767_268_800.0
    key = FIRST_ASKED + 100 * queries.asked_number(run_dir)
    records: list[Record] = []
    for number, said in enumerate(zip(*texts.values(), strict=True)):
        for place, (prompt, text) in enumerate(zip(texts, said, strict=True)):
            key, at, ids = key + 1, at + 1, np.array(encode(text), np.int32)
            records += [
                GroupIssued(
                    at=at, group_id=key, prompt_id=prompt, position=place, purpose=purpose,
                    prompt=f"<|im_start|>user\n{prompt}?<|im_end|>\n<|im_start|>assistant\n",
                    answer="![i](http://e.test/answer)", info="{}",
                    prompt_ids=np.array([1], np.int32),
                    trajectory_ids=[key], seeds=[1],
                ),
                ChunkArrived(
                    at=at, trajectory_id=key, lease_id=0, chunk_index=0, generator="generator-0",
                    start=0, token_ids=ids, logprobs=np.full(len(ids), -0.5, np.float32),
                    spans=[Span(version, 0, len(ids))], finish="stop",
                ),
                TrajectoryEnded(at=at, trajectory_id=key, status="finished", length=len(ids)),
                RewardArrived(
                    at=at, trajectory_id=key, status="ok", reward=float(text == "1"),
                    correct=text == "1", parts={"tests_passed": 0.5},
                )
                if ends
                else RewardArrived(
                    at=at, trajectory_id=key, status="crashed", reward=None, error=RAISED
                ),
            ]  # fmt: skip
        if ends and purpose == "eval":
            right = sum(text == "1" for text in said) / len(said)
            records.append(
                EvaluationDone(
                    at=at,
                    label="during",
                    update=3 + number,
                    version=version,
                    num_prompts=len(said),
                    accuracy=right,
                    response_length=3.0,
                    max_response_length=9,
                    truncated=0.0,
                    failed=0,
                    seconds=1.0,
                    train_time_s=10.0 + number,
                )
            )
    if not ends:
        why = f"reward-0: 64 scorings in a row failed; the last: crashed, {RAISED}"
        records.append(RunPhase(at=at, phase="failed", detail=why))
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
    lines = [checked_line(event) for event in events]
    (run_dir / "supervisor.jsonl").write_bytes(b"".join(lines))
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
    names = ("generator-0", "learner-0", "reward-0")
    said = {
        "at": time.time(),
        "phase": "training",
        "waits": [{"for": words, "age_s": age} for words, age in waits.items()],
        "heard": {name: age_s if name == silent else 0.5 for name in names},
    }
    (run_dir / LIVE_STATE_FILE).write_text(json.dumps(said))


def _append(run_dir: Path, records: list[Record]) -> None:
    store = RunStore.open(run_dir)
    store.append(records)
    store.close()
