"""What can be told of a response without a scoring child.

In: a source of rewards, then items. Out: an item's outcome, or None where a child has to look.
Promises: what is told is what the child would tell; telling takes microseconds and is never an
error. No user's code and no library runs here: a kind says in its module what it tells at a glance
(`rewards.kinds`), by comparing texts.
"""

import contextlib
import time
from collections.abc import Callable

from headrace.config.reward import SourceConfig
from headrace.errors import UserError
from headrace.protocol.messages import ScoreItem
from rewards import kinds
from rewards.options import read_options
from rewards.pay import foregone, paid
from rewards.pipe import Outcome
from rewards.verdict import Verdict

Glance = Callable[[ScoreItem], Outcome | None]
Judge = Callable[[ScoreItem], Verdict | None]


def glance_of(source: SourceConfig) -> Glance:
    """What is told at a glance of a source's responses."""
    judge = _judge_of(source)

    def glance(item: ScoreItem) -> Outcome | None:
        began = time.perf_counter()
        verdict = foregone(source, item)
        if verdict is None and (found := judge(item)) is not None:
            verdict = paid(source, item, found, graded=False)
        return None if verdict is None else Outcome.of(verdict, time.perf_counter() - began)

    return glance


def _judge_of(source: SourceConfig) -> Judge:
    """The kind's glance; one that tells nothing where it has none."""
    if source.kind in kinds.AT_A_GLANCE and source.unit == "trajectory":
        module = kinds.load(source.kind)
        # What the options lack is told by a child, as of every other kind.
        with contextlib.suppress(UserError):
            judge: Judge = module.glance(read_options(source, module))
            return judge
    return lambda item: None
