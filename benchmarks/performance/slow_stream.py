"""A stream whose rewards are slow in every second turn of the clock.

In: a kind of source, and how many pairs of turns. Out: what the coordinator's journal says of each,
by the coordinator's times. Coordinator, reward worker and its children are the real ones, each a
process. The generator's loop is real, too; its engine is scripted and makes a token every `STEP_S`
in each of `SLOTS` slots, whatever else happens. The learner is scripted: it takes `UPDATE_S` for a
batch. Promises: answers end at `LOAD` of the rate that the slow source can score at all; an answer
without a score is a RunFailedError.
"""

import asyncio
import math
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.kit import made_runs
from benchmarks.kit.made_runs import MODEL
from benchmarks.performance.generator import notice_of
from benchmarks.performance.slow_source import SECONDS, TURN_S, slow_at
from generators.engines.fake_engine import FakeEngine
from generators.engines.model_files import read_config
from generators.rollout.loop import GeneratorLoop
from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError
from headrace.host.install import ROOT
from headrace.protocol.messages.control import Batch, Hello, WeightNotice
from headrace.protocol.records.record_types import (
    ChunkArrived,
    LeaseIssued,
    RewardArrived,
    TrajectoryEnded,
    UpdateCommitted,
)
from headrace.protocol.transport.endpoints import identity_of
from headrace.protocol.transport.sockets import Dealer, Link, Pulse
from storage.run_store import RunStore
from tests.coordinator.peers import CoordinatorProcess, ScriptedLearner

Kind = Literal["coroutine", "function"]
KINDS: tuple[Kind, ...] = ("coroutine", "function")
IN_FLIGHT = 32
"""Answers that the coroutine scores at a time."""
CHILDREN = 8
"""Processes of the function, each with one answer at a time."""
SLOTS = 32
STEP_S = 0.02
WINDOW = 30
UPDATE_S = 0.2
LOAD = 0.8
PATIENCE_S = 60.0
SETTLE_S = 1.0
"""A turn's first second is not measured: scores of the turn before are still to come."""


def most_per_s(kind: Kind) -> float:
    """Answers a second that the slow source can score."""
    return (IN_FLIGHT if kind == "coroutine" else CHILDREN) / SECONDS


def mean_length(kind: Kind) -> float:
    """Tokens of an answer, so that they end at `LOAD` of that rate."""
    return SLOTS / STEP_S / (LOAD * most_per_s(kind))


def config(kind: Kind, pairs: int) -> RunConfig:
    """A run that lasts for so many pairs of turns, and for two more: it starts, maybe slowly."""
    reward: dict[str, object] = {
        "kind": "function",
        "function": f"{ROOT / 'benchmarks' / 'performance' / 'slow_source.py'}:{kind}",
    }
    reward |= {"concurrency": IN_FLIGHT} if kind == "coroutine" else {"children": CHILDREN}
    # Answers may be so long that none meets the limit: such a one would not be scored.
    return made_runs.stream(
        task={"max_prompt_length": 80, "max_response_length": round(20 * mean_length(kind))},
        algorithm={"value": {"warmup_updates": 0}},
        schedule={"window": WINDOW},
        generator={"max_num_seqs": SLOTS, "ahead": 0},
        reward=reward,
        evaluation={"before": False, "after": False},
        storage={"token_diagnostics": False},
        transport={"heartbeat_timeout_s": 60.0, "stall_timeout_s": 60.0},
        stop={"train_time_s": (2 * pairs + 4) * TURN_S},
    )


@dataclass(frozen=True)
class Turn:
    """What a stream did in a turn, `SETTLE_S` at its beginning apart."""

    slow: bool
    tokens_per_s: float
    """Generated, and accepted by the coordinator."""
    answers_per_s: float
    longest_free_s: float
    """The longest time from the end of an answer to the next one in its slot."""
    most_unscored: int
    """Most answers that had ended and had no score."""


@dataclass(frozen=True)
class Stream:
    """Turns in pairs, (instant, slow), and tokens trained a second over all of them."""

    pairs: list[tuple[Turn, Turn]]
    trained_per_s: float


def longest_free(
    ended: Iterable[float], leased: Iterable[float], slots: int, start: float, end: float
) -> float:
    """The longest that a slot was free between `start` and `end`, slots being filled in the order
    in which they became free. Before their first lease they do not count."""
    free: deque[float | None] = deque([None] * slots)
    longest = 0.0
    for at, taken in _in_order(leased, ended, end):
        if not taken:
            free.append(at)
        elif (since := free.popleft()) is not None and at >= start:
            longest = max(longest, at - max(since, start))
    return max([longest, *(end - max(at, start) for at in free if at is not None)])


