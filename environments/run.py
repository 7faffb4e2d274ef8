"""An environment worker: `python -m environments.run --connect ADDR --name environment-0
[--curve-keys DIR]`.

In: the command line, and the configuration from the coordinator's Welcome. Out: exit code 0 (done),
2 (the user's mistake), 1 (ours), 130 (interrupted). Logs go to stderr.
"""

import os
import socket
import sys
from collections.abc import Sequence

from environments.worker import serve
from headrace.errors import RunFailedError, UserError
from headrace.protocol.messages.control import Goodbye, Hello
from headrace.protocol.transport.endpoints import identity_of
from headrace.protocol.transport.sockets import Dealer, Link, Pulse
from rewards.run import join, run_worker


async def work(link: Link, name: str) -> None:
    """Join the run at `link`, answer until it ends, and take leave, saying why where it failed."""
    hello = Hello(role="environment", name=name, pid=os.getpid(), host=socket.gethostname())
    identity = identity_of(name)
    dealer = Dealer(link, identity)
    cause: str | None = None
    try:
        config = await join(dealer, hello)
        if config is None:
            return
        if config.environment is None:
            raise UserError("this run has no environment")
        transport = config.transport
        with Pulse(link, identity, interval_s=transport.heartbeat_s):
            await serve(
                dealer,
                config.environment,
                hello,
                quiet_s=transport.heartbeat_timeout_s,
                stall_s=transport.stall_timeout_s,
            )
    except (UserError, RunFailedError) as error:
        cause = str(error)
        raise
    finally:
        await dealer.send(Goodbye(failed=cause))
        dealer.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code."""
    return run_worker("environments.run", "A Headrace environment worker.", work, arguments)


if __name__ == "__main__":
    sys.exit(main())
