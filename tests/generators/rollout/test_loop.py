"""The loop against a scripted coordinator over real sockets."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from msgspec.structs import replace

from generators.engine import EngineDeadError, GenerationRequest, TokenDelta
from generators.engines.fake_engine import FakeEngine
from generators.engines.weights import request_broadcast
from generators.rollout.loop import GeneratorLoop
from generators.run import pin
from headrace.errors import RunFailedError, UserError
from headrace.protocol.messages.control import (
    AskHello,
    BroadcastReply,
    BroadcastRequest,
    BroadcastTensor,
    ChunkAck,
    FireSampling,
    GeneratorReport,
    Goodbye,
    Heartbeat,
    Hello,
    Hold,
    Lease,
    Leases,
    Message,
    Refused,
    Shutdown,
    WeightNotice,
    WeightsLoaded,
    Welcome,
)
from headrace.protocol.token_spans import Mark, MediaRun, Streams
from headrace.protocol.transport.sockets import Dealer, Link, Router
from tests.generators.rollout.test_chunking import make_lease, prefix
from tests.generators.scripted import NAME, ScriptedCoordinator


class Scene:
    """A running loop and its coordinator."""

    def __init__(self, engine: FakeEngine, tmp_path: Path, **settings: Any) -> None:
        self.coordinator = ScriptedCoordinator()
        self.engine = engine
        self.weights = tmp_path / "weights.safetensors"
        self.weights.write_bytes(b"any bytes: the scripted engine ignores weights")
        self.dealer = Dealer(Link(self.coordinator.router.address), NAME)
        hello = Hello(role="generator", name=NAME, pid=1, host="here", capacity=8)
        self.loop = GeneratorLoop(
            engine,
            self.dealer,
            hello,
            chunk_tokens=4,
            weights_folder=tmp_path / "cache",
            **settings,
        )
        self.server = asyncio.create_task(self.coordinator.serve())
        self.task = asyncio.create_task(self.loop.run())

    def notice(self, version: int) -> WeightNotice:
        data = self.weights.read_bytes()
        return WeightNotice(
            version=version,
            update=version,
            digest=xxhash.xxh3_128(data).hexdigest(),
            num_bytes=len(data),
            sources=[f"file:{self.weights}"],
        )

    async def begin(self, version: int = 0) -> None:
        await self.coordinator.until(lambda: bool(self.coordinator.got(Hello)))
        await self.coordinator.send(self.notice(version))
        await self.coordinator.until(lambda: bool(self.coordinator.got(WeightsLoaded)))

    async def lease(self, *leases: Lease) -> None:
        await self.coordinator.send(Leases(leases=list(leases)))

    async def close(self) -> None:
        for task in (self.task, self.server):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        self.dealer.close()
        self.coordinator.router.close()


@pytest.fixture
async def scenes(tmp_path: Path) -> AsyncIterator[Callable[..., Scene]]:
    opened: list[Scene] = []

    def open_scene(engine: FakeEngine | None = None, **settings: Any) -> Scene:
        opened.append(Scene(engine or FakeEngine(mean_length=20.0), tmp_path, **settings))
        return opened[-1]

    yield open_scene
    for scene in opened:
        await scene.close()


async def test_a_lease_with_fire_has_its_first_token_marked_hot(
    scenes: Callable[..., Scene],
) -> None:
    """Also behind a prefix, which an environment has written; a regular lease has no mark."""
    scene = scenes()
    await scene.begin()
    fire = FireSampling(temperature=30.0, top_k=4)
    await scene.lease(
        make_lease(lease_id=0, trajectory_id=0, fire=fire),
        make_lease(lease_id=1, trajectory_id=1),
        make_lease(lease_id=2, trajectory_id=2, fire=fire, prefix_ids=prefix(3)),
    )
    await scene.coordinator.until(lambda: scene.coordinator.ended(0, 1, 2))
    marks = [[chunk.streams for chunk in scene.coordinator.of(i)] for i in range(3)]
    assert marks[0][0] == Streams(marks=[Mark("hot", 0, 1)])
    assert marks[2][0] == Streams(marks=[Mark("hot", 3, 4)])
    assert not any(marks[0][1:] + marks[1] + marks[2][1:])


async def test_leases_become_chunks_that_are_the_engine_s_stream(
    scenes: Callable[..., Scene],
) -> None:
    scene = scenes()
    await scene.begin(version=3)
    await scene.lease(*[make_lease(lease_id=i, trajectory_id=i, seed=i) for i in range(5)])
    await scene.coordinator.until(lambda: scene.coordinator.ended(*range(5)))
    for i in range(5):
        chunks = scene.coordinator.of(i)
        wanted = [
            delta
            async for delta in scene.engine.generate(
                GenerationRequest("again", [5, 6], max_tokens=1000, seed=i)
            )
        ]
        assert np.concatenate([c.token_ids for c in chunks]).tolist() == [
            token for delta in wanted for token in delta.token_ids
        ]
        assert [c.chunk_index for c in chunks] == list(range(len(chunks)))
        assert {span.version for c in chunks for span in c.spans} == {3}
        assert chunks[-1].finish == "stop"
    assert not scene.engine._live


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
async def test_the_front_leaves_the_learner_s_core_when_training_goes_on(
    scenes: Callable[..., Scene],
) -> None:
    """Leases of an evaluation widen where the process may run, one of training takes that back."""
    allowed = os.sched_getaffinity(0)
    own = {min(allowed)}
    try:
        scene = scenes(cores=pin(sorted(own), sorted(allowed)))
        await scene.begin()
        for lease_id, (purpose, expected) in enumerate(
            [("train", own), ("eval", allowed), ("train", own)]
        ):
            await scene.lease(
                make_lease(lease_id=lease_id, trajectory_id=lease_id, purpose=purpose)
            )
            await scene.coordinator.until(partial(scene.coordinator.ended, lease_id))
            assert os.sched_getaffinity(0) == expected
    finally:
        os.sched_setaffinity(0, allowed)


async def test_an_engine_is_asked_for_what_the_lease_says(scenes: Callable[..., Scene]) -> None:
    """No setting on the way is another's, or the usual one: logprobs would be of no sampler."""
    asked: list[GenerationRequest] = []

    class Listening(FakeEngine):
        async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
            asked.append(request)
            yield TokenDelta([], [], self.version, "aborted")

    scene = scenes(Listening())
    await scene.begin()
    image, fire = MediaRun("5e" * 32, 0, 1), FireSampling(temperature=30.0, top_k=4)
    lease = make_lease(
        lease_id=9, prefix_ids=prefix(3), seed=11, max_total=40, stop_at=16, temperature=0.5,
        top_p=0.25, top_k=7, fire=fire, cache_version=0, media=[image],
    )  # fmt: skip
    await scene.lease(lease)
    await scene.coordinator.until(lambda: scene.coordinator.ended(9))
    assert asked == [
        GenerationRequest(
            "9", [5, 6, 0, 1, 2], max_tokens=13, seed=11, position=3, temperature=0.5, top_p=0.25,
            top_k=7, fire=fire, cache_version=0, media=[image],
        )
    ]  # fmt: skip


