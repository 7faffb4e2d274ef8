"""The silence of a coordinator, on a real socket."""

import asyncio
import time
from collections.abc import AsyncIterator

from headrace.config.sections.reward import RewardConfig
from headrace.config.sections.run import RunConfig
from headrace.protocol.messages.control import (
    Heartbeat,
    Hello,
    Message,
    ScoreRequest,
    Shutdown,
    Welcome,
)
from headrace.protocol.transport.sockets import Dealer, Link, Router
from rewards.worker.membership import take_part


async def test_a_worker_that_stood_still_with_its_coordinator_stays() -> None:
    """Both were stopped for longer than the stall time-out, by SIGSTOP or with their machine."""
    config = RunConfig.model_validate(
        {
            "model": {"path": "unused"},
            "task": {"kind": "chain_sums"},
            "algorithm": {"advantages": {"kind": "egae"}},
            "reward": RewardConfig(answer_marker="#").model_dump(),
            "transport": {"heartbeat_s": 0.05, "heartbeat_timeout_s": 0.4, "stall_timeout_s": 0.8},
        }
    )
    served: list[Message] = []

    async def serve(_: Dealer, config: RunConfig, messages: AsyncIterator[Message]) -> None:
        served.extend([message async for message in messages])

    router = Router("127.0.0.1", 0, max_bytes=1 << 20)
    hello = Hello(role="reward", name="reward-0", pid=1, host="here")
    work = asyncio.create_task(take_part(Link(router.address), hello, serve))
    try:
        peer, _ = await router.receive()
        await router.send(peer, Welcome(run_id="r", run_dir="", config=config.model_dump_json()))
        while not isinstance((await router.receive())[1], Heartbeat):
            pass
        time.sleep(1.0)
        await asyncio.sleep(0.1)
        assert not work.done()
        await router.send(peer, ScoreRequest(items=[]))
        await router.send(peer, Shutdown(reason="over"))
        await work
        assert served == [ScoreRequest(items=[])]
    finally:
        work.cancel()
        router.close()
