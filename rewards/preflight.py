"""A look at the user's function before a run starts.

In: the reward section, and a way to ask which columns the task has. Out: nothing, or a UserError of
one line. The function is loaded in a scoring child, as a worker will load it, so that the user's
code never runs in the caller's process.
"""

import asyncio
from collections.abc import Callable, Collection

from headrace.config.reward import RewardConfig
from headrace.errors import RunFailedError, UserError
from rewards.pool import Child
from rewards.signatures import check_columns


def check_function(config: RewardConfig, columns: Callable[[], Collection[str]]) -> None:
    """UserError where `config.function` cannot be loaded or cannot be called as a reward function.
    `columns` is asked only where the function needs some."""
    if config.function is None:
        return
    try:
        needs = asyncio.run(_needs(config))
    except RunFailedError as error:
        line = " ".join(str(error).split())
        raise UserError(f"reward.function={config.function!r}: {line}") from error
    if needs:
        check_columns(config.function, needs, columns())


async def _needs(config: RewardConfig) -> tuple[str, ...]:
    child = await Child.start(config)
    await child.kill()
    return child.needs
