"""A whole run whose coordinator stands still and is killed, and whose learner is killed: what the
learner has in its weights is what the journal says, and nothing that was sampled is lost. One whose
vLLM gets its weights by broadcast, and whose learner and generator are killed."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from headrace.protocol.records.record_types import (
    ChunkArrived,
    LineageBegan,
    ProcessChanged,
    TokensLost,
)
from headrace.run_files.update_log import compare
from tests.integration.audit import assert_trained_once, records_of
from tests.integration.runs import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_what_the_weights_hold_is_what_the_journal_says(tmp_path: Path) -> None:
    run = Run(
        tmp_path / "runs", "generator.engine=fake", "stop.updates=14", "checkpoint.every_updates=3",
        "evaluation.before=false", "evaluation.after=false", "transport.heartbeat_timeout_s=3",
    )  # fmt: skip
    try:
        run.until(lambda: run.root.is_dir() and any(p.is_dir() for p in run.root.iterdir()))
        run.until(lambda: run.applied() >= 2)
        coordinator = run.supervised("coordinator")
        os.kill(coordinator, signal.SIGSTOP)
        time.sleep(5)
        os.kill(coordinator, signal.SIGCONT)
        run.until(lambda: run.applied() >= 5)
        os.kill(run.supervised("coordinator"), signal.SIGKILL)
        run.until(lambda: run.applied() >= 8)
        os.kill(run.supervised("learner-0"), signal.SIGKILL)
        assert run.wait() == 0, run.text()
    finally:
        run.end()
    records = records_of(run.run_dir)
    found = compare(run.run_dir)
    assert found.problems == []
    assert found.updates == 14
    assert_trained_once(run.run_dir)
    lost = [r for r in records if isinstance(r, ProcessChanged) and r.state == "lost"]
    assert {r.name for r in lost} <= {"learner-0"}
    assert sum(isinstance(r, LineageBegan) for r in records) == 1
    assert [r for r in records if isinstance(r, TokensLost) and r.reason != "held"] == []


@pytest.mark.vllm
def test_broadcasts_go_on_after_the_death_of_either_end(tmp_path: Path) -> None:
    run = Run(
        tmp_path / "runs", "generator.weights=broadcast", "stop.updates=12",
        "checkpoint.every_updates=3", "evaluation.before=false", "evaluation.after=false",
        "transport.heartbeat_timeout_s=3",
    )  # fmt: skip
    try:
        run.until(lambda: run.root.is_dir() and any(p.is_dir() for p in run.root.iterdir()))
        run.until(lambda: run.applied() >= 3)
        os.kill(run.supervised("learner-0"), signal.SIGKILL)
        run.until(lambda: run.applied() >= 7)
        os.kill(run.supervised("generator-0"), signal.SIGKILL)
        assert run.wait() == 0, run.text()
    finally:
        run.end()
    assert compare(run.run_dir).problems == []
    assert_trained_once(run.run_dir)
    logs = {path.name: path.read_text() for path in (run.run_dir / "logs").glob("*.log")}
    told = re.findall(r"version (\d+) reached \S+ by broadcast", "".join(logs.values()))
    chunks = [r for r in records_of(run.run_dir) if isinstance(r, ChunkArrived)]
    # Of versions that follow each other while no generator lives, nobody asks for the earlier ones.
    sampled = {span.version for chunk in chunks for span in chunk.spans}
    reached = set(map(int, told))
    assert len(sampled - reached) <= 2, logs
    assert max(sampled) in reached, logs
