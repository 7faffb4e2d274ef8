"""What can be told of a response without a scoring child.

In: a source of rewards, then items. Out: an item's outcome, or None where a child has to look.
Promises: what is told is what the child would tell; telling takes microseconds, which are not
counted, and is never an error. No user's code and no library runs here: a kind says in its module
what it tells at a glance (`rewards.kinds`), by comparing texts.
"""

import contextlib
from collections.abc import Callable

from headrace.config.reward import SourceConfig
from headrace.errors import UserError
from headrace.protocol.messages import ScoreItem
from rewards import kinds
from rewards.kinds.row import right_or_wrong
from rewards.options import read_options
from rewards.pay import priced, unfinished, waits_for_an_end
from rewards.pipe import Outcome

Glance = Callable[[ScoreItem], Outcome | None]
Judge = Callable[[ScoreItem], bool | None]


def glance_of(source: SourceConfig) -> Glance:
    """What is told at a glance of a source's responses."""
    judge = _judge_of(source)
    # Three outcomes are all there are, so each is made once.
    right, wrong = (
        Outcome.of(priced(source, right_or_wrong(correct), graded=False), 0.0)
        for correct in (True, False)
    )
    without_end = Outcome.of(unfinished(source), 0.0)
    outcomes = {True: right, False: wrong, None: None}

    def glance(item: ScoreItem) -> Outcome | None:
        return without_end if waits_for_an_end(source, item) else outcomes[judge(item)]

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
