"""A look at the user's functions before a run starts.

In: the reward section, and a way to ask which columns the task has. Out: the section that the run
needs, or a UserError of one line. The functions are loaded in a scoring child, as a worker will
load them, so that the user's code never runs in the caller's process.
"""

import asyncio
from collections.abc import Callable, Collection

from headrace.config.reward import RewardConfig
from headrace.errors import RunFailedError, UserError
from rewards.pipe import Ready
from rewards.pool import Child
from rewards.signatures import check_columns


def check_function(
    config: RewardConfig, columns: Callable[[], Collection[str]], *, every: bool = False
) -> RewardConfig:
    """The section with what its functions ask for; UserError where one of them cannot be loaded or
    called as a reward function. `columns` is asked only where they need some. `every`: other kinds
    are loaded too."""
    if config.kind != "function" and not every:
        return config
    where = (
        f"reward.function={config.named()}" if config.names() else f"reward.kind={config.kind!r}"
    )
    try:
        ready = asyncio.run(_ready(config))
    except RunFailedError as error:
        raise UserError(f"{where}: {' '.join(str(error).split())}") from error
    if ready.needs:
        check_columns(where, ready.needs, columns())
    return config.model_copy(update={"token_ids": config.token_ids or ready.asks_ids})


async def _ready(config: RewardConfig) -> Ready:
    child = await Child.start(config)
    await child.kill()
    return child.ready
