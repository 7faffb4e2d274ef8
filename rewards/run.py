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
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from headrace.config.sections.process import TransportConfig
from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError, UserError, exit_code
from headrace.host import stack_dumps
from headrace.protocol.messages.control import Goodbye, Hello, Refused, Shutdown, Welcome
from headrace.protocol.transport.endpoints import identity_of
from headrace.protocol.transport.sockets import Dealer, Link, Pulse
from rewards.worker.loop import serve
from rewards.worker.pool import Pool

HELLO_EVERY_S = 2.0
log = logging.getLogger("rewards")


async def work(link: Link, name: str) -> None:
    """Join the run at `link`, score until it ends, and take leave, saying why where it failed."""
    hello = Hello(role="reward", name=name, pid=os.getpid(), host=socket.gethostname())
    identity = identity_of(name)
    dealer = Dealer(link, identity)
    cause: str | None = None
    try:
        config = await join(dealer, hello)
        if config is None:
            return
        pool = Pool(config.reward)
        transport = config.transport
        for source, settings in config.reward.each().items():
            log.info("%s: %s in %d children", source, settings.kind, settings.children)
        with Pulse(link, identity, interval_s=transport.heartbeat_s):
            await serve(
                dealer,
                pool,
                hello,
                quiet_s=transport.heartbeat_timeout_s,
                stall_s=transport.stall_timeout_s,
                drain_s=max(s.timeout_s for s in config.reward.each().values()),
            )
    except (UserError, RunFailedError) as error:
        cause = str(error)
        raise
    finally:
        await dealer.send(Goodbye(failed=cause))
        dealer.close()


async def join(dealer: Dealer, hello: Hello) -> RunConfig | None:
    """Say Hello until there is a Welcome; its configuration, or None when the run is over."""
    patience = TransportConfig().stall_timeout_s
    until = time.monotonic() + patience
    while time.monotonic() < until:
        await dealer.send(hello)
        message = await dealer.receive_within(HELLO_EVERY_S)
        if isinstance(message, Welcome):
            return RunConfig.model_validate_json(message.config)
        if isinstance(message, Refused):
            raise RunFailedError(f"the coordinator refuses this worker: {message.reason}")
        if isinstance(message, Shutdown):
            return None
    raise RunFailedError(f"no coordinator answered for {patience:.0f} s")


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
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s"
    )
    stack_dumps.listen()
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