async def test_nothing_starts_before_weights_of_the_wanted_version(
    scenes: Callable[..., Scene],
) -> None:
    scene = scenes()
    await scene.coordinator.until(lambda: bool(scene.coordinator.got(Hello)))
    await scene.lease(make_lease(lease_id=1), make_lease(lease_id=2, version_at_least=1))
    await scene.coordinator.until(lambda: bool(scene.coordinator.got(GeneratorReport)))
    assert scene.coordinator.chunks == []
    await scene.coordinator.send(scene.notice(0))
    await scene.coordinator.until(lambda: scene.coordinator.ended(1))
    assert scene.coordinator.of(2) == []
    await scene.coordinator.send(scene.notice(1))
    await scene.coordinator.until(lambda: scene.coordinator.ended(2))
    assert {s.version for c in scene.coordinator.of(2) for s in c.spans} == {1}


async def test_lockstep_lease_ends_with_its_window(scenes: Callable[..., Scene]) -> None:
    scene = scenes(FakeEngine(mean_length=1e6))
    await scene.begin()
    await scene.lease(make_lease(prefix_ids=np.arange(8, dtype=np.int32), stop_at=16, next_chunk=2))
    await scene.coordinator.until(lambda: scene.coordinator.ended(7))
    chunks = scene.coordinator.of(7)
    assert [(c.chunk_index, c.start, c.finish) for c in chunks] == [(2, 8, None), (3, 12, "window")]


