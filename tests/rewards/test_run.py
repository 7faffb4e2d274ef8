"""The worker as a process, over a real socket."""

import asyncio
import contextlib
import json
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

import psutil
import pytest

from headrace.config.sections.reward import RewardConfig
from headrace.config.sections.run import RunConfig
from headrace.protocol.messages.control import (
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    Refused,
    Score,
    ScoreItem,
    ScoreRequest,
    Scores,
    Shutdown,
    Welcome,
)
from headrace.protocol.transport.curve import make_keys
from headrace.protocol.transport.endpoints import name_of
from headrace.protocol.transport.sockets import Router
from tests.rewards.items import item, user_function
from tests.warm_roles import WarmProcess, warm_role

DEADLINE_S = 60.0


class Front:
    """The coordinator's side of one worker process."""

    def __init__(self, router: Router, process: WarmProcess, log: IO[bytes]) -> None:
        self.router, self.process, self._log = router, process, log
        self.peer = ""

    async def hear(self, kind: type[Message]) -> Message:
        """The next message of a kind; heartbeats and repeated Hellos apart."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                name, message = await self.router.receive()
                assert name_of(name) == "reward-0"
                self.peer = name
                if isinstance(message, kind):
                    return message
                assert isinstance(message, Heartbeat | Hello), message

    async def say(self, message: Message) -> None:
        assert await self.router.send(self.peer, message)

    async def welcome(self, reward: RewardConfig, **transport: float) -> Hello:
        config = RunConfig.model_validate(
            {
                "model": {"path": "unused"},
                "task": {"kind": "chain_sums"},
                "algorithm": {"advantages": {"kind": "egae"}},
                "reward": reward.model_dump(),
                "transport": {"heartbeat_s": 0.05, **transport},
            }
        )
        hello = await self.hear(Hello)
        assert isinstance(hello, Hello)
        await self.say(Welcome(run_id="r", run_dir="", config=config.model_dump_json()))
        return hello

    async def scores(self, items: list[ScoreItem]) -> dict[int, Score]:
        await self.say(ScoreRequest(items=items))
        found: dict[int, Score] = {}
        while len(found) < len(items):
            message = await self.hear(Scores)
            assert isinstance(message, Scores)
            for score in message.scores:
                assert score.trajectory_id not in found
                found[score.trajectory_id] = score
        return found

    async def ends(self) -> tuple[int, str]:
        """Exit code and log."""
        code = await asyncio.to_thread(self.process.wait, DEADLINE_S)
        self._log.seek(0)
        return code, self._log.read().decode()


@contextlib.asynccontextmanager
async def worker(*, keys: Path | None = None) -> AsyncIterator[Front]:
    arguments = ["--curve-keys", str(keys)] if keys else []
    router = Router("127.0.0.1", 0, max_bytes=64 << 20, curve_keys=str(keys) if keys else None)
    with tempfile.TemporaryFile() as log:
        link = ("--connect", router.address, "--name", "reward-0")
        process = warm_role("rewards.run", *link, *arguments, log=log)
        try:
            yield Front(router, process, log)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            router.close()


async def test_five_hundred_items_and_an_orderly_end() -> None:
    texts = {17: "hang", 133: "exit", 134: "nan", 250: "print", 251: "text", 499: "raise"}
    expected = {17: "timeout", 133: "crashed", 134: "invalid", 251: "invalid", 499: "crashed"}
    async with worker() as front:
        hello = await front.welcome(user_function(children=2, batch=32))
        assert (hello.role, hello.pid) == ("reward", front.process.pid)
        items = [item(texts.get(i, str(i % 10)), trajectory_id=i) for i in range(500)]
        scores = await front.scores(items)
        for i, score in scores.items():
            assert score.status == expected.get(i, "ok"), score
            assert score.seconds > 0.0
            if i not in texts:
                assert score.reward == float(i % 10 == 7)
        await front.say(Shutdown(reason="done"))
        assert await front.hear(Goodbye) == Goodbye()
        assert (await front.ends())[0] == 0


async def test_shutdown_finishes_what_is_held() -> None:
    async with worker() as front:
        await front.welcome(RewardConfig(answer_marker="#"))
        items = [item("#7", trajectory_id=i) for i in range(100)]
        await front.say(ScoreRequest(items=items))
        await front.say(Shutdown(reason="done"))
        found = 0
        while found < 100:
            message = await front.hear(Scores)
            assert isinstance(message, Scores)
            found += len(message.scores)
        assert await front.hear(Goodbye) == Goodbye()
        assert (await front.ends())[0] == 0


async def test_shutdown_does_not_wait_for_ever() -> None:
    async with worker() as front:
        await front.welcome(user_function(timeout_s=0.5))
        await front.say(ScoreRequest(items=[item("hang") for _ in range(50)]))
        await front.say(Shutdown(reason="done"))
        await front.hear(Goodbye)
        assert (await front.ends())[0] == 0


async def test_too_many_failures_say_goodbye_with_the_reason() -> None:
    async with worker() as front:
        await front.welcome(user_function(max_consecutive_failures=5))
        await front.say(ScoreRequest(items=[item("nan") for _ in range(9)]))
        told = 0
        while told < 5:
            scores = await front.hear(Scores)
            assert isinstance(scores, Scores)
            told += len(scores.scores)
        goodbye = await front.hear(Goodbye)
        assert isinstance(goodbye, Goodbye)
        assert "5 scorings in a row failed" in str(goodbye.failed)
        code, log = await front.ends()
        assert code == 1
        assert log.strip().splitlines()[-1] == f"error: {goodbye.failed}"
        assert "Traceback" not in log


async def test_a_missing_function_is_the_users_mistake() -> None:
    line = "reward.function='nowhere.py:score': cannot import it (there is no file nowhere.py)"
    async with worker() as front:
        await front.welcome(user_function(function="nowhere.py:score"))
        goodbye = await front.hear(Goodbye)
        assert goodbye == Goodbye(failed=line)
        code, log = await front.ends()
        assert code == 2
        assert log.strip().splitlines()[-1] == f"error: {line}"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_signals_end_it_with_a_goodbye(number: signal.Signals, code: int) -> None:
    async with worker() as front:
        await front.welcome(user_function(timeout_s=DEADLINE_S))
        await front.say(ScoreRequest(items=[item("7"), item("hang")]))
        await front.hear(Scores)
        children = psutil.Process(front.process.pid).children()
        front.process.send_signal(number)
        assert await front.hear(Goodbye) == Goodbye()
        assert (await front.ends())[0] == code
        assert psutil.wait_procs(children, timeout=DEADLINE_S)[1] == []


async def test_neither_children_nor_what_they_started_outlive_a_killed_worker(
    tmp_path: Path,
) -> None:
    note = tmp_path / "pid"
    async with worker() as front:
        await front.welcome(user_function(timeout_s=DEADLINE_S))
        spawning = item("spawn", info=json.dumps({"note": str(note)}))
        await front.say(ScoreRequest(items=[item("7"), spawning]))
        await front.hear(Scores)
        async with asyncio.timeout(DEADLINE_S):
            while not (note.exists() and note.read_text()):
                await asyncio.sleep(0.01)
        children = psutil.Process(front.process.pid).children(recursive=True)
        assert int(note.read_text()) in {child.pid for child in children}
        front.process.send_signal(signal.SIGKILL)
        assert psutil.wait_procs(children, timeout=DEADLINE_S)[1] == []


async def test_a_restarted_coordinator_is_greeted_again() -> None:
    async with worker() as front:
        await front.welcome(RewardConfig(answer_marker="#"), heartbeat_timeout_s=0.2)
        await front.hear(Hello)
        await front.welcome(RewardConfig(answer_marker="#"))
        assert (await front.scores([item("#7", trajectory_id=4)]))[4].reward == 1.0


async def test_a_silent_coordinator_is_left() -> None:
    async with worker() as front:
        await front.welcome(
            RewardConfig(answer_marker="#"), heartbeat_timeout_s=0.1, stall_timeout_s=0.5
        )
        await front.hear(Goodbye)
        code, log = await front.ends()
        assert code == 1
        assert "no word from the coordinator" in log


async def test_a_refusal_ends_it() -> None:
    async with worker() as front:
        await front.hear(Hello)
        await front.say(Refused(reason="name in use"))
        code, log = await front.ends()
        assert code == 1
        assert "name in use" in log


async def test_with_keys(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    async with worker(keys=tmp_path / "keys") as front:
        await front.welcome(RewardConfig(answer_marker="#"))
        assert (await front.scores([item("#7", trajectory_id=4)]))[4].reward == 1.0
