"""The kind `judge`: another language model says how good a response is.

The judge is a server that speaks the protocol of OpenAI, or a judge of the run. A child asks it for
many responses at a time. The score is the probability of its yes, or the number that it names. No
answer, or one that cannot be read, is that scoring's error and never a score.
"""

import asyncio
import time
from collections.abc import Callable, Iterable

from headrace.config.sections.reward import JUDGES_CONCURRENCY
from headrace.errors import RunFailedError
from headrace.protocol.messages.control import ScoreItem
from rewards.functions import coroutines
from rewards.functions.arguments import ScoringError
from rewards.functions.results import Verdict
from rewards.judging.address import address_lookup
from rewards.judging.modes import columns_of, prompt_images, score
from rewards.judging.options import Options, check_options
from rewards.judging.selftest import check_server
from rewards.judging.server import JudgeServer, JudgeUsage
from rewards.verifier import Verifier

LOOK_EVERY_S = 1.0


def build(options: Options) -> Verifier:
    """The verifier; UserError where the options do not go together, or the key is not there."""
    check_options(options)
    where = address_lookup(options)
    server = JudgeServer(options, where)

    async def judge(item: ScoreItem) -> Verdict:
        usage = JudgeUsage()
        images = prompt_images(item) if options.images else ()
        try:
            value, parts = await score(item, options, lambda text: server.ask(text, usage, images))
        except ScoringError as error:
            error.parts = usage.parts(options)
            raise
        except asyncio.CancelledError as error:
            if usage.problem:
                error.add_note(usage.problem)
            raise
        return Verdict(value, False, {"judge": value, **parts, **usage.parts(options)})

    def prepare(check: bool) -> Iterable[None]:
        if options.url is not None:
            address = where()
            assert address is not None
            if check:
                coroutines.run(check_server(server, address, options))
        elif not check:
            yield from _wait_for(options, lambda: where() is not None)

    return Verifier(
        lambda item: coroutines.run(judge(item)),
        columns_of(options),
        judge_later=judge,
        concurrency=JUDGES_CONCURRENCY,
        graded=True,
        prepare=prepare,
    )


def _wait_for(options: Options, there: Callable[[], bool]) -> Iterable[None]:
    """Yield until the judge of the run serves."""
    until = time.monotonic() + options.wait_s
    while not there():
        if time.monotonic() > until:
            raise RunFailedError(
                f"the run's judge {options.judge!r} does not serve after {options.wait_s:g} s"
            )
        yield
        time.sleep(LOOK_EVERY_S)