async def test_hold_ends_a_lease_and_unknown_ones_are_ignored(
    scenes: Callable[..., Scene],
) -> None:
    scene = scenes(FakeEngine(mean_length=1e6, step_s=0.002))
    await scene.begin()
    await scene.lease(make_lease(lease_id=1), make_lease(lease_id=2, version_at_least=9))
    await scene.coordinator.until(lambda: len(scene.coordinator.of(1)) >= 3)
    await scene.coordinator.send(Hold(leases=[(1, -1), (2, 0), (99, 8)]))
    await scene.coordinator.until(lambda: scene.coordinator.ended(1, 2))
    assert scene.coordinator.of(1)[-1].finish == "held"
    (empty,) = scene.coordinator.of(2)
    assert (len(empty.token_ids), empty.finish) == (0, "held")
    before = len(scene.coordinator.chunks)
    await scene.coordinator.send(Hold(leases=[(1, -1)]))
    reports = len(scene.coordinator.got(GeneratorReport))
    await scene.coordinator.until(
        lambda: len(scene.coordinator.got(GeneratorReport)) >= reports + 2
    )
    assert len(scene.coordinator.chunks) == before
    assert not scene.engine._live


async def test_an_end_behind_a_border_leaves_once_its_window_is_acknowledged(
    scenes: Callable[..., Scene],
) -> None:
    """Two answers of ten tokens, in windows of eight; one is held at the border before that."""

    class Ending(FakeEngine):
        async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
            yield TokenDelta([5] * 10, [-0.5] * 10, self.version, "stop")

    scene = scenes(Ending())
    scene.coordinator.acknowledge = False
    await scene.begin()
    await scene.lease(make_lease(lease_id=1), make_lease(lease_id=2, trajectory_id=4))
    await scene.coordinator.until(lambda: len(scene.coordinator.chunks) == 4)
    await scene.coordinator.send(Hold(leases=[(1, 8)]))
    await scene.coordinator.send(ChunkAck(acked=[(3, 1), (4, 1)]))
    await scene.coordinator.until(lambda: scene.coordinator.ended(1, 2))
    held, ended = (scene.coordinator.of(lease_id)[-1] for lease_id in (1, 2))
    assert (held.start, len(held.token_ids), held.finish) == (8, 0, "held")
    assert (ended.start, len(ended.token_ids), ended.finish) == (8, 2, "stop")
    assert scene.loop._discarded_tokens == 2


async def test_unacknowledged_chunks_come_again_after_welcome(
    scenes: Callable[..., Scene],
) -> None:
    scene = scenes()
    scene.coordinator.acknowledge = False
    await scene.begin()
    await scene.lease(make_lease(window=1000))
    await scene.coordinator.until(lambda: scene.coordinator.ended(7))
    first = list(scene.coordinator.chunks)
    await scene.coordinator.send(ChunkAck(acked=[(3, 0)]))
    scene.coordinator.chunks.clear()
    scene.coordinator.acknowledge = True
    await scene.coordinator.send(Welcome(run_id="r", run_dir="d", config=""))
    await scene.coordinator.until(lambda: scene.coordinator.ended(7))
    assert [c.chunk_index for c in scene.coordinator.chunks] == [c.chunk_index for c in first[1:]]


