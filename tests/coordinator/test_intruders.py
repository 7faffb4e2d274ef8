"""Peers that lie to a real coordinator over real sockets: refused, and the run finishes."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import pytest
import zmq

from headrace.errors import RunFailedError
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import (
    ChunkArrived,
    EvaluationDone,
    Incident,
    MetricsSampled,
    ProcessChanged,
    UpdateCommitted,
    VersionPublished,
)
from headrace.protocol.token_spans import Span
from headrace.protocol.transport.codec import MAGIC
from headrace.protocol.transport.curve import make_keys
from headrace.protocol.transport.endpoints import identity_of
from headrace.protocol.transport.sockets import Dealer, Link, sending_heartbeats
from tests.coordinator.peers import (
    CoordinatorProcess,
    ScriptedGenerator,
    ScriptedLearner,
    ScriptedPeer,
    ScriptedReward,
    until,
)
from tests.coordinator.test_loop import assert_balanced, records_of, run_config

FLOOD = 50_000

Heard = TypeVar("Heard", bound=m.Message)


class Run:
    """A coordinator with honest peers, of whom the learner waits until it is let go on."""

    def __init__(self, tmp_path: Path, updates: int = 3, keys: str | None = None) -> None:
        config = run_config(
            stop={"updates": updates},
            evaluation={"num_prompts": 8, "before": False},
            transport={"curve_keys": keys},
        )
        self.coordinator = CoordinatorProcess(tmp_path / "run-1", config)
        self.address = self.coordinator.start()
        link = Link(self.address, curve_keys=keys)
        self.learner = Patient(link, "learner-0")
        self.peers: list[ScriptedPeer] = [
            ScriptedGenerator(link, "generator-0", capacity=8),
            ScriptedReward(link, "reward-0"),
            self.learner,
        ]
        self.tasks = [asyncio.create_task(peer.run()) for peer in self.peers]

    async def finish(self) -> list[object]:
        """Let it end; its records."""
        self.learner.go_on.set()
        await asyncio.wait_for(asyncio.gather(*self.tasks), 90)
        assert self.coordinator.wait() == 0
        records = records_of(self.coordinator.run_dir)
        assert_balanced(records)
        updates = [r.update for r in records if isinstance(r, UpdateCommitted)]
        assert updates == list(range(1, len(updates) + 1))
        assert any(isinstance(r, EvaluationDone) for r in records)
        return list(records)


class Patient(ScriptedLearner):
    """Holds the first batch until it is told to go on."""

    def __init__(self, address: str | Link, name: str) -> None:
        super().__init__(address, name)
        self.go_on = asyncio.Event()

    async def run(self) -> None:
        with sending_heartbeats(self.link, self.identity, interval_s=0.2):
            await super().run()

    async def answer(self, message: m.Message) -> None:
        if isinstance(message, m.Batch):
            await self.go_on.wait()
        await super().answer(message)

    def has_batch(self) -> bool:
        return any(isinstance(message, m.Batch) for message in self.seen)


@contextlib.asynccontextmanager
async def intruder(address: str, identity: str) -> AsyncIterator[Dealer]:
    dealer = Dealer(Link(address), identity)
    dealer._socket.setsockopt(zmq.LINGER, 60_000)  # A flood waits here until the router has room.
    try:
        yield dealer
    finally:
        dealer.close()


async def heard(dealer: Dealer, kind: type[Heard]) -> Heard:
    """The next message of a kind."""
    async with asyncio.timeout(20):
        while True:
            message = await dealer.receive()
            if isinstance(message, kind):
                return message


async def rejections(address: str, wanted: int) -> None:
    """Wait until the coordinator has rejected so many messages."""
    async with intruder(address, identity_of("monitor-9")) as dealer:
        await dealer.send(m.Hello(role="monitor", name="monitor-9", pid=9, host="here"))
        rejected = 0.0
        async with asyncio.timeout(180):
            while rejected < wanted:
                await dealer.send(m.StatusRequest())
                status = await heard(dealer, m.Status)
                assert isinstance(status, m.Status)
                rejected = status.gauges["rejected_messages"]
                await asyncio.sleep(0.1)


def incidents(records: list[object], kind: str) -> list[str]:
    return [r.text for r in records if isinstance(r, Incident) and r.kind == kind]


def a_notice(version: int, update: int) -> m.WeightNotice:
    return m.WeightNotice(version=version, update=update, digest="", num_bytes=0, sources=[])


async def test_an_impostor_does_not_become_the_learner(tmp_path: Path) -> None:
    """Under the learner's name, under another, or under its bare name as identity: while the
    learner lives, none of them is heard, and the learner keeps its connection."""
    run = Run(tmp_path)
    await until(run.learner.has_batch)
    for name, identity in [
        ("learner-0", identity_of("learner-0")),
        ("learner-1", identity_of("learner-1")),
        ("learner-0", "learner-0"),
    ]:
        async with intruder(run.address, identity) as dealer:
            hello = m.Hello(role="learner", name=name, pid=999_999, host="evil")
            for _ in range(20):
                await dealer.send(hello)
                await dealer.send(
                    m.UpdateDone(
                        batch_id=1, update=1, lineage=0, metrics={"x": 1.0}, diagnostics=[]
                    )
                )
                await dealer.send(a_notice(0, 0))
                await dealer.send(m.CheckpointDone(update=1, path="/evil"))
                message = await dealer.receive_within(0.5)
                assert message is None or isinstance(message, m.Refused), message
                if message is not None:
                    break
            assert isinstance(message, m.Refused)
    records = await run.finish()
    up = [r.pid for r in records if isinstance(r, ProcessChanged) and r.role == "learner"]
    assert 999_999 not in up
    assert len(incidents(records, "hello_refused")) >= 3
    assert all("x" not in r.metrics for r in records if isinstance(r, UpdateCommitted))


async def test_a_learner_that_was_killed_is_followed_at_once(tmp_path: Path) -> None:
    """Its connection is closed: nobody waits for its heartbeats to run out."""
    run = Run(tmp_path)
    await until(run.learner.has_batch)
    run.tasks[2].cancel()
    run.learner.dealer.close()
    run.learner = Patient(run.address, "learner-0")
    run.tasks[2] = asyncio.create_task(run.learner.run())
    async with asyncio.timeout(10):  # The deadline for heartbeats is 15 s.
        await until(run.learner.has_batch)
    await run.finish()


async def test_a_generator_that_speaks_as_the_learner_or_the_user(tmp_path: Path) -> None:
    run = Run(tmp_path)
    await until(run.learner.has_batch)
    async with intruder(run.address, identity_of("generator-9")) as dealer:
        await dealer.send(m.Hello(role="generator", name="generator-9", pid=9, host="here"))
        await heard(dealer, m.Welcome)
        await dealer.send(m.UpdateDone(batch_id=1, update=1, lineage=0, metrics={}, diagnostics=[]))
        await dealer.send(m.Command(action="stop"))
        await dealer.send(a_notice(1, 1))
        await dealer.send(m.WeightsLoaded(version=2**40, gap_s=0.0, load_s=0.0))
        await dealer.send(m.Scores(scores=[]))
        await dealer.send(m.Goodbye())
    async with intruder(run.address, identity_of("nobody")) as dealer:
        await dealer.send(m.Command(action="stop"))
        await dealer.send(m.StatusRequest())
        assert not isinstance(await dealer.receive_within(0.3), m.Status)
    records = await run.finish()
    said = incidents(records, "not_permitted")
    assert said[:2] == [
        "generator-9: a generator may not send UpdateDone",
        "generator-9: a generator may not send Command",
    ]
    assert len(incidents(records, "not_asked")) == 1
    assert not incidents(records, "learner_brought_back")


async def test_a_chunk_for_the_lease_of_another_generator(tmp_path: Path) -> None:
    """Neither its tokens are taken nor the lease from who has it."""
    run = Run(tmp_path)
    generator = run.peers[0]
    await until(run.learner.has_batch)
    lease = [x for s in generator.seen if isinstance(s, m.Leases) for x in s.leases][-1]
    async with intruder(run.address, identity_of("generator-9")) as dealer:
        await dealer.send(m.Hello(role="generator", name="generator-9", pid=9, host="here"))
        await heard(dealer, m.Welcome)
        for lease_id in range(lease.lease_id + 1, lease.lease_id + 20):
            chunk = m.TrajectoryChunk(
                lease_id=lease_id,
                trajectory_id=lease.trajectory_id,
                chunk_index=0,
                start=0,
                token_ids=np.array([1], np.int32),
                logprobs=np.array([-1.0], np.float32),
                spans=[Span(0, 0, 1)],
                finish="stop",
            )
            await dealer.send(m.Chunks(chunks=[chunk]))
        await dealer.send(m.Goodbye())
    records = await run.finish()
    assert "generator-9" not in {r.generator for r in records if isinstance(r, ChunkArrived)}


async def test_a_flood_of_bad_messages_is_a_handful_of_lines(tmp_path: Path) -> None:
    run = Run(tmp_path)
    await until(run.learner.has_batch)
    async with intruder(run.address, identity_of("generator-9")) as dealer:
        await dealer.send(m.Hello(role="generator", name="generator-9", pid=9, host="here"))
        await heard(dealer, m.Welcome)
        socket = dealer._socket
        garbage = [MAGIC + msgspec.msgpack.encode({"type": "Hello", "pid": 2**64 - 1}), b""]
        for number in range(FLOOD):
            if number % 2:
                await socket.send_multipart(garbage)
            else:
                await dealer.send(m.Command(action="stop"))
        await dealer.send(m.Goodbye())
        await rejections(run.address, FLOOD)
    records = await run.finish()
    assert len([r for r in records if isinstance(r, Incident)]) < 60
    last = [r for r in records if isinstance(r, MetricsSampled)][-1].metrics
    assert last["transport/rejected"] >= FLOOD
    (summary, *_) = incidents(records, "messages_rejected")
    assert "not_permitted" in summary
    assert "message_rejected" in summary


def a_bad_chunk(number: int) -> list[m.Message]:
    """Of a lease that nobody has."""
    chunk = m.TrajectoryChunk(
        lease_id=10**6 + number,
        trajectory_id=0,
        chunk_index=10**6,
        start=0,
        token_ids=np.array([1], np.int32),
        logprobs=np.array([-1.0], np.float32),
        spans=[Span(0, 0, 1)],
        finish="stop",
    )
    return [m.Chunks(chunks=[chunk])]


def a_hello(number: int) -> list[m.Message]:
    return [m.Hello(role="generator", name="generator-9", pid=9, host="here")]


def coming_and_going(number: int) -> list[m.Message]:
    return [*a_hello(number), m.Goodbye()]


@pytest.mark.parametrize(
    ("flood", "rejected"), [(a_bad_chunk, 8_000), (a_hello, 7_000), (coming_and_going, 1)]
)
async def test_a_flood_does_not_become_a_flood_of_records(
    tmp_path: Path, flood: Callable[[int], list[m.Message]], rejected: int
) -> None:
    """Others are answered meanwhile, and the run finishes."""
    run = Run(tmp_path)
    await until(run.learner.has_batch)
    async with intruder(run.address, identity_of("generator-9")) as dealer:
        await dealer.send(a_hello(0)[0])
        await heard(dealer, m.Welcome)
        for number in range(8_000):
            for message in flood(number):
                await dealer.send(message)
        await dealer.send(a_hello(0)[0])
        await dealer.send(m.Command(action="stop"))
        await dealer.send(m.Goodbye())
        await rejections(run.address, rejected)
    records = await run.finish()
    assert len(records) < 2_000, Counter(type(record).__name__ for record in records)
    assert len([r for r in records if isinstance(r, Incident)]) < 60


async def test_who_has_no_keys_gets_nowhere_and_is_counted(tmp_path: Path) -> None:
    """No keys, other keys, and no ZeroMQ at all."""
    for name in ("keys", "other"):
        make_keys(tmp_path / name)
    (tmp_path / "other" / "server.key").write_bytes((tmp_path / "keys" / "server.key").read_bytes())
    run = Run(tmp_path, keys=str(tmp_path / "keys"))
    await until(run.learner.has_batch)
    host, port = run.address.removeprefix("tcp://").split(":")
    for number in range(100):
        keys = [None, str(tmp_path / "other")][number % 2]
        stranger = Dealer(Link(run.address, curve_keys=keys), identity_of("monitor-9"))
        stranger._socket.setsockopt(zmq.LINGER, 0)
        with contextlib.suppress(RunFailedError):  # It may have been turned away already.
            await stranger.send(m.Hello(role="monitor", name="monitor-9", pid=9, host="here"))
            await stranger.send(m.Command(action="stop"))
            assert await stranger.receive_within(0.05) is None
        stranger.close()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.0\r\n\r\n" * 10)
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()
    records = await run.finish()
    denied = incidents(records, "connection_denied")
    assert 1 <= len(denied) <= 3
    assert "without the keys of this run" in denied[0]
    last = [r for r in records if isinstance(r, MetricsSampled)][-1].metrics
    assert last["transport/rejected"] >= 100
    assert not [r for r in records if isinstance(r, ProcessChanged) and "monitor" in r.name]


async def test_values_that_used_to_kill_every_resume(tmp_path: Path) -> None:
    """A version of 2^63, a pid of 2^64, a token of -1, a finished response without a token, from
    peers that are who they say: refused, and the run is resumed after a kill and finishes."""

    class Careless(ScriptedGenerator):
        mistakes = 2

        def generate(self, lease: m.Lease) -> list[m.TrajectoryChunk]:
            good = super().generate(lease)
            if self.mistakes and good[0].start == 0:
                self.mistakes -= 1
                if self.mistakes:
                    good[0].token_ids[:] = -1
                    return good[:1]
                return [self.chunk(lease, 0, 0, 0, "stop")]
            return good

    config = run_config(
        stop={"updates": 6}, checkpoint={"every_updates": 1}, evaluation={"before": False}
    )
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    for resume in (False, True):
        records = records_of(coordinator.run_dir) if resume else []
        done = [r for r in records if isinstance(r, UpdateCommitted)]
        address = coordinator.start(resume=resume)
        learner = ScriptedLearner(address, "learner-0")
        if resume:
            learner.update = done[-1].update
        peers: list[ScriptedPeer] = [
            Careless(address, "generator-0", capacity=8),
            ScriptedReward(address, "reward-0"),
            learner,
        ]
        tasks = [asyncio.create_task(peer.run()) for peer in peers]
        await until(lambda learner=learner: learner.update >= 1)
        await learner.dealer.send(a_notice(2**63, 1))
        await learner.dealer.send(a_notice(2**53 - 1, 1))
        async with intruder(address, identity_of("generator-9")) as dealer:
            hello = m.Hello(role="generator", name="generator-9", pid=2**64 - 1, host="here")
            await dealer.send(hello)
        if not resume:
            await until(lambda learner=learner: learner.update >= 3)
            coordinator.kill()
            for task, peer in zip(tasks, peers, strict=True):
                task.cancel()
                peer.dealer.close()
            continue
        await asyncio.wait_for(asyncio.gather(*tasks), 90)
    assert coordinator.wait() == 0
    records = records_of(coordinator.run_dir)
    assert_balanced(records)
    assert [r.update for r in records if isinstance(r, UpdateCommitted)][-1] == 6
    assert max(r.version for r in records if isinstance(r, VersionPublished)) < 100
    rejected = " ".join(incidents(list(records), "chunk_rejected"))
    assert "vocabulary" in rejected
    assert "at least one token" in rejected
