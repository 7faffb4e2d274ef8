"""What the lines of an answer earn: process rewards for code (arXiv 2410.17621).

In: the scores of an answer's lines, whether it passed, what was paid so far. Out: rewards by
position. A line earns lambda * score / M: lambda is `failing` for an answer that fails and
`passing` for one that passes, M the number of its lines that are not neutral; the outcome is earned
at the last token. While an answer is being written neither is known, so its lines are paid on
account, and the last token settles. Promise: whatever was paid on account, all rewards of an answer
together are those of the formula.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import fsum

from headrace.protocol.records.record_types import LineScore
from headrace.protocol.token_spans import Reward


@dataclass(frozen=True)
class LineRewardRates:
    """The two lambdas."""

    failing: float
    passing: float

    def of(self, *, passed: bool) -> float:
        """The lambda of an answer."""
        return self.passing if passed else self.failing


def num_scored(lines: Sequence[LineScore]) -> int:
    """M: the lines that are not neutral."""
    return sum(line.score is not None for line in lines)


def line_rewards(lines: Sequence[LineScore], rate: float, num_lines: float) -> list[Reward]:
    """What lines earn at `rate` in an answer with `num_lines` that are not neutral; a neutral line
    has no reward."""
    return [
        Reward(rate * line.score / num_lines, line.position)
        for line in lines
        if line.score is not None
    ]


def on_account(
    lines: Sequence[LineScore], rates: LineRewardRates, *, so_far: int, expected: float
) -> list[Reward]:
    """What lines of an answer that goes on are paid before its end is known: as if it failed, with
    the lines that are `expected` of an answer, or the `so_far` that it has, where those are more.
    """
    return line_rewards(lines, rates.failing, max(so_far, expected, 1.0))


def settled(
    lines: Sequence[LineScore],
    paid: Sequence[Reward],
    rates: LineRewardRates,
    *,
    passed: bool,
    payable: Collection[int],
    last: int,
) -> list[Reward]:
    """What an ended answer earns besides its outcome and what was `paid` on account. A line that
    was paid nothing earns its own reward where its position is `payable` (no update has trained it
    yet); all the rest, a refund perhaps, is earned at position `last`."""
    earned = line_rewards(lines, rates.of(passed=passed), max(num_scored(lines), 1))
    known = {reward.position for reward in paid}
    own = [r for r in earned if r.position in payable and r.position not in known]
    rest = fsum([r.value for r in earned] + [-r.value for r in (*paid, *own)])
    return [*own, Reward(rest, last)] if rest else own
