"""Leases that are on their way to a generator while it says which ones it has: they are its own if
they arrive, and another's if they do not. Nothing that it sampled is refused."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from coordinator.loop import BEAT_ALL
from headrace.config.sections.process import TransportConfig
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import Incident, ProcessChanged, TokensLost
from headrace.protocol.transport.endpoints import identity_of
from storage.audit import audit_run
from tests.coordinator.peers import CoordinatorProcess, ScriptedReward, until
from tests.coordinator.stage import GENERATOR, Stage, endless, staged
from tests.coordinator.test_loop import records_of, run_config
from tests.coordinator.test_lost_tokens import report
from tests.coordinator.test_restart import FileLearner, a_chunk, beating, hello, leased
from tests.warm_roles import WarmProcess, warm_role

SILENT_S, STOPS = 1.5, 2
PATIENCE_S = 90.0
"""A generator's process needs some seconds to start, and more on a machine that has other work."""


class SlowLearner(FileLearner):
    """The generator is at its bound most of the time, so that leases go out when updates come."""

    async def report(self, batch: m.Batch) -> None:
        await asyncio.sleep(0.4)
        await super().report(batch)


@contextlib.asynccontextmanager
async def generator_process(address: str, run_dir: Path) -> AsyncIterator[WarmProcess]:
    arguments = ("--connect", address, "--name", GENERATOR)
    with (run_dir / "generator.log").open("wb") as log:
        process = warm_role("generators.run", *arguments, log=log)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.send_signal(signal.SIGKILL)
        process.wait()


async def test_a_generator_that_stood_still_loses_nothing(tmp_path: Path) -> None:
    """It is stopped for longer than it may be silent, while updates make room for more leases: they
    wait in its socket when it wakes and says Hello."""
    config = run_config(
        task={"kind": "chain_sums", "max_prompt_length": 80, "max_response_length": 64},
        schedule={"mode": "streaming", "window": 8, "batch_windows": 8, "max_staleness": 1},
        generator={"engine": "fake", "max_num_seqs": 16},
        evaluation={"before": False, "after": False},
        stop={"updates": 10**6},
        storage={"commit_interval_ms": 5, "token_diagnostics": False},
        transport={"heartbeat_s": 0.1, "heartbeat_timeout_s": SILENT_S, "stall_timeout_s": 20.0},
    )
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    address = coordinator.start()
    learner = SlowLearner(address, "learner-0").writes(coordinator.run_dir)
    assert isinstance(learner, SlowLearner)
    learner.file = tmp_path / "weights"
    learner.file.write_bytes(b"weights")
    peers = [learner, ScriptedReward(address, "reward-0")]
    tasks = [asyncio.create_task(beating(peer)) for peer in peers]
    try:
        async with generator_process(address, coordinator.run_dir) as generator:
            for _ in range(STOPS):
                begun = learner.update
                await until(lambda: learner.update >= begun + 3, PATIENCE_S)  # noqa: B023
                os.kill(generator.pid, signal.SIGSTOP)
                await asyncio.sleep(2.5 * SILENT_S)
                os.kill(generator.pid, signal.SIGCONT)
            begun = learner.update
            await until(lambda: learner.update >= begun + 3, PATIENCE_S)
            assert coordinator.process is not None
            coordinator.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(coordinator.wait) == 0
    finally:
        for task in tasks:
            task.cancel()
        coordinator.end()
    records = records_of(coordinator.run_dir)
    silent = [r for r in records if isinstance(r, ProcessChanged) and r.state == "lost"]
    assert [r.name for r in silent].count(GENERATOR) >= STOPS
    lost = [r for r in records if isinstance(r, TokensLost) and r.reason in ("refused", "moved")]
    assert lost == []
    assert [f for f in audit_run(coordinator.run_dir).findings if f.kind != "checkpoint"] == []
    # What it chose for its host of the keys that the recipe leaves open is in the journal.
    told = [r for r in records if isinstance(r, Incident) and r.kind == "generator_settings"]
    cpu = "(the generator is on a CPU)"
    assert {(incident.level, incident.text) for incident in told} == {
        (
            "info",
            f'{GENERATOR}: generator.dtype = "float32" {cpu}, generator.enforce_eager = true '
            f"{cpu}, generator.gpu_memory_utilization = 0.9 {cpu}",
        )
    }


# -- one step at a time ----------------------------------------------------------------------------


def heard(stage: Stage, *, until: int, leases: list[int]) -> m.GeneratorReport:
    """A report of a generator that has these leases, and has heard of those below `until`."""
    return m.GeneratorReport(
        **{name: getattr(report(), name) for name in report().__struct_fields__}
        | {"leases": leases, "leases_until": until}
    )


async def test_a_lease_on_its_way_to_who_says_hello_is_kept_until_it_comes(tmp_path: Path) -> None:
    """It was silent, woke, and said Hello before it read what lay in its socket."""
    async with staged(endless(), tmp_path / "run") as stage:
        key = await leased(stage)
        (lease, _), before = stage.hub.state.leases[key], stage.hub.leases.held_by(GENERATOR)
        stage.coordinator.membership.forget(GENERATOR)
        back = replace(hello(stage, leases=[]), leases_until=0)
        await stage.coordinator._dispatch(stage.identities[GENERATOR], back)
        await stage.coordinator.phases.advance()
        assert stage.hub.state.leases[key] == (lease, GENERATOR)
        assert stage.hub.leases.held_by(GENERATOR) == before
        await stage.say(GENERATOR, heard(stage, until=lease, leases=[]))
        await stage.say(GENERATOR, a_chunk(stage, key, 0))
        assert stage.hub.account.trajectories[key].length == 1
        assert not stage.hub.refused_tokens
        assert not stage.hub.account.ledger.lost


