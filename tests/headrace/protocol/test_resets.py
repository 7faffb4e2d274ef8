"""Real sockets, connections that are reset again and again: every message comes once, in order."""

import asyncio
import contextlib

from headrace.protocol.messages import Heartbeat, Hello, Shutdown, Trouble, WeightBytes
from headrace.protocol.sockets import BlockingDealer, Dealer, Link, Router
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


async def hear(router: Router, begun: asyncio.Event, said: list[str]) -> None:
    while True:
        name, message = await router.receive()
        assert name == NAME
        if isinstance(message, Hello):
            router.begin(name)
            begun.set()
        elif isinstance(message, Trouble):
            said.append(message.text)


async def say(router: Router) -> None:
    for number in range(MESSAGES):
        # Some are long, so that a reset finds a socket's buffer full.
        await router.send(NAME, WeightBytes(version=number, offset=0, data=bytes(number * 1000)))
        await asyncio.sleep(0.005)


async def reset_often(breaker: Breaker) -> None:
    for _ in range(RESETS):
        await asyncio.sleep(0.15)
        breaker.reset()


async def test_both_ways_over_a_connection_that_breaks() -> None:
    router = Router("127.0.0.1", 0, max_bytes=LIMIT)
    said: list[str] = []
    heard: list[int] = []
    begun = asyncio.Event()
    async with breaking(router.address) as breaker:
        dealer = Dealer(Link(breaker.address, LIMIT), NAME)

        async def role() -> None:
            await dealer.send(HELLO)
            await begun.wait()
            number = 0
            while len(heard) < MESSAGES or len(said) < MESSAGES:
                if number < MESSAGES:
                    await dealer.send(Trouble(kind="disk", text=str(number)))
                    number += 1
                message = await dealer.receive_within(0.01)
                if isinstance(message, WeightBytes):
                    heard.append(message.version)

        tasks = [
            asyncio.create_task(beat(router)),
            asyncio.create_task(hear(router, begun, said)),
        ]
        try:
            async with asyncio.timeout(60):
                playing = asyncio.create_task(role())
                await begun.wait()
                await asyncio.gather(say(router), reset_often(breaker), playing)
        finally:
            for task in tasks:
                task.cancel()
            dealer.close()
            router.close()
    assert said == [str(number) for number in range(MESSAGES)]
    assert heard == list(range(MESSAGES))


async def test_the_last_message_before_a_silence_is_sent_again() -> None:
    """To one without an event loop, and from it: nothing that follows tells of the loss."""
    router = Router("127.0.0.1", 0, max_bytes=LIMIT)
    kinds: list[tuple[Way, str]] = [("from", "Shutdown"), ("to", "Trouble")]
    async with breaking(router.address, kinds) as breaker:
        dealer = BlockingDealer(Link(breaker.address, LIMIT), NAME)
        beating = asyncio.create_task(beat(router))
        listening = None
        try:
            async with asyncio.timeout(30):
                dealer.send(HELLO)
                assert await router.receive() == (NAME, HELLO)
                router.begin(NAME)
                await router.send(NAME, Shutdown(reason="done"))

                def wait_for_it() -> object:
                    while not isinstance(message := dealer.receive(), Shutdown):
                        pass
                    return message

                assert await asyncio.to_thread(wait_for_it) == Shutdown(reason="done")
                dealer.send(Trouble(kind="disk", text="is full"))
                listening = asyncio.create_task(asyncio.to_thread(dealer.receive, 5.0))
                while isinstance((arrival := await router.receive())[1], Heartbeat):
                    pass
                assert arrival == (NAME, Trouble(kind="disk", text="is full"))
        finally:
            if listening is not None:
                await listening
            beating.cancel()
            dealer.close()
            router.close()
    assert breaker.cut == kinds


async def test_what_is_said_while_nobody_is_connected_comes_later() -> None:
    router = Router("127.0.0.1", 0, max_bytes=LIMIT)
    async with breaking(router.address) as breaker:
        dealer = Dealer(Link(breaker.address, LIMIT), NAME)
        beating = asyncio.create_task(beat(router))
        try:
            async with asyncio.timeout(30):
                await dealer.send(HELLO)
                await router.receive()
                router.begin(NAME)
                breaker.reset()
                while await router.send(NAME, Heartbeat()):
                    await asyncio.sleep(0.001)
                assert not await router.send(NAME, Shutdown(reason="done"))
                with contextlib.suppress(TimeoutError):
                    while not isinstance(message := await dealer.receive(), Shutdown):
                        pass
                assert message == Shutdown(reason="done")
        finally:
            beating.cancel()
            dealer.close()
            router.close()
