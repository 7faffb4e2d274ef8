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
    Message,
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
    begun, ended = ([r[name] for r in records] for name in ("first_token_at", "finished_at"))
    chosen = while_full(begun, ended)
    if len(chosen) < 2 * WARM:
        raise RunFailedError(f"{len(chosen)} answers are too few: raise --prompts")
    items = items_of(load_recipe(Path(recipe), list(overrides)), read_answers(str(path)))
    first = ended[chosen[0]]
    return Answers([items[i] for i in chosen], [ended[i] - first for i in chosen])


def together(at: Sequence[float]) -> list[range]:
    """Places of answers that travel in one message."""
    starts = [i for i in range(len(at)) if i == 0 or at[i] - at[i - 1] > TOGETHER_S]
    return [range(a, b) for a, b in pairwise([*starts, len(at)])]


class Worker:
    """A reward worker process, and the coordinator's side of it."""

    def __init__(self, router: Router, name: str, process: psutil.Process) -> None:
        self._router, self._name, self._process = router, name, process
        self._next: asyncio.Task[tuple[str, Message]] | None = None
        self.waiting = self.most_waiting = 0

    async def ask(self, items: Sequence[ScoreItem]) -> None:
        """Have these scored."""
        self.waiting += len(items)
        self.most_waiting = max(self.most_waiting, self.waiting)
        await self._router.send(self._name, ScoreRequest(items=list(items)))

    async def listen(self, until: float, *, to_the_last: bool = False) -> None:
        """Take scores until a time on the performance counter, or `to_the_last`; RunFailedError
        for an answer that was not scored."""
        while (patience := until - time.perf_counter()) > 0 and (self.waiting or not to_the_last):
            # Never cancelled, so that no message is lost.
            self._next = self._next or asyncio.create_task(self._router.receive())
            await asyncio.wait({self._next}, timeout=patience)
            if not self._next.done():
                return
            _, message = self._next.result()
            self._next = None
            if isinstance(message, Scores):
                if lost := [score for score in message.scores if score.status != "ok"]:
                    raise RunFailedError(f"an answer was not scored: {lost[0].error}")
                self.waiting -= len(message.scores)
            elif not isinstance(message, Hello | Heartbeat):
                raise RunFailedError(f"unexpected {message}")

    async def finish(self) -> None:
        """Return when all is scored."""
        await self.listen(time.perf_counter() + PATIENCE_S, to_the_last=True)
        if self.waiting:
            raise RunFailedError(f"{self.waiting} answers had no score in {PATIENCE_S:g} s")

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
        yield Worker(router, name, psutil.Process(process.pid))
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
    # This answer is not told at a glance: when it has its score, the children are there.
    marker = config.reward.answer_marker or ""
    long_way = replace(answers.items[0], text=f"{marker}1+x", answer="x+1", finished=True)
    items, at = answers.items[warm:], answers.at[warm:]
    async with reward_worker(config) as worker:
        await worker.ask([*answers.items[:warm], long_way])
        await worker.finish()
        worker.most_waiting = 0
        before, began = worker.cpu_s(), time.perf_counter() - at[0]
        for places in together(at):
            await worker.listen(began + at[places[-1]])
            await worker.ask([items[i] for i in places])
        await worker.finish()
        return Cost(len(items), worker.cpu_s() - before, worker.most_waiting)
