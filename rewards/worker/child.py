"""A scoring child: `python -m rewards.worker.child WORKER_PID`, started by `pool.py` only.

In: frames of `pipe.py` on stdin. Out: frames on the original stdout. It scores one by one, or,
where its verifier waits for others, as many at a time as the worker sends. What the user's code
prints goes to stderr and what it reads is empty, so that it cannot disturb the frames. The child
dies with its worker, ignores Ctrl-C (the worker ends it), and may not take more than MEMORY_BYTES.
Broad exceptions are caught here: whatever a verifier raises becomes an outcome, and the child goes
on.
"""

import asyncio
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import BinaryIO, Literal

import msgspec

from headrace.config.sections.reward import SourceConfig
from headrace.errors import UserError
from headrace.host import stack_dumps
from headrace.host.process_reaper import die_with
from headrace.host.user_code import describe
from headrace.protocol.messages.control import ScoreItem
from headrace.protocol.transport.stdio import take_streams
from rewards.build import build_verifier
from rewards.functions import coroutines
from rewards.functions.arguments import InvalidRewardError, ScoringError
from rewards.verifier import AsyncJudge, Verifier
from rewards.worker.pipe import (
    MAX_ERROR,
    Answer,
    Batch,
    Began,
    Outcome,
    Ready,
    Setup,
    Starting,
    Unfit,
    pack,
    read_question,
)

MEMORY_BYTES = 4 << 30


def limit_memory(num_bytes: int) -> None:
    """Bound the private memory (not the address space: libraries map a lot that they never use)."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def score(verifier: Verifier, item: ScoreItem) -> Outcome:
    """The outcome of one item, whatever the verifier does short of ending the process."""
    began = time.perf_counter()
    try:
        return Outcome.of(verifier(item), time.perf_counter() - began)
    except (Exception, SystemExit) as error:
        return _failure(error, began)


async def score_in_time(judge: AsyncJudge, item: ScoreItem, timeout_s: float) -> Outcome:
    """The outcome of one item among others, given up at its deadline."""
    began = time.perf_counter()
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return Outcome.of(await judge(item), time.perf_counter() - began)
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        if not limit.expired():
            return _failure(error, began)
        inner = error.__cause__ or error.__context__
        text = "; ".join([f"no result within {timeout_s:g} s", *getattr(inner, "__notes__", [])])
        seconds, parts = time.perf_counter() - began, getattr(inner, "parts", {})
        return Outcome("timeout", seconds, parts=parts, error=text[:MAX_ERROR])


def _failure(error: BaseException, began: float) -> Outcome:
    status: Literal["invalid", "crashed"]
    status = "invalid" if isinstance(error, InvalidRewardError) else "crashed"
    parts = dict(error.parts) if isinstance(error, ScoringError) else {}
    return Outcome(status, time.perf_counter() - began, parts=parts, error=describe(error))


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Build the verifier, then score batches until the worker closes the pipe."""
    setup = read_question(source)
    assert isinstance(setup, Setup)

    def answer(message: Answer) -> None:
        sink.write(pack(message))
        sink.flush()

    try:
        config = SourceConfig.model_validate_json(setup.config)
        verifier = build_verifier(config)
        for _ in verifier.prepare(setup.check):
            answer(Starting())
    except (Exception, SystemExit) as error:
        answer(Unfit(describe(error), isinstance(error, UserError)))
        return
    answer(Ready(list(verifier.needs), verifier.asks_ids, verifier.concurrency))
    if verifier.judge_later is not None:
        coroutines.run(_serve_many(verifier.judge_later, config.timeout_s, source, answer))
        return
    while isinstance(batch := read_question(source), Batch):
        answer(Began(batch.first + len(batch.items)))
        for number, item in enumerate(batch.items, batch.first):
            answer(msgspec.structs.replace(score(verifier, item), number=number))


async def _serve_many(
    judge: AsyncJudge, timeout_s: float, source: BinaryIO, answer: Callable[[Answer], None]
) -> None:
    """Score what comes at once; the worker sees to it that it is not too much."""

    async def one(number: int, item: ScoreItem) -> None:
        outcome = await score_in_time(judge, item, timeout_s)
        answer(msgspec.structs.replace(outcome, number=number))

    async with asyncio.TaskGroup() as group:
        running: set[asyncio.Task[None]] = set()
        while isinstance(batch := await asyncio.to_thread(read_question, source), Batch):
            answer(Began(batch.first + len(batch.items)))
            for number, item in enumerate(batch.items, batch.first):
                running.add(task := group.create_task(one(number, item)))
                task.add_done_callback(running.discard)
        for task in running:
            task.cancel()


def main() -> None:
    """Entry point of the process."""
    die_with(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_memory(MEMORY_BYTES)
    stack_dumps.listen()
    source, sink = take_streams()
    serve(source, sink)


if __name__ == "__main__":
    main()
