"""A reward worker: `python -m rewards.run --connect ADDR --name reward-0 [--curve-keys DIR]`.

In: the command line, and the configuration from the coordinator's Welcome. Out: exit code 0 (done),
2 (the user's mistake), 1 (ours), 130 (interrupted). Logs go to stderr.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from headrace.config.sections.run import RunConfig
from headrace.errors import exit_code
from headrace.host import stack_dumps
from headrace.protocol.messages.control import Hello, Message
from headrace.protocol.transport.sockets import Dealer, Link
from rewards.worker.loop import serve
from rewards.worker.membership import take_part
from rewards.worker.pool import ScoringPool

log = logging.getLogger("rewards")


async def work(link: Link, name: str) -> None:
    """Join the run at `link`, score until it ends, and take leave, saying why where it failed."""
    hello = Hello(role="reward", name=name, pid=os.getpid(), host=socket.gethostname())
    await take_part(link, hello, _score)


async def _score(dealer: Dealer, config: RunConfig, messages: AsyncIterator[Message]) -> None:
    pool, sources = ScoringPool(config.reward), config.reward.each()
    for source, settings in sources.items():
        log.info("%s: %s in %d children", source, settings.kind, settings.children)
    await serve(dealer, pool, messages, drain_s=max(s.timeout_s for s in sources.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code."""
    return run_worker("rewards.run", "A Headrace reward worker.", work, arguments)


def run_worker(
    prog: str,
    description: str,
    work: Callable[[Link, str], Coroutine[Any, Any, None]],
    arguments: Sequence[str] | None,
) -> int:
    """Run `work`, given a link and a name, by the command line of a worker; the exit code."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--connect", required=True, metavar="ADDR", help="tcp://HOST:PORT")
    parser.add_argument("--name", required=True, help="unique in the run, such as reward-0")
    parser.add_argument("--curve-keys", metavar="DIR", help="folder made by `headrace keys`")
    options = parser.parse_args(arguments)
    stack_dumps.log_and_listen()
    link = Link(options.connect, curve_keys=options.curve_keys)
    return exit_code(lambda: asyncio.run(_until_signal(work(link, options.name))))


async def _until_signal(work: Coroutine[Any, Any, None]) -> None:
    working = asyncio.create_task(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
    try:
        await working
    except asyncio.CancelledError:
        # SIGTERM is an orderly end; a cancellation from outside (Ctrl-C) goes on.
        if not working.cancelled() or asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise


if __name__ == "__main__":
    sys.exit(main())
