"""What reward workers cost beside the generator whose answers they score.

In: a recipe. Its generator answers held-out prompts in a real run; then the same answers go to one
reward worker, as the run starts it, at the very times at which they were finished. Out: answers a
second, and processor seconds of the worker and its scoring children for each. Promises: answers are
counted while all slots of the generator were full; start-up of the worker is no part of the cost;
an answer that cannot be scored is a RunFailedError.

A policy before training writes the shortest answers, and in an evaluation a generator may use the
learner's core: training finishes fewer answers a second.
"""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from msgspec.structs import replace

from benchmarks.runs import train
from headrace.commands.answers import items_of
from headrace.config.load import load_recipe
from headrace.config.run import RunConfig
from headrace.errors import RunFailedError
from headrace.protocol.messages import (
    Heartbeat,
    Hello,
    ScoreItem,
    ScoreRequest,
    Scores,
    Shutdown,
    Welcome,
)
from headrace.protocol.sockets import Router
from storage.queries import export
from tasks.answers import read_answers
from tasks.records import read_records

TOGETHER_S = 0.005
"""Answers that end within so much came in one message of the generator's, and go on in one."""
WARM = 256
"""Answers that are scored before the measurement."""
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Answers:
    """What a generator wrote: items, and the seconds at which each was finished, in order, while
    all its slots were full."""

    items: list[ScoreItem]
    at: list[float]

    @property
    def per_s(self) -> float:
        """Answers a second."""
        return len(self.at) / (self.at[-1] - self.at[0])


@dataclass(frozen=True)
class Cost:
    """What scoring took: seconds of the processor, and the most answers that waited at a time."""

    answers: int
    cpu_s: float
    most_waiting: int

    @property
    def cpu_s_per_answer(self) -> float:
        """Processor seconds of worker and children for one answer."""
        return self.cpu_s / self.answers


def while_full(begun: Sequence[float], ended: Sequence[float]) -> list[int]:
    """Which answers were finished before the last one was begun, in the order in which they were:
    as long as a prompt waits, no slot is empty."""
    last = max(begun)
    return sorted((i for i, at in enumerate(ended) if at <= last), key=lambda i: ended[i])


def generate(recipe: str, overrides: Sequence[str], prompts: int, root: Path) -> Answers:
    """Answers to `prompts` held-out prompts by the recipe's generator, in a run of their own."""
    only = ["evaluation.only=true", "evaluation.before=true", "evaluation.after=false"]
    asked = [*overrides, *only, f"evaluation.num_prompts={prompts}"]
    summary = train(recipe, asked, root=root, name="answers")
    path = root / "answers.jsonl"
    export(Path(summary["folder"]), "trajectories", "jsonl", path)
    records = [record for _, record in read_records(path)]
    chosen = while_full(
        [record["first_token_at"] for record in records],
        [record["finished_at"] for record in records],
    )
    if len(chosen) < 2 * WARM:
        raise RunFailedError(f"{len(chosen)} answers are too few: raise --prompts")
    items = items_of(load_recipe(Path(recipe), list(overrides)), read_answers(str(path)))
    first = records[chosen[0]]["finished_at"]
    return Answers([items[i] for i in chosen], [records[i]["finished_at"] - first for i in chosen])


def together(at: Sequence[float]) -> list[range]:
    """Places of answers that travel in one message."""
    starts = [i for i in range(len(at)) if i == 0 or at[i] - at[i - 1] > TOGETHER_S]
    return [range(a, b) for a, b in pairwise([*starts, len(at)])]


class Worker:
    """A reward worker process, and the coordinator's side of it."""

    def __init__(self, router: Router, name: str, process: "subprocess.Popen[bytes]") -> None:
        self._router, self._name = router, name
        self._process = psutil.Process(process.pid)
        self.waiting = 0
        self.most_waiting = 0
        self._idle = asyncio.Event()

    async def ask(self, items: Sequence[ScoreItem]) -> None:
        """Have these scored."""
        self.waiting += len(items)
        self.most_waiting = max(self.most_waiting, self.waiting)
        self._idle.clear()
        await self._router.send(self._name, ScoreRequest(items=list(items)))

    async def listen(self) -> None:
        """Take scores; RunFailedError for an answer that was not scored."""
        while True:
            _, message = await self._router.receive()
            if isinstance(message, Scores):
                if lost := [score for score in message.scores if score.status != "ok"]:
                    raise RunFailedError(f"an answer was not scored: {lost[0].error}")
                self.waiting -= len(message.scores)
                if not self.waiting:
                    self._idle.set()
            elif not isinstance(message, Hello | Heartbeat):
                raise RunFailedError(f"unexpected {message}")

    async def finish(self) -> None:
        """Return when all is scored."""
        async with asyncio.timeout(PATIENCE_S):
            await self._idle.wait()

    def cpu_s(self) -> float:
        """Processor seconds so far of the worker and all its children, ended ones included."""
        own = self._process.cpu_times()
        children = [child.cpu_times() for child in self._process.children(recursive=True)]
        ended = own.children_user + own.children_system
        return float(ended + sum(times.user + times.system for times in (own, *children)))


@contextlib.asynccontextmanager
async def reward_worker(config: RunConfig) -> AsyncIterator[Worker]:
    """A worker that has what a run would tell it."""
    router = Router("127.0.0.1", 0, max_bytes=64 << 20)
    command = [sys.executable, "-m", "rewards.run", "--connect", router.address, "--name"]
    process = subprocess.Popen([*command, "reward-0"], stderr=subprocess.DEVNULL)
    try:
        name, _ = await asyncio.wait_for(router.receive(), PATIENCE_S)
        router.begin(name)
        await router.send(name, Welcome(run_id="", run_dir="", config=config.model_dump_json()))
        yield Worker(router, name, process)
        await router.send(name, Shutdown(reason="measured"))
    finally:
        router.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()
        process.wait()


async def cost(config: RunConfig, answers: Answers, *, warm: int = WARM) -> Cost:
    """Have the answers scored when they were finished; the first `warm` at once, and unmeasured, as
    is the start of the children."""
    first = [*answers.items[:warm], long_way(config, answers.items[0])]
    async with reward_worker(config) as worker:
        listening = asyncio.create_task(worker.listen())
        try:
            return await _until_failed(listening, _measure(worker, answers, warm, first))
        finally:
            listening.cancel()


def long_way(config: RunConfig, item: ScoreItem) -> ScoreItem:
    """An answer that is not told at a glance: when it has its score, the children are there."""
    marker = config.reward.answer_marker or ""
    return replace(item, text=f"{marker}1+x", answer="x+1", finished=True)


async def _measure(worker: Worker, answers: Answers, warm: int, first: Sequence[ScoreItem]) -> Cost:
    await worker.ask(first)
    await worker.finish()
    items, at = answers.items[warm:], answers.at[warm:]
    worker.most_waiting = 0
    before, began = worker.cpu_s(), time.perf_counter() - at[0]
    for places in together(at):
        await asyncio.sleep(max(0.0, began + at[places[-1]] - time.perf_counter()))
        await worker.ask([items[i] for i in places])
    await worker.finish()
    return Cost(len(items), worker.cpu_s() - before, worker.most_waiting)


async def _until_failed(listening: "asyncio.Task[None]", measuring: Any) -> Cost:
    """What the measurement finds, or the error that ended the listening."""
    task: asyncio.Task[Cost] = asyncio.create_task(measuring)
    await asyncio.wait({task, listening}, return_when=asyncio.FIRST_COMPLETED)
    if listening.done():
        task.cancel()
        listening.result()
    return task.result()
