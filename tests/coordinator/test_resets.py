"""A run whose connections are reset: every kind of message is lost once, of every role, and the run
goes on as if it had not been."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import (
    BatchReturned,
    Incident,
    LineageBegan,
    ProcessChanged,
    TokensLost,
    UpdateCommitted,
)
from headrace.run_files.update_log import compare
from headrace_cli.launch.monitor import Monitor
from storage.audit import audit_run
from tests.breaker import Breaker, Way, breaking
from tests.coordinator.peers import CoordinatorProcess, ScriptedReward, until
from tests.coordinator.test_loop import assert_balanced, records_of, run_config
from tests.coordinator.test_restart import FileLearner, beating, generating

KINDS: dict[str, list[tuple[Way, str]]] = {
    "generator": [
        ("to", "Hello"), ("to", "Chunks"), ("to", "GeneratorReport"), ("to", "WeightsLoaded"),
        ("from", "Welcome"), ("from", "Leases"), ("from", "ChunkAck"), ("from", "WeightNotice"),
        ("from", "Hold"), ("from", "Shutdown"),
    ],
    "reward": [
        ("to", "Hello"), ("to", "Scores"), ("from", "Welcome"), ("from", "ScoreRequest"),
        ("from", "Shutdown"),
    ],
    "learner": [
        ("to", "Hello"), ("to", "WeightNotice"), ("to", "UpdateDone"), ("to", "CheckpointDone"),
        ("from", "Welcome"), ("from", "Batch"), ("from", "BatchPart"),
        ("from", "CheckpointRequest"), ("from", "Shutdown"),
    ],
    "monitor": [
        ("to", "Hello"), ("to", "StatusRequest"), ("to", "Command"), ("from", "Welcome"),
        ("from", "Status"),
    ],
}  # fmt: skip
"""Of what a run says in any case."""
UPDATES = 6


class SlowLearner(FileLearner):
    """Updates take a while, so that holds and leases come between them."""

    async def report(self, batch: m.Batch) -> None:
        await asyncio.sleep(0.1)
        await super().report(batch)


@contextlib.asynccontextmanager
async def breakers(address: str) -> AsyncIterator[dict[str, Breaker]]:
    async with contextlib.AsyncExitStack() as stack:
        yield {
            role: await stack.enter_async_context(breaking(address, kinds))
            for role, kinds in KINDS.items()
        }


def watch_and_stop(coordinator: CoordinatorProcess, address: str) -> None:
    """A monitor that asks until it is answered, and then ends the run."""
    monitor = Monitor(config := run_config(), address)
    assert config.transport.curve_keys is None
    try:
        deadline = time.monotonic() + 30.0
        for _ in range(2):
            monitor.request_status()
            while monitor.latest_status(1.0) is None:
                assert time.monotonic() < deadline
                monitor.request_status()
        monitor.send_command("stop")
        assert coordinator.process is not None
        while coordinator.process.poll() is None:
            assert time.monotonic() < deadline
            monitor.latest_status(0.2)
    finally:
        monitor.close()


async def test_each_kind_of_message_is_lost_once_and_the_run_goes_on(tmp_path: Path) -> None:
    config = run_config(
        task={"kind": "chain_sums", "max_prompt_length": 80, "max_response_length": 64},
        schedule={"mode": "streaming", "window": 8, "batch_windows": 8, "max_staleness": 1},
        evaluation={"before": False, "after": False},
        stop={"updates": 10**6},
        storage={"commit_interval_ms": 5, "token_diagnostics": False},
    )
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    address = coordinator.start()
    tasks: list[asyncio.Task[None]] = []
    try:
        async with breakers(address) as broken:
            learner = SlowLearner(broken["learner"].address, "learner-0")
            learner.writes(coordinator.run_dir)
            learner.file = tmp_path / "weights"
            learner.file.write_bytes(b"weights")
            reward = ScriptedReward(broken["reward"].address, "reward-0")
            tasks += [asyncio.create_task(beating(peer)) for peer in (learner, reward)]
            async with generating(broken["generator"].address, tmp_path) as (_, generator):
                await until(lambda: learner.update >= UPDATES, 60.0)
                stopping = asyncio.to_thread(watch_and_stop, coordinator, broken["monitor"].address)
                await asyncio.wait_for(asyncio.gather(stopping, generator, *tasks), 60)
            assert coordinator.wait() == 0
    finally:
        for task in tasks:
            task.cancel()
        coordinator.end()
    left = {role: breaker.left for role, breaker in broken.items()}
    assert left == {role: {"to": set(), "from": set()} for role in KINDS}
    records = records_of(coordinator.run_dir)
    assert_balanced(records)
    updates = [r.update for r in records if isinstance(r, UpdateCommitted)]
    assert updates == list(range(1, len(updates) + 1))
    assert len(updates) >= UPDATES
    assert [r for r in records if isinstance(r, BatchReturned | LineageBegan)] == []
    assert [r for r in records if isinstance(r, TokensLost) and r.reason != "held"] == []
    assert [r for r in records if isinstance(r, ProcessChanged) and r.state == "lost"] == []
    assert [r for r in records if isinstance(r, Incident) and r.level == "error"] == []
    assert compare(coordinator.run_dir).problems == []
    assert [f for f in audit_run(coordinator.run_dir).findings if f.kind != "checkpoint"] == []