@pytest.mark.parametrize("asked", [True, False])
async def test_after_hello_chunks_wait_for_the_answer_and_keep_their_order(
    scenes: Callable[..., Scene], asked: bool
) -> None:
    """Silent or asking, the coordinator may be a new one: it is told which leases are held, and
    gets nothing that stands behind what it lacks. The engine goes on."""
    scene = scenes(FakeEngine(mean_length=1e6, step_s=0.001), heartbeat_s=0.1)
    scene.coordinator.acknowledge = False
    await scene.begin()
    await scene.lease(make_lease(lease_id=1), make_lease(lease_id=2, version_at_least=9))
    await scene.coordinator.until(lambda: len(scene.coordinator.of(1)) >= 2)
    greeted = len(scene.coordinator.got(Hello))
    if asked:
        await scene.coordinator.send(AskHello())
    await scene.coordinator.until(lambda: len(scene.coordinator.got(Hello)) > greeted)
    hello = scene.coordinator.got(Hello)[-1]
    assert isinstance(hello, Hello)
    assert hello.leases == [1, 2]
    before, sampled = len(scene.coordinator.chunks), scene.loop._tokens
    reports = len(scene.coordinator.got(GeneratorReport))
    await scene.coordinator.until(lambda: len(scene.coordinator.got(GeneratorReport)) > reports)
    assert len(scene.coordinator.chunks) == before
    await scene.coordinator.until(lambda: scene.loop._tokens > sampled)
    scene.coordinator.chunks.clear()
    scene.coordinator.acknowledge = True
    await scene.coordinator.send(Welcome(run_id="r", run_dir="d", config=""))
    await scene.coordinator.until(lambda: len(scene.coordinator.of(1)) > before + 2)
    indices = [chunk.chunk_index for chunk in scene.coordinator.of(1)]
    assert indices == list(range(len(indices)))


async def test_silence_brings_hello_again_and_then_the_end(scenes: Callable[..., Scene]) -> None:
    scene = scenes(heartbeat_s=0.1, stall_timeout_s=2.5)
    await scene.coordinator.until(lambda: len(scene.coordinator.got(Hello)) >= 2)
    with pytest.raises(RunFailedError, match="nothing heard"):
        await scene.task


async def test_a_generator_that_stood_still_reads_what_came_meanwhile(
    scenes: Callable[..., Scene],
) -> None:
    """Stopped for longer than the stall time-out, by SIGSTOP or with its machine, it is no one
    whom the coordinator has left."""
    scene = scenes(stall_timeout_s=2.5)
    await scene.begin()
    await scene.coordinator.send(Heartbeat())
    time.sleep(3.0)
    await asyncio.sleep(0.5)
    assert not scene.task.done()


async def test_shutdown_holds_what_is_live_and_says_goodbye(scenes: Callable[..., Scene]) -> None:
    scene = scenes(FakeEngine(mean_length=1e6, step_s=0.001))
    await scene.begin()
    await scene.lease(make_lease())
    await scene.coordinator.until(lambda: len(scene.coordinator.chunks) >= 2)
    await scene.coordinator.send(Shutdown(reason="enough"))
    assert await scene.task == "enough"
    await scene.coordinator.until(lambda: bool(scene.coordinator.got(Goodbye)))
    assert scene.coordinator.got(Goodbye) == [Goodbye()]
    assert scene.coordinator.chunks[-1].finish == "held"


async def test_a_dead_engine_is_named_in_goodbye(scenes: Callable[..., Scene]) -> None:
    class DyingEngine(FakeEngine):
        async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
            yield TokenDelta([5], [-0.5], self.version)
            raise EngineDeadError("it is gone")

    scene = scenes(DyingEngine())
    await scene.begin()
    await scene.lease(make_lease())
    with pytest.raises(EngineDeadError):
        await scene.task
    await scene.coordinator.until(lambda: bool(scene.coordinator.got(Goodbye)))
    (goodbye,) = scene.coordinator.got(Goodbye)
    assert isinstance(goodbye, Goodbye)
    assert goodbye.failed == "EngineDeadError: it is gone"
    assert scene.coordinator.of(7)[-1].finish == "held"
    assert scene.coordinator.of(7)[-1].token_ids.tolist() == [5]


