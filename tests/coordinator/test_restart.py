"""A coordinator that takes over loses nothing that was acknowledged or can be sent again: leases go
on, chunks that came too early are waited for, counters are what they were."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from coordinator.run import LAST_WRITER_S, build
from generators.engines.fake_engine import FakeEngine
from generators.rollout.loop import GeneratorLoop
from headrace.errors import StorageBlockedError
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import (
    Incident,
    Record,
    Restarted,
    Snapshot,
    TokensLost,
    UpdateCommitted,
)
from headrace.protocol.token_spans import Span
from headrace.protocol.transport.endpoints import identity_of
from headrace.protocol.transport.sockets import Dealer, Link, sending_heartbeats
from headrace.run_files.update_log import compare
from headrace_cli.launch.supervisor import SupervisorDeadlines
from storage.audit import audit_run
from tests.coordinator.peers import CoordinatorProcess, ScriptedLearner, ScriptedReward, until
from tests.coordinator.stage import GENERATOR, Stage, endless, staged
from tests.coordinator.test_loop import records_of, run_config
from tests.coordinator.test_lost_tokens import report
from tests.coordinator.world import World, make_config

# -- real processes, a real generator's loop -------------------------------------------------------


class FileLearner(ScriptedLearner):
    """Its weights are a file that a generator can load."""

    file: Path

    def notice(self, version: int, update: int) -> m.WeightNotice:
        data = self.file.read_bytes()
        return m.WeightNotice(
            version=version,
            update=update,
            digest=xxhash.xxh3_128(data).hexdigest(),
            num_bytes=len(data),
            sources=[f"file:{self.file}"],
        )


@contextlib.asynccontextmanager
async def generating(address: str, folder: Path) -> AsyncIterator[tuple[GeneratorLoop, Any]]:
    """A generator's loop with an engine that takes a few milliseconds for a token."""
    identity = identity_of(GENERATOR)
    dealer = Dealer(Link(address), identity)
    loop = GeneratorLoop(
        FakeEngine(vocab_size=64, mean_length=30.0, step_s=0.004),
        dealer,
        m.Hello(role="generator", name=GENERATOR, pid=1, host="here", capacity=8),
        chunk_tokens=4,
        weights_folder=folder / "cache",
        heartbeat_s=0.2,
    )
    with sending_heartbeats(Link(address), identity, interval_s=0.2):
        task = asyncio.create_task(loop.run())
        try:
            yield loop, task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
            dealer.close()


async def beating(peer: Any) -> None:
    with sending_heartbeats(peer.link, peer.identity, interval_s=0.2):
        await peer.run()


ALONG = {"mode": "along", "every_updates": 2, "num_prompts": 6}


@pytest.mark.parametrize(
    ("mode", "evaluation"), [("streaming", {}), ("streaming", ALONG), ("windowed", {})],
    ids=["streaming", "along", "windowed"],
)  # fmt: skip
async def test_every_token_that_was_sampled_is_in_the_journal_after_two_kills(
    tmp_path: Path, mode: str, evaluation: dict[str, Any]
) -> None:
    """The generator goes on while the coordinator is away, and what it has then is taken. Its
    successors begin with a snapshot. An evaluation along the stream is given up; others come."""
    config = run_config(
        mode,
        task={"kind": "chain_sums", "max_prompt_length": 80, "max_response_length": 64},
        schedule={"mode": mode, "window": 8, "batch_windows": 8, "max_staleness": 2},
        evaluation={"before": False, "after": False} | evaluation,
        checkpoint={"every_updates": 4},
        stop={"updates": 16},
        storage={"commit_interval_ms": 5, "token_diagnostics": False, "segment_mib": 0.02},
    )
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    address = coordinator.start()
    learner: Any = FileLearner(address, "learner-0").writes(coordinator.run_dir)
    learner.file = tmp_path / "weights"
    learner.file.write_bytes(b"weights")
    peers = [learner, ScriptedReward(address, "reward-0")]
    tasks = [asyncio.create_task(beating(peer)) for peer in peers]
    try:
        async with generating(address, tmp_path) as (loop, task):
            for update in (4, 9):
                await until(lambda: learner.update >= update)  # noqa: B023
                coordinator.kill()
                before = loop._tokens
                await asyncio.sleep(1.0)
                assert mode == "windowed" or loop._tokens > before
                assert coordinator.start(resume=True) == address
            await asyncio.wait_for(asyncio.gather(task, *tasks), 60)
            assert coordinator.wait() == 0
            sampled, thrown_away = loop._tokens, loop._discarded_tokens
    finally:
        for waiting in tasks:
            waiting.cancel()
        coordinator.end()
    records = records_of(coordinator.run_dir)
    assert len([r for r in records if isinstance(r, Restarted)]) == 2
    first, *_ = (n for n, r in enumerate(records) if isinstance(r, Restarted))
    assert any(isinstance(record, Snapshot) for record in records[:first])
    assert [r for r in records if isinstance(r, TokensLost) and r.reason != "held"] == []
    assert [r for r in records if isinstance(r, Incident) and r.kind == "chunk_rejected"] == []
    report = audit_run(coordinator.run_dir)
    counts = report.counts
    assert counts["generated"] + counts["evaluation"] == sampled - thrown_away
    assert (counts["evaluation"] > 0) == bool(evaluation)
    assert counts["discarded_at_hold"] <= thrown_away
    assert compare(coordinator.run_dir).problems == []
    assert [f for f in report.findings if f.kind != "checkpoint"] == []
    assert [r.update for r in records if isinstance(r, UpdateCommitted)] == list(range(1, 17))


