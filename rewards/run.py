"""A reward worker: `python -m rewards.run --connect ADDR --name reward-0 [--curve-keys DIR]`.

In: the command line, the configuration from the coordinator's Welcome, and ScoreRequests. Out:
Scores; the first at once, others with those of the next GATHER_S. Then an exit code: 0 (done), 2
(the user's mistake), 1 (ours), 130 (Ctrl-C), 143 (SIGTERM). Logs go to stderr. Blocks on: the
socket, the pool's children. Wakes by: a message, a score. Shutdown: what is held is finished,
audits apart, within the longest timeout_s. Failure: RunFailedError or UserError, also of the pool.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError, UserError, exit_code, first_error
from headrace.host import stack_dumps
from headrace.protocol.messages.control import Hello, Message, Role, Score, ScoreRequest, Scores
from headrace.protocol.transport.sockets import Dealer, Link
from rewards.worker.membership import Serve, take_part
from rewards.worker.pool import ScoringPool

log = logging.getLogger("rewards")
GATHER_S = 0.05
"""Seconds in which scores are gathered: a message costs more than its plain answers."""
MOST_SCORES = 256


async def _score(dealer: Dealer, config: RunConfig, messages: AsyncIterator[Message]) -> None:
    pool, sources = ScoringPool(config.reward), config.reward.each()
    for source, settings in sources.items():
        log.info("%s: %s in %d children", source, settings.kind, settings.children)
    await _serve(dealer, pool, messages, drain_s=max(s.timeout_s for s in sources.values()))


async def _serve(
    dealer: Dealer, pool: ScoringPool, messages: AsyncIterator[Message], *, drain_s: float
) -> None:
    """Score until there are no more messages."""
    try:
        with first_error(UserError, RunFailedError):
            async with asyncio.TaskGroup() as group:
                children = group.create_task(pool.run(), name="children")
                sender = group.create_task(_send(dealer, pool), name="scores out")
                async for message in messages:
                    if isinstance(message, ScoreRequest):
                        await pool.submit(message.items)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(drain_s):
                        await pool.finish()
                children.cancel()
                sender.cancel()
    finally:
        # What led to a failure is news too.
        while not pool.scores.empty():
            await _send_some(dealer, pool, [])


async def _send(dealer: Dealer, pool: ScoringPool) -> None:
    while True:
        await _send_some(dealer, pool, [await pool.scores.get()])
        await asyncio.sleep(GATHER_S)


async def _send_some(dealer: Dealer, pool: ScoringPool, scores: list[Score]) -> None:
    while not pool.scores.empty() and len(scores) < MOST_SCORES:
        scores.append(pool.scores.get_nowait())
    await dealer.send(Scores(scores=scores))
    for _ in scores:
        pool.scores.task_done()


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code."""
    return run_worker("reward", _score, arguments)


def run_worker(role: Role, serve: Serve, arguments: Sequence[str] | None) -> int:
    """Take part in a run in this role, by the command line of a worker; the exit code."""
    about = f"A Headrace {role} worker."
    parser = argparse.ArgumentParser(prog=f"{role}s.run", description=about)
    parser.add_argument("--connect", required=True, metavar="ADDR", help="tcp://HOST:PORT")
    parser.add_argument("--name", required=True, help="unique in the run, such as reward-0")
    parser.add_argument("--curve-keys", metavar="DIR", help="folder made by `headrace keys`")
    options = parser.parse_args(arguments)
    stack_dumps.log_and_listen()
    link = Link(options.connect, curve_keys=options.curve_keys)
    hello = Hello(role=role, name=options.name, pid=os.getpid(), host=socket.gethostname())
    return exit_code(lambda: asyncio.run(_until_signal(take_part(link, hello, serve))))


async def _until_signal(work: Coroutine[Any, Any, None]) -> int:
    working = asyncio.create_task(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
    try:
        await working
    except asyncio.CancelledError:
        # SIGTERM ends it in order; a cancellation from outside (Ctrl-C) goes on.
        if not working.cancelled() or asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise
    return 128 + signal.SIGTERM if working.cancelled() else 0


if __name__ == "__main__":
    sys.exit(main())
