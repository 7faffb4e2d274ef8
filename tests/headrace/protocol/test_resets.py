"""Real sockets, connections that are reset again and again: every message comes once, in order."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from headrace.protocol.messages.control import (
    Heartbeat,
    Hello,
    Message,
    Shutdown,
    Trouble,
    WeightBytes,
)
from headrace.protocol.transport.sockets import BlockingDealer, Dealer, Link, Router
from tests.breaker import Breaker, Way, breaking

LIMIT = 1 << 20
NAME = "learner-0~0123456789abcdef"
MESSAGES, RESETS = 300, 12
HELLO = Hello(role="learner", name="learner-0", pid=1, host="here")


async def beat(router: Router) -> None:
    """As a coordinator does."""
    while True:
        await asyncio.sleep(0.05)
        await router.send(NAME, Heartbeat())


async def hear(router: Router, begun: asyncio.Event, said: list[Message]) -> None:
    """All that is said but heartbeats. Who does not listen does not hear what is missing."""
    while True:
        name, message = await router.receive()
        assert name == NAME
        if isinstance(message, Hello):
            router.begin_delivery(name)
            begun.set()
        elif not isinstance(message, Heartbeat):
            said.append(message)


async def say(router: Router) -> None:
    for number in range(MESSAGES):
        # Some are long, so that a reset finds a socket's buffer full.
        await router.send(NAME, WeightBytes(version=number, offset=0, data=bytes(number * 1000)))
        await asyncio.sleep(0.005)


async def reset_often(breaker: Breaker) -> None:
    for _ in range(RESETS):
        await asyncio.sleep(0.15)
        breaker.reset()


@contextlib.asynccontextmanager
async def routed() -> AsyncIterator[tuple[Router, asyncio.Event, list[Message]]]:
    """A coordinator's socket, the beginning of its delivery, and what it was told."""
    router, begun = Router("127.0.0.1", 0, max_bytes=LIMIT), asyncio.Event()
    said: list[Message] = []
    tasks = [asyncio.create_task(part) for part in (beat(router), hear(router, begun, said))]
    try:
        async with asyncio.timeout(60):
            yield router, begun, said
    finally:
        for task in tasks:
            task.cancel()
        router.close()


async def test_both_ways_over_a_connection_that_breaks() -> None:
    heard: list[int] = []
    async with routed() as (router, begun, said), breaking(router.address) as breaker:
        dealer = Dealer(Link(breaker.address, LIMIT), NAME)

        async def role() -> None:
            number = 0
            while len(heard) < MESSAGES or len(said) < MESSAGES:
                if number < MESSAGES:
                    await dealer.send(Trouble(kind="disk", text=str(number)))
                    number += 1
                message = await dealer.receive_within(0.01)
                if isinstance(message, WeightBytes):
                    heard.append(message.version)

        try:
            await dealer.send(HELLO)
            await begun.wait()
            await asyncio.gather(say(router), reset_often(breaker), role())
        finally:
            dealer.close()
    assert said == [Trouble(kind="disk", text=str(number)) for number in range(MESSAGES)]
    assert heard == list(range(MESSAGES))


async def test_the_last_message_before_a_silence_is_sent_again() -> None:
    """To one without an event loop, and from it: nothing that follows tells of the loss."""
    kinds: list[tuple[Way, str]] = [("from", "Shutdown"), ("to", "Trouble")]
    async with routed() as (router, begun, said), breaking(router.address, kinds) as breaker:
        dealer = BlockingDealer(Link(breaker.address, LIMIT), NAME)

        def heard(kind: type[Message], seconds: float) -> Message | None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                if isinstance(message := dealer.receive(0.1), kind):
                    return message
            return None

        try:
            dealer.send(HELLO)
            await begun.wait()
            await router.send(NAME, Shutdown(reason="done"))
            assert await asyncio.to_thread(heard, Shutdown, 20.0) == Shutdown(reason="done")
            dealer.send(Trouble(kind="disk", text="is full"))
            while not said:
                assert await asyncio.to_thread(heard, Shutdown, 0.2) is None
        finally:
            dealer.close()
    assert said == [Trouble(kind="disk", text="is full")]
    assert breaker.cut == kinds


async def test_what_is_said_while_nobody_is_connected_comes_later() -> None:
    async with routed() as (router, begun, _), breaking(router.address) as breaker:
        dealer = Dealer(Link(breaker.address, LIMIT), NAME)
        try:
            await dealer.send(HELLO)
            await begun.wait()
            breaker.reset()
            while await router.send(NAME, Heartbeat()):
                await asyncio.sleep(0.001)
            assert not await router.send(NAME, Shutdown(reason="done"))
            while not isinstance(message := await dealer.receive(), Shutdown):
                pass
            assert message == Shutdown(reason="done")
        finally:
            dealer.close()
