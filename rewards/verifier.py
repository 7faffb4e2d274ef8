"""Verifiers: items in, verdicts out, one by one or, while waiting, many at a time."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from headrace.protocol.messages.control import ScoreItem
from rewards.functions.results import Verdict

Judge = Callable[[ScoreItem], Verdict]
AsyncJudge = Callable[[ScoreItem], Awaitable[Verdict]]
Prepare = Callable[[bool], Iterable[None]]


@dataclass(frozen=True)
class Verifier:
    """Judges responses, groups of them or lines."""

    judge: Judge
    needs: tuple[str, ...] = ()
    """Columns of the dataset that it cannot do without."""
    asks_ids: bool = False
    """True: it takes token ids."""
    judge_later: AsyncJudge | None = None
    """The judge as a coroutine, of a verifier that scores many items at a time."""
    concurrency: int = 0
    """Number of items at a time; 0: one by one."""
    graded: bool = False
    """Its verdicts are scores alone: the source's `correct_threshold` says what is right."""
    prepare: Prepare = field(default=lambda check: ())
    """Prepare what it depends on, yielding meanwhile. True: raise UserError instead of waiting."""

    def __call__(self, item: ScoreItem) -> Verdict:
        """The verdict on one item."""
        return self.judge(item)