def most_open(began: Iterable[float], ended: Iterable[float], start: float, end: float) -> int:
    """Most things that had begun and not ended, at any time between `start` and `end`."""
    now, most = 0, 0
    for at, begins in _in_order(began, ended, end):
        if at > start:
            most = max(most, now)
        now += 1 if begins else -1
    return max(most, now)


def _in_order(
    these: Iterable[float], others: Iterable[float], end: float
) -> list[tuple[float, bool]]:
    """Times up to `end`, and whether each is of these; of the same time others come first."""
    events = [*((at, True) for at in these), *((at, False) for at in others)]
    return sorted(event for event in events if event[0] <= end)


def read_turns(records: Sequence[object], pairs: int, *, slots: int) -> Stream:
    """What a journal says of the first so many pairs. RunFailedError where an answer got no score
    or the run was too short."""
    lost = [r for r in records if isinstance(r, RewardArrived) and r.status != "ok"]
    if lost:
        raise RunFailedError(f"an answer was not scored: {lost[0].status}, {lost[0].error}")
    commits = [r for r in records if isinstance(r, UpdateCommitted)]
    if len(commits) < 2:
        raise RunFailedError("the stream trained nothing")
    first = math.ceil(commits[0].at / TURN_S)
    # What follows the last update but one may be the run's end.
    whole = (int(commits[-2].at // TURN_S) - first) // 2
    if whole < pairs:
        raise RunFailedError(f"the stream lasted for {whole} pairs of turns, not for {pairs}")
    turns = [_turn(records, (first + n) * TURN_S, slots) for n in range(2 * pairs)]
    seconds = commits[-2].at - commits[0].at
    return Stream(
        [(b, a) if a.slow else (a, b) for a, b in zip(turns[::2], turns[1::2], strict=True)],
        (commits[-2].trained_tokens - commits[0].trained_tokens) / seconds,
    )


def _turn(records: Sequence[object], began: float, slots: int) -> Turn:
    start, end = began + SETTLE_S, began + TURN_S
    chunks = [r for r in records if isinstance(r, ChunkArrived)]
    last = [c.at for c in chunks if c.finish is not None]
    leased = [r.at for r in records if isinstance(r, LeaseIssued)]
    ended = [r.at for r in records if isinstance(r, TrajectoryEnded)]
    scored = [r.at for r in records if isinstance(r, RewardArrived)]
    return Turn(
        slow=slow_at(began),
        tokens_per_s=sum(c.token_ids.size for c in chunks if start < c.at <= end) / (end - start),
        answers_per_s=sum(start < at <= end for at in ended) / (end - start),
        longest_free_s=longest_free(last, leased, slots, start, end),
        most_unscored=most_open(ended, scored, start, end),
    )


class Learner(ScriptedLearner):
    """Says done to every batch after `UPDATE_S`, with weights that never change."""

    def notice(self, version: int, update: int) -> WeightNotice:
        """A notice of the demonstration's weights."""
        return notice_of(MODEL / "model.safetensors", version=version, update=update)

    async def report(self, batch: Batch) -> None:
        """Say done, later."""
        await asyncio.sleep(UPDATE_S)
        await super().report(batch)


async def _generator(link: Link, kind: Kind, weights: Path) -> None:
    model = read_config(str(MODEL)).get_text_config()
    engine = FakeEngine(
        vocab_size=model.vocab_size,
        end_token_id=model.eos_token_id,
        mean_length=mean_length(kind),
        step_s=STEP_S,
    )
    identity = identity_of("generator-0")
    dealer = Dealer(link, identity)
    hello = Hello(role="generator", name="generator-0", pid=os.getpid(), host="", capacity=SLOTS)
    loop = GeneratorLoop(engine, dealer, hello, chunk_tokens=WINDOW, weights_folder=weights)
    with Pulse(link, identity, interval_s=1.0):
        await loop.run()
    dealer.close()


async def stream(folder: Path, kind: Kind, pairs: int) -> Stream:
    """One run, in a folder of its own."""
    coordinator = CoordinatorProcess(folder, config(kind, pairs))
    link = Link(coordinator.start())
    command = [sys.executable, "-m", "rewards.run", "--connect", link.address, "--name", "reward-0"]
    with (folder / "reward.log").open("wb") as log:
        reward = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        async with asyncio.timeout(PATIENCE_S + 2 * pairs * TURN_S), asyncio.TaskGroup() as group:
            group.create_task(Learner(link, "learner-0").run())
            group.create_task(_generator(link, kind, folder / "weights"))
        if await asyncio.to_thread(coordinator.wait):
            raise RunFailedError((folder / "coordinator.log").read_text()[-2000:])
    finally:
        coordinator.end()
        reward.kill()
        reward.wait()
    store = RunStore.open(folder)
    try:
        return read_turns(list(store.replay()), pairs, slots=SLOTS)
    finally:
        store.close()