async def test_a_lease_that_never_came_is_over_and_given_again(tmp_path: Path) -> None:
    """A connection that broke took it along: the generator hears what was sent behind it."""
    async with staged(endless(), tmp_path / "run") as stage:
        key = await leased(stage)
        lease, others = stage.hub.state.leases[key][0], stage.hub.leases.held_by(GENERATOR)
        held = [stage.hub.state.leases[other][0] for other in others if other != key]
        await stage.say(GENERATOR, heard(stage, until=lease, leases=held))
        assert stage.hub.state.leases[key][0] == lease
        await stage.say(GENERATOR, heard(stage, until=lease + 1, leases=held))
        again = stage.hub.leases.of(key)
        assert again is not None
        assert again.lease_id > lease
        assert stage.hub.leases.held_by(GENERATOR) == others


async def test_heartbeats_say_how_far_leases_have_been_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never further than what was handed to the socket before."""
    async with staged(endless(), tmp_path / "run") as stage:
        said: list[m.Message] = []

        async def send(_name: str, message: m.Message) -> bool:
            said.append(message)
            return True

        await stage.hub.recorder.flush()
        sent = stage.hub.peers.generators[GENERATOR].leases_until - 1
        monkeypatch.setattr(stage.hub, "send", send)
        await leased(stage)
        stage.coordinator.membership.forget(GENERATOR)
        await stage.coordinator._dispatch(stage.identities[GENERATOR], hello(stage))
        await stage.hub.recorder.flush()
        told = -1
        for message in said:
            if isinstance(message, m.Leases):
                sent = max(lease.lease_id for lease in message.leases)
            elif isinstance(message, m.Heartbeat):
                told = message.leases_until
                assert told <= sent + 1
        assert told == stage.hub.state.next_lease == sent + 1


async def test_who_has_yet_to_pass_its_self_test_hears_of_no_leases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its next Hello, to a coordinator that was started again, would count as of one that
    has."""
    config = run_config(transport={"self_test_s": 20.0}, evaluation={"before": False})
    async with staged(config, tmp_path / "run") as stage:
        said: list[int] = []

        async def send(_name: str, message: m.Message) -> bool:
            if isinstance(message, m.Heartbeat):
                said.append(message.leases_until)
            return True

        await stage.hub.recorder.flush()
        generator = stage.hub.peers.generators[GENERATOR]
        monkeypatch.setattr(stage.hub, "send", send)
        for _ in range(2):
            await stage.coordinator.parts.generation.reconciliation.beat(GENERATOR)
            generator.passed()
        assert said == [-1, generator.leases_until]
        assert generator.leases_until >= 0


async def test_leases_go_out_in_messages_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransportConfig, "request_bytes", 1)
    async with staged(endless(), tmp_path / "run") as stage:
        said: list[m.Leases] = []

        async def send(_name: str, message: m.Message) -> bool:
            if isinstance(message, m.Leases):
                said.append(message)
            return True

        monkeypatch.setattr(stage.hub, "send", send)
        await leased(stage)
        await stage.hub.recorder.flush()
        assert len(said) > 1
        assert {len(message.leases) for message in said} == {1}
        given = {lease_id for lease_id, _ in stage.hub.state.leases.values()}
        assert {lease.lease_id for message in said for lease in message.leases} == given


async def test_who_comes_back_while_the_run_drains_is_held(tmp_path: Path) -> None:
    """The hold of when it was silent went to nobody."""
    async with staged(endless(), tmp_path / "run") as stage:
        await leased(stage)
        back, generation_ = hello(stage), stage.coordinator.parts.generation
        assert back.leases
        stage.coordinator.membership.forget(GENERATOR)
        generation_.draining = True
        generation_.hold_all()
        await stage.coordinator._dispatch(stage.identities[GENERATOR], back)
        generation_.hold_all()
        held = [lease.holding for _, lease in stage.hub.leases.training()]
        assert held == [True] * len(back.leases)


async def test_what_two_generators_sampled_is_told_from_what_was_refused(tmp_path: Path) -> None:
    """The trajectory of a silent one was given to another: its tokens are work done twice."""
    async with staged(endless(), tmp_path / "run") as stage:
        key = await leased(stage)
        late, theirs = a_chunk(stage, key, 0, tokens=3), hello(stage)
        stage.coordinator.membership.forget(GENERATOR)
        stage.identities["generator-1"] = identity_of("generator-1")
        other = m.Hello(role="generator", name="generator-1", pid=2, host="here", capacity=8)
        await stage.say("generator-1", other)
        assert stage.hub.state.leases[key][1] == "generator-1"
        await stage.say(GENERATOR, theirs)
        await stage.say(GENERATOR, late)
        stage.hub.write_summaries()
        assert dict(stage.hub.account.ledger.lost) == {"moved": 3}
        assert stage.hub.account.ledger.as_metrics()["ledger/lost"] == 3
    assert stage.replayed().account.ledger.lost["moved"] == 3


async def test_who_was_just_told_something_gets_a_heartbeat_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(endless(), tmp_path / "run-1") as stage:
        beats: list[str] = []
        send = stage.hub.router.send

        async def counting(identity: str, message: m.Message) -> bool:
            if isinstance(message, m.Heartbeat):
                beats.append(identity)
            return await send(identity, message)

        monkeypatch.setattr(stage.hub.router, "send", counting)
        stage.hub.told.clear()
        told, quiet = stage.identities[GENERATOR], stage.identities["reward-0"]
        for _ in range(2 * BEAT_ALL):
            await stage.hub.send(GENERATOR, m.Hold(leases=[]))
            await stage.coordinator._beat()
        assert (beats.count(told), beats.count(quiet)) == (2, 2 * BEAT_ALL)