async def test_a_request_that_cannot_be_served_fails_alone(scenes: Callable[..., Scene]) -> None:
    scene = scenes(FakeEngine(mean_length=5.0, max_model_len=10))
    await scene.begin()
    long = np.ones(20, dtype=np.int32)
    await scene.lease(make_lease(lease_id=1, prompt_ids=long), make_lease(lease_id=2))
    await scene.coordinator.until(lambda: scene.coordinator.ended(1, 2))
    (failed,) = scene.coordinator.of(1)
    assert failed.finish == "failed"
    assert "no room" in (failed.error or "")
    assert scene.coordinator.of(2)[-1].finish == "stop"


async def test_weights_that_do_not_match_their_hash_are_reported(
    scenes: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("generators.rollout.loop._RETRY_S", 0.01)
    scene = scenes()
    await scene.begin(version=0)
    bad = scene.notice(1)
    scene.weights.write_bytes(b"something else of the same length, nearly........"[: bad.num_bytes])
    await scene.coordinator.send(bad)
    await scene.coordinator.until(lambda: len(scene.coordinator.got(WeightsLoaded)) == 2)
    loaded = scene.coordinator.got(WeightsLoaded)[1]
    assert isinstance(loaded, WeightsLoaded)
    assert "announced" in (loaded.error or "")
    assert scene.engine.version == 0


async def test_a_failure_of_weights_that_were_overtaken_is_no_answer(
    scenes: Callable[..., Scene],
) -> None:
    """Before a run trains, a failure of the first ones would end it."""
    scene = scenes()
    await scene.coordinator.until(lambda: bool(scene.coordinator.got(Hello)))
    await scene.coordinator.send(replace(scene.notice(0), digest="0" * 32))
    await asyncio.sleep(0.3)  # It has failed once, and is about to try again.
    await scene.coordinator.send(scene.notice(1))
    await scene.coordinator.until(lambda: scene.engine.version == 1)
    await scene.coordinator.until(lambda: bool(scene.coordinator.got(WeightsLoaded)))
    answers = scene.coordinator.got(WeightsLoaded)
    assert [(a.version, a.error) for a in answers if isinstance(a, WeightsLoaded)] == [(1, None)]


async def test_nobody_waits_for_a_broadcast_that_was_overtaken(
    scenes: Callable[..., Scene],
) -> None:
    """A learner that died answers no more, and the next one has announced its weights."""
    dead = Router("127.0.0.1", 0, max_bytes=1 << 20)

    async def receive(
        notice: WeightNotice, name: str, _keys: str | None, overtaken: Callable[[], bool]
    ) -> None:
        if notice.version == 0:
            request = BroadcastRequest(version=0, joined=True, workers=1)
            link = Link(dead.address)
            await request_broadcast(link, name, request, silence_s=300, overtaken=overtaken)

    scene = scenes(receive=receive)
    await scene.coordinator.until(lambda: bool(scene.coordinator.got(Hello)))
    await scene.coordinator.send(scene.notice(0))
    await dead.receive()
    await scene.coordinator.send(scene.notice(1))
    await scene.coordinator.until(lambda: bool(scene.coordinator.got(WeightsLoaded)))
    answers = scene.coordinator.got(WeightsLoaded)
    assert [(a.version, a.error) for a in answers if isinstance(a, WeightsLoaded)] == [(1, None)]
    dead.close()


async def test_a_broadcast_comes_from_the_coordinator_s_host(scenes: Callable[..., Scene]) -> None:
    """A learner there reaches it by loopback, and so names its host in all that it says."""
    learner, found = Router("127.0.0.2", 0, max_bytes=1 << 20), list[str]()

    async def answer() -> None:
        name, _ = await learner.receive()
        tensors = [BroadcastTensor("w", "float32", [2])]
        reply = BroadcastReply(version=0, tensors=tensors, rendezvous="127.0.0.1:7")
        await learner.send(name, reply)

    async def receive(
        notice: WeightNotice, name: str, _keys: str | None, overtaken: Callable[[], bool]
    ) -> None:
        link = Link(notice.sources[1].replace("gloo:", "tcp:"))
        request = BroadcastRequest(version=0, joined=False, workers=1)
        reply = await request_broadcast(link, name, request, silence_s=10, overtaken=overtaken)
        assert reply is not None
        found.append(reply.rendezvous)

    scene = scenes(receive=receive, host="127.0.0.2")
    answering = asyncio.create_task(answer())
    await scene.coordinator.until(lambda: bool(scene.coordinator.got(Hello)))
    notice, source = scene.notice(0), learner.address.replace("tcp://127.0.0.2", "gloo://127.0.0.1")
    await scene.coordinator.send(replace(notice, sources=[*notice.sources, source]))
    await scene.coordinator.until(lambda: bool(found))
    assert found == ["127.0.0.2:7"]
    await answering
    learner.close()


async def test_a_refusal_ends_the_process_with_its_reason(scenes: Callable[..., Scene]) -> None:
    scene = scenes()
    await scene.coordinator.until(lambda: bool(scene.coordinator.got(Hello)))
    await scene.coordinator.send(Refused(reason="name in use"))
    with pytest.raises(UserError, match="name in use"):
        await scene.task


async def test_leases_and_how_far_it_has_heard_are_in_hello_and_reports(
    scenes: Callable[..., Scene],
) -> None:
    scene = scenes(FakeEngine(mean_length=1e6, step_s=0.05))
    await scene.begin()
    await scene.lease(make_lease(lease_id=3), make_lease(lease_id=5, version_at_least=9))
    await scene.coordinator.send(Heartbeat(leases_until=6))
    await scene.coordinator.send(Heartbeat())
    reports = len(scene.coordinator.got(GeneratorReport))
    await scene.coordinator.until(lambda: len(scene.coordinator.got(GeneratorReport)) > reports + 1)
    report = scene.coordinator.got(GeneratorReport)[-1]
    assert isinstance(report, GeneratorReport)
    assert (report.leases, report.leases_until) == ([3, 5], 6)
    await scene.coordinator.send(AskHello())
    await scene.coordinator.until(lambda: len(scene.coordinator.got(Hello)) > 1)
    hello = scene.coordinator.got(Hello)[-1]
    assert isinstance(hello, Hello)
    assert (hello.leases, hello.leases_until) == ([3, 5], 6)


async def test_a_chunk_that_nobody_acknowledges_is_sent_again(scenes: Callable[..., Scene]) -> None:
    """A connection that broke may have lost the last chunk of a lease, and nothing follows it."""
    scene = scenes(heartbeat_s=0.1)
    scene.coordinator.acknowledge = False
    await scene.begin()
    await scene.lease(make_lease(window=1000))
    await scene.coordinator.until(lambda: scene.coordinator.ended(7))
    count = len(scene.coordinator.chunks)
    scene.coordinator.acknowledge = True
    for _ in range(30):
        await scene.coordinator.send(Heartbeat())
        await asyncio.sleep(0.1)
        if len(scene.coordinator.chunks) > count:
            break
    indices = [chunk.chunk_index for chunk in scene.coordinator.chunks]
    assert indices == [*range(count), *range(count)]
    assert len(scene.coordinator.got(Hello)) == 1


class Burst:
    """A channel whose messages have all come before anything else runs."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)

    async def send(self, message: Message) -> None:
        pass

    async def receive(self) -> Message:
        if self.messages:
            return self.messages.pop(0)
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_hold_right_behind_its_lease_ends_it(tmp_path: Path) -> None:
    """The lease's task has not begun: the engine does not know its request yet."""
    engine = FakeEngine(mean_length=1e9, step_s=0.001)
    engine.version = 0
    lease = make_lease(lease_id=1, max_total=100_000, stop_at=100_000)
    loop = GeneratorLoop(
        engine, Burst(Leases(leases=[lease]), Hold(leases=[(1, -1)])),
        Hello(role="generator", name="g", pid=1, host="h"), chunk_tokens=4,
        weights_folder=tmp_path,
    )  # fmt: skip
    task = asyncio.create_task(loop.run())
    await asyncio.sleep(0.1)
    try:
        assert not engine._live
    finally:
        task.cancel()