# -- one step at a time ----------------------------------------------------------------------------


def a_chunk(stage: Stage, key: int, index: int, tokens: int = 1) -> m.Chunks:
    """Chunk number `index` of a trajectory's lease, each of `tokens` tokens."""
    trajectory, lease = stage.hub.account.trajectories[key], stage.hub.state.leases[key][0]
    start = trajectory.length + (index - trajectory.next_chunk) * tokens
    chunk = m.TrajectoryChunk(
        lease_id=lease,
        trajectory_id=key,
        chunk_index=index,
        start=start,
        token_ids=np.full(tokens, 5, np.int32),
        logprobs=np.full(tokens, -0.5, np.float32),
        spans=[Span(stage.hub.state.versions.current, start, start + tokens)],
    )
    return m.Chunks(chunks=[chunk])


async def leased(stage: Stage) -> int:
    """A trajectory that the generator has the lease of."""
    await stage.reach(stage.chunks)
    return stage.hub.leases.held_by(GENERATOR)[0]


async def test_a_chunk_that_comes_too_early_is_asked_for_and_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that broke loses a message; those behind it are sent again with it."""
    async with staged(endless(), tmp_path / "run") as stage:
        key = await leased(stage)
        said: list[m.Message] = []

        async def send(_name: str, message: m.Message) -> bool:
            said.append(message)
            return True

        monkeypatch.setattr(stage.hub, "send", send)
        second, third = a_chunk(stage, key, 1), a_chunk(stage, key, 2)
        await stage.say(GENERATOR, second)
        await stage.say(GENERATOR, third)
        assert [type(s) for s in said if not isinstance(s, m.ChunkAck)] == [m.Resend]
        for again in (a_chunk(stage, key, 0), second, third):
            await stage.say(GENERATOR, again)
        assert stage.hub.account.trajectories[key].length == 3
        assert stage.hub.rejections.counts["chunk_rejected"] == 0
        # Where it never comes, the lease is over and the trajectory waits.
        await stage.say(GENERATOR, a_chunk(stage, key, 5))
        monkeypatch.setattr("coordinator.rollouts.intake.GAP_S", 0.0)
        await stage.coordinator.parts.intake.expire()
        assert stage.hub.rejections.counts["chunk_rejected"] == 1
        assert stage.hub.leases.of(key) is None
        assert any(isinstance(s, m.Hold) for s in said)


async def test_chunks_that_come_again_while_the_disk_takes_none_add_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generator sends what is not acknowledged again every few seconds: days of a full disk would
    fill the memory with acknowledgements. Once the disk goes on, copies have theirs again."""
    monkeypatch.setattr("coordinator.persistence.recorder.DISK_RETRY_S", 0.01)
    full, said = False, list[m.Message]()
    async with staged(endless(), tmp_path / "run") as stage:
        key, recorder, append = await leased(stage), stage.hub.recorder, stage.store.append

        def append_or_not(records: Sequence[Record]) -> None:
            if full:
                raise StorageBlockedError("room for 9 bytes in /run/journal")
            append(records)

        def send_after(_name: str, message: m.Message, **_how: bool) -> None:
            said.append(message)

        monkeypatch.setattr(stage.store, "append", append_or_not)
        monkeypatch.setattr(stage.hub, "send_after", send_after)
        await recorder.flush()
        full, chunk = True, a_chunk(stage, key, 0)
        await stage.say(GENERATOR, chunk)
        acknowledged = m.ChunkAck(acked=[(key, 0)])
        assert said.count(acknowledged) == 1
        async with asyncio.timeout(60):
            while not recorder.waits_for:
                await asyncio.sleep(0.005)
            for _ in range(9):
                await stage.say(GENERATOR, chunk)
            assert said.count(acknowledged) == 1
            full = False
            await recorder.flush()
        await stage.say(GENERATOR, chunk)
        assert said.count(acknowledged) == 2


