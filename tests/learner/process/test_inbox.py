"""The learner's Hellos, on a real socket."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.config.sections.process import TransportConfig
from headrace.errors import RunFailedError
from headrace.host.progress_reporter import ProgressReporter
from headrace.protocol.messages.control import (
    CheckpointRequest,
    Goodbye,
    Hello,
    Message,
    Shutdown,
    Welcome,
)
from headrace.protocol.transport.sockets import Link, Router
from learner.process import inbox as inbox_module
from learner.process.inbox import Inbox, WeightOrigin


async def hellos(router: Router, count: int) -> list[tuple[str, Hello]]:
    found: list[tuple[str, Hello]] = []
    while len(found) < count:
        identity, message = await router.receive()
        if isinstance(message, Hello):
            found.append((identity, message))
    return found


def answer(hello: Hello) -> Welcome:
    return Welcome(run_id="r", run_dir="", config="", publish_as=1, greeting=hello.greeting)


async def test_a_restore_is_told_until_it_is_heard_and_never_to_a_later_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox_module, "_GREETING_S", 0.05)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    transport = TransportConfig(heartbeat_timeout_s=0.05)
    router = Router("127.0.0.1", 0, max_bytes=1 << 20)
    loop = asyncio.get_running_loop()
    link = Link(router.address, transport.max_bytes)
    weights = WeightOrigin(7, 70, "step_7", "not finite")
    box = Inbox(link, transport, weights=lambda: weights, work=ProgressReporter())

    def listen() -> list[Message]:
        heard: list[Message] = []
        with box:
            while len(heard) < 2:
                heard.append(box.next())
        return heard

    try:
        learner: Any = loop.run_in_executor(None, listen)
        first = await hellos(router, 2)
        assert [hello.resumed_from for _, hello in first] == ["step_7"] * 2
        assert [hello.greeting for _, hello in first] == [1, 2]
        identity = first[0][0]
        await router.send(identity, answer(first[0][1]))  # Another Hello is on its way.
        await router.send(identity, CheckpointRequest(update=7, lineage=0))
        await router.send(identity, answer(first[1][1]))
        ((_, later),) = await hellos(router, 1)
        assert (later.update, later.batch_id, later.resumed_from) == (7, 70, None)
        assert later.skipped == "not finite"
        await router.send(identity, answer(later))
        assert [type(message) for message in await learner] == [Welcome, Welcome]
    finally:
        router.close()


GONE = RuntimeError("Connection closed by peer")


@pytest.mark.parametrize(
    ("ranks", "error", "told"),
    [
        (1, GONE, "RuntimeError: Connection closed by peer"),
        (2, GONE, None),
        (2, RunFailedError("weight a is not finite"), "RunFailedError: weight a is not finite"),
    ],
)
async def test_a_rank_that_lost_another_one_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, ranks: int, error: Exception, told: str | None
) -> None:
    """A kill of one of several ranks breaks the collectives of the others."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    transport = TransportConfig()
    router = Router("127.0.0.1", 0, max_bytes=1 << 20)
    link, weights = Link(router.address, transport.max_bytes), WeightOrigin(0, None, None)
    box = Inbox(link, transport, weights=lambda: weights, work=ProgressReporter(), ranks=ranks)

    def fail() -> None:
        with pytest.raises(type(error)), box:
            raise error

    try:
        ended = asyncio.get_running_loop().run_in_executor(None, fail)
        while not isinstance(message := (await router.receive())[1], Goodbye):
            pass
        assert message.failed == told
        await ended
    finally:
        router.close()


class StoppedDealer:
    """A socket whose process stands still for an hour in the first wait for a message."""

    def __init__(self, clock: list[float], speaks_at: int | None) -> None:
        self._clock, self._speaks_at, self._waits = clock, speaks_at, 0

    def send(self, message: Message) -> None:
        assert isinstance(message, Hello)

    def receive(self, timeout_s: float) -> Message | None:
        self._waits += 1
        self._clock[0] += 3600.0 if self._waits == 1 else timeout_s
        return Shutdown(reason="over") if self._waits == self._speaks_at else None


def test_a_learner_that_stood_still_with_the_coordinator_listens_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both were stopped for longer than the stall time-out, by SIGSTOP or with their machine."""
    clock = [1000.0]
    monkeypatch.setattr(inbox_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def box(speaks_at: int | None) -> Inbox:
        dealer = StoppedDealer(clock, speaks_at)
        monkeypatch.setattr(inbox_module, "BlockingDealer", lambda *_: dealer)
        link, weights = Link("tcp://127.0.0.1:1"), WeightOrigin(0, None, None)
        transport = TransportConfig(stall_timeout_s=300.0)
        return Inbox(link, transport, weights=lambda: weights, work=ProgressReporter())

    assert box(speaks_at=4).next() == Shutdown(reason="over")
    with pytest.raises(RunFailedError, match="silent for 300 s"):
        box(speaks_at=None).next()
