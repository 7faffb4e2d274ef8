"""Environment worker: `python -m environments.run --connect ADDR --name NAME`.

In: the command line (also `--curve-keys DIR`), and the configuration from the coordinator's
Welcome. Out: exit code 0 (done), 2 (the user's mistake), 1 (ours), 130 (Ctrl-C), 143 (SIGTERM).
Logs go to stderr.
"""

import sys
from collections.abc import AsyncIterator, Sequence

from environments.endpoint import pool_of
from environments.worker import serve
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.protocol.messages.control import Message
from headrace.protocol.transport.sockets import Dealer
from rewards.run import run_worker


async def _answer(dealer: Dealer, config: RunConfig, messages: AsyncIterator[Message]) -> None:
    if config.environment is None:
        raise UserError("this run has no environment")
    await serve(dealer, pool_of(config.environment), messages)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the worker, and return the exit code."""
    return run_worker("environment", _answer, arguments)


if __name__ == "__main__":
    sys.exit(main())
