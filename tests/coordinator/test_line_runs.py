"""A real coordinator and a real reward worker, whose sources of lines and outcomes hang now and
then; generator and learner are scripted."""

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.config.sections.run import RunConfig
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import (
    LinesScored,
    RewardArrived,
    UpdateCommitted,
    WindowsReady,
)
from storage.audit import audit_run
from storage.journal.store import read_journal
from tests.coordinator.peers import (
    MODEL,
    CoordinatorProcess,
    ScriptedGenerator,
    ScriptedLearner,
)
from tests.coordinator.test_loop import assert_balanced, records_of, run_config
from tests.lined_model import lined_model
from tests.metric_values import number
from tests.warm_roles import warm_role

TEXT, NEWLINE = 5, 16
MINE = """\
import time

def lines(completion, lines):
    if len(completion) % 7 == 6:
        time.sleep(3600)
    if len(completion) % 7 == 5:
        raise KeyError("a line")
    return [None if index % 3 == 2 else 1.0 for index, _ in enumerate(lines)]

def outcome(completion, answer):
    return float(len(completion) % 2)

def slow(completion):
    if len(completion) % 4 == 3:
        time.sleep(3600)
    return 1.0
"""


class Writer(ScriptedGenerator):
    """Every third token is a newline."""

    def chunk(
        self, lease: m.Lease, index: int, start: int, end: int, finish: m.Finish | None
    ) -> m.TrajectoryChunk:
        made = super().chunk(lease, index, start, end, finish)
        ids = [NEWLINE if at % 3 == 2 else TEXT for at in range(start, end)]
        fields = {name: getattr(made, name) for name in made.__struct_fields__}
        return m.TrajectoryChunk(**{**fields, "token_ids": np.array(ids, np.int32)})


def lined_config(tmp_path: Path, **sections: Any) -> RunConfig:
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    model = lined_model(tmp_path / "model", MODEL, ";")
    function = {"kind": "function", "children": 2}
    sources = {
        "outcome": {**function, "function": f"{mine}:outcome"},
        "slow": {**function, "function": f"{mine}:slow", "timeout_s": 0.5},
        "lines": {**function, "function": f"{mine}:lines", "timeout_s": 0.5, "unit": "line"},
    }
    reward = {
        "sources": sources,
        "route": {"column": "terms", "values": {"3": "slow"}, "default": "outcome"},
        "process": {"source": "lines", "lines": 3},
    }
    return run_config(
        model={"path": str(model)},
        reward=reward,
        storage={"commit_interval_ms": 5, "token_diagnostics": False},
        evaluation={"before": False, "after": False},
        stop={"updates": 10**6},
        **sections,
    )


def unseen(coordinator: CoordinatorProcess, learner: ScriptedLearner) -> list[str]:
    """What the run has still to show."""
    batches = read_journal(coordinator.run_dir / "journal")
    records = [record for batch in batches for _, record in batch]
    lines = {r.status for r in records if isinstance(r, LinesScored)}
    outcomes = {(r.source, r.status) for r in records if isinstance(r, RewardArrived)}
    windows = {s for r in records if isinstance(r, WindowsReady) for s in r.lines.values()}
    trained = [w for s in learner.seen if isinstance(s, m.BatchPart) for w in s.shard.windows]
    shown = {
        "lines of every status": lines == {"ok", "timeout", "crashed"},
        "an outcome": ("outcome", "ok") in outcomes,
        "an outcome that came to nothing": ("slow", "timeout") in outcomes,
        "a window with its lines": "scored" in windows,
        "a window without": bool(windows & {"late", "failed"}),
        "lines trained in an open window": any(
            r.value for w in trained if not w.finished for r in w.rewards
        ),
        "eight updates": learner.update >= 8,
    }
    return [what for what, seen in shown.items() if not seen]


@pytest.mark.parametrize("unit", ["window", "trajectory"])
async def test_lines_in_time_late_and_in_vain(tmp_path: Path, unit: str) -> None:
    """The stream goes on, windows of answers that go on are trained with what their lines earned,
    and the audit agrees."""
    schedule = {"mode": "streaming", "unit": unit, "window": 4, "batch_windows": 8}
    coordinator = CoordinatorProcess(tmp_path / "run-1", lined_config(tmp_path, schedule=schedule))
    address = coordinator.start()
    with (tmp_path / "reward.log").open("wb") as log:
        worker = warm_role("rewards.run", "--connect", address, "--name", "reward-0", log=log)
    deadline = time.monotonic() + 120.0
    learner = ScriptedLearner(address, "learner-0")
    running = [
        asyncio.create_task(peer.run())
        for peer in (Writer(address, "generator-0", capacity=8), learner)
    ]
    try:
        while missing := unseen(coordinator, learner):
            await asyncio.sleep(0.5)
            assert time.monotonic() < deadline, f"not seen: {missing}"
        coordinator.interrupt()
        await asyncio.wait_for(asyncio.gather(*running), 60)
        assert coordinator.wait() == 0
        assert worker.wait(30) == 0
    finally:
        for task in running:
            task.cancel()
        coordinator.end()
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    assert unseen(coordinator, learner) == []
    records = records_of(coordinator.run_dir)
    assert_balanced(records)
    figures = [r.metrics for r in records if isinstance(r, UpdateCommitted)]
    assert sum(number(f.get("reward/process_unfinished", 0.0)) for f in figures) > 0
    report = audit_run(coordinator.run_dir)
    # The scripted learner writes no checkpoints.
    assert [f for f in report.findings if f.kind != "checkpoint"] == []
    assert report.balanced