def hello(stage: Stage, *, pid: int = 1, leases: list[int] | None = None) -> m.Hello:
    held = [stage.hub.state.leases[key][0] for key in stage.hub.state.leases]
    return m.Hello(
        role="generator", name=GENERATOR, pid=pid, host="here", capacity=8,
        leases=held if leases is None else leases,
    )  # fmt: skip


async def test_a_generator_that_was_silent_goes_on_with_what_nobody_took(tmp_path: Path) -> None:
    async with staged(endless(), tmp_path / "run") as stage:
        key = await leased(stage)
        before = stage.hub.leases.held_by(GENERATOR)
        stage.coordinator.membership.forget(GENERATOR)
        assert stage.hub.leases.held_by(GENERATOR) == []
        chunk = a_chunk(stage, key, 0)
        back = hello(stage)
        await stage.coordinator._dispatch(stage.identities[GENERATOR], back)
        assert stage.hub.leases.held_by(GENERATOR) == before
        assert stage.hub.peers.generators[GENERATOR].live == set(before)
        await stage.say(GENERATOR, chunk)
        assert stage.hub.account.trajectories[key].length == 1
        assert stage.hub.account.ledger.lost["refused"] == 0


async def test_another_process_of_that_name_has_none_of_its_leases(tmp_path: Path) -> None:
    async with staged(endless(), tmp_path / "run") as stage:
        await leased(stage)
        stage.identities[GENERATOR] = identity_of(GENERATOR)
        new = hello(stage, pid=2, leases=[])
        await stage.coordinator._dispatch(stage.identities[GENERATOR], new)
        assert stage.hub.leases.held_by(GENERATOR) == []


async def test_who_does_not_come_back_after_a_restart_is_waited_for_and_then_not(
    tmp_path: Path,
) -> None:
    async with staged(endless(), tmp_path / "run") as stage:
        await leased(stage)
        await stage.say(GENERATOR, report(discarded_tokens=3))
    stage.replayed()
    stage.store.close()
    (tmp_path / "run" / "coordinator.json").write_text('{"addr')  # then any port will do
    second, store = build(endless(), tmp_path / "run", resume=True)
    try:
        held = second.hub.leases.held_by(GENERATOR)
        assert held == stage.hub.leases.held_by(GENERATOR) != []
        assert second.hub.leases.open >= set(held)
        second.parts.generation.expire()
        assert second.hub.leases.held_by(GENERATOR) == held
        second.parts.generation._awaited_until = 0.0
        second.parts.generation.expire()
        assert second.hub.leases.holders() == set()
        assert second.hub.leases.inside.waits >= set(held)
        # They wait for a generator, and not at the bound.
        assert second.parts.gauges.now(0, 0)["schedule/held"] == 0.0
        # What a process threw away is counted from where it was.
        await second._dispatch(identity_of(GENERATOR), hello(stage, leases=[]))
        second.parts.generation.report(GENERATOR, report(discarded_tokens=5))
        assert second.hub.account.ledger.lost["held"] == 5
    finally:
        second.hub.router.close()
        store.close()


def test_a_round_goes_on_with_its_leases() -> None:
    """In lockstep nothing is trained before the round is through, restart or not."""
    world = World(make_config(schedule={"mode": "windowed", "window": 4, "batch_windows": 4}))
    first, second, third, _ = world.fill(4)
    for trajectory in (first, second):
        world.chunk(trajectory, 3, "stop")
        world.reward(trajectory)
    world.chunk(third, 2)
    world.restart()
    assert {t.trajectory_id for t in world.leased()} == {2, 3}
    assert world.fill(4) == []
    assert world.scheduler.next_batch() is None
    for trajectory in (world.account.trajectories[2], world.account.trajectories[3]):
        world.chunk(trajectory, 1, "stop")
        world.reward(trajectory)
    prepared = world.take()
    assert prepared is not None
    assert len(prepared.taken.windows) == 4


def test_the_locks_of_a_host_that_is_gone_are_waited_for() -> None:
    """NFS keeps them for 90 s. A coordinator that says nothing for longer than the supervisor waits
    would end the run."""
    assert 90.0 <= LAST_WRITER_S < SupervisorDeadlines().start_s
