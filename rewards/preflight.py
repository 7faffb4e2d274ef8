"""Checks of the reward sources before a run starts.

In: the reward section, and a way to read the task's columns. Out: the section that the run needs,
or a UserError of one line. A source is loaded in a scoring child, as a worker will load it, so that
user code never runs in the caller's process; one with a judge asks it there.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping

from headrace.config.sections.model import JudgeConfig
from headrace.config.sections.reward import RewardConfig, SourceConfig
from headrace.errors import RunFailedError, UserError
from rewards.functions.signatures import check_columns
from rewards.worker.child_process import ScoringChild
from rewards.worker.pipe import Ready


def check_sources(
    config: RewardConfig, columns: Callable[[], Collection[str]], *, every: bool = False
) -> RewardConfig:
    """Return the section that the run needs; UserError for a source that cannot be used.

    `columns` is called only where functions need some. `every`: math and exact, which take no
    options and load slowly, are loaded too."""
    asks_ids = False
    for name, source in config.each().items():
        plain = source.kind in ("math", "exact") and source.unit == "trajectory"
        if plain and not source.options and not every:
            continue
        where = _place(name if config.sources else None, source)
        try:
            ready = asyncio.run(_ready(source))
        except RunFailedError as error:
            raise UserError(f"{where}: {' '.join(str(error).split())}") from error
        if source.kind == "judge":
            _check_own_judge(source, config.judges)
        if ready.needs:
            check_columns(where, ready.needs, columns())
        asks_ids = asks_ids or ready.asks_ids
    return config.model_copy(update={"token_ids": config.token_ids or asks_ids})


def _check_own_judge(source: SourceConfig, judges: Mapping[str, JudgeConfig]) -> None:
    from rewards.judging.options import Options
    from rewards.judging.selftest import check_tokenizer

    options = Options.model_validate(source.options)
    if options.judge is not None and options.judge in judges:
        check_tokenizer(options, judges[options.judge])


def _place(name: str | None, source: SourceConfig) -> str:
    """The key of a source in a recipe, and what stands there."""
    section = "reward" if name is None else f"reward.sources.{name}"
    if source.names():
        return f"{section}.function={', '.join(map(repr, source.names()))}"
    return f"{section}.kind={source.kind!r}"


async def _ready(source: SourceConfig) -> Ready:
    child = await ScoringChild.start(source, check=True)
    await child.kill()
    return child.ready
