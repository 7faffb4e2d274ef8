"""Process rewards of an answer's lines, for code (arXiv 2410.17621).

In: the scores of an answer's lines, whether it passed, the rewards paid so far. Out: rewards by
position. A line earns lambda * score / M: lambda is `failing` for an answer that fails and
`passing` for one that passes, M the number of its lines that are not neutral; the outcome is earned
at the last token. While an answer is being written neither is known, so its lines are paid on
account, and the last token settles. Promise: with any payments on account, all rewards of an answer
together are those of the formula.
"""

from collections.abc import Collection, Sequence
from math import fsum

from headrace.config.sections.reward import ProcessConfig
from headrace.protocol.records.record_types import LineScore
from headrace.protocol.token_spans import Reward


def num_scored(lines: Sequence[LineScore]) -> int:
    """Return M, the number of lines that are not neutral."""
    return sum(line.score is not None for line in lines)


def line_rewards(lines: Sequence[LineScore], rate: float, num_lines: float) -> list[Reward]:
    """Return lines' rewards at `rate`, with M = `num_lines`; a neutral line has none."""
    return [
        Reward(rate * line.score / num_lines, line.position)
        for line in lines
        if line.score is not None
    ]


def on_account(
    lines: Sequence[LineScore], rates: ProcessConfig, *, so_far: int, expected: float
) -> list[Reward]:
    """Return the early rewards of lines in an unfinished answer.

    They are those of an answer that fails, with the `expected` number of lines, or the number that
    it has `so_far`, if greater."""
    return line_rewards(lines, rates.failing, max(so_far, expected, 1.0))


def settled(
    lines: Sequence[LineScore],
    paid: Sequence[Reward],
    rates: ProcessConfig,
    *,
    passed: bool,
    payable: Collection[int],
    last: int,
) -> list[Reward]:
    """Return an ended answer's rewards besides its outcome and those `paid` so far.

    An unpaid line earns its own reward where its position is `payable` (no update has trained it
    yet); all the rest, a refund perhaps, is earned at position `last`."""
    rate = rates.passing if passed else rates.failing
    earned = line_rewards(lines, rate, max(num_scored(lines), 1))
    known = {reward.position for reward in paid}
    own = [r for r in earned if r.position in payable and r.position not in known]
    rest = fsum([r.value for r in earned] + [-r.value for r in (*paid, *own)])
    return [*own, Reward(rest, last)] if rest else own
