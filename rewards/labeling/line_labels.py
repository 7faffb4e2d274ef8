"""Labels of an answer's lines: the one that made it wrong, found by completing prefixes.

In: an answer's lines and tokens, a policy that completes prefixes, a judge of whole answers. Out: a
label for each line. A prefix is recoverable where at least one of K completions passes; the last
recoverable one of a wrong answer is found by bisection, since what is lost stays so. Lines up to
there are labelled 1, later ones -1, neutral ones None (PSGPO, arXiv 2410.17621). Promises: the
empty prefix counts as recoverable and the whole of a wrong answer as lost, without a try; at most
ceil(log2(lines)) prefixes are tried; a prefix of several answers is tried once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from rewards.answers.line_ends import AnswerLine

R = TypeVar("R", contravariant=True)

Label = int | None
"""1, -1, or None for a neutral line."""


class Completion(NamedTuple):
    """A policy's continuation of a prefix: tokens without it, and whether it ended."""

    ids: Sequence[int]
    finished: bool


class PrefixCompleter(Protocol):
    """A policy that completes prefixes."""

    async def __call__(
        self, prompt_ids: Sequence[int], prefix_ids: Sequence[int], n: int, *, first: int
    ) -> Sequence[Completion]:
        """Return `n` completions from number `first` on, which are the same at every call."""
        ...


class AnswerJudge(Protocol[R]):
    """A judge of whole answers."""

    async def __call__(self, row: R, ids: Sequence[int], finished: bool) -> bool:
        """Return whether a response to a row passes; raises where it cannot be judged."""
        ...


@dataclass(frozen=True, slots=True)
class LineLabels:
    """Labels of an answer's lines, and the tries of prefixes that they took.

    `counted` lines are not neutral, the first `boundary` of these are good."""

    labels: tuple[Label, ...]
    counted: int
    boundary: int
    calls: int = 0
    completions: int = 0

    @property
    def revised(self) -> bool:
        """True if there are lines of both labels: a wrong answer that was good for a while."""
        return 0 < self.boundary < self.counted


class _PrefixTrial(NamedTuple):
    recoverable: bool
    completions: int


async def search(lines: int, recoverable: Callable[[int], Awaitable[bool]]) -> int:
    """Return the lines of a wrong answer's longest recoverable prefix, by bisection.

    `recoverable` is asked about prefixes of 1 to `lines` - 1 lines."""
    good, bad = 0, lines
    while bad - good > 1:
        middle = (good + bad) // 2
        if await recoverable(middle):
            good = middle
        else:
            bad = middle
    return good


def labels_of(neutral: Sequence[bool], boundary: int) -> tuple[Label, ...]:
    """Return 1 for the first `boundary` lines that count, -1 for others, None for neutral."""
    labels: list[Label] = []
    counted = 0
    for passive in neutral:
        counted += not passive
        labels.append(None if passive else 1 if counted <= boundary else -1)
    return tuple(labels)


class PrefixLabeler(Generic[R]):
    """Labels answers, any number of them at a time; what it learns of a prefix is kept."""

    def __init__(
        self,
        complete: PrefixCompleter,
        passes: AnswerJudge[R],
        *,
        k: int,
        at_once: int = 1,
    ) -> None:
        """Create a labeler of the policy `complete` and the judge `passes`.

        A prefix is given up after `k` completions, `at_once` of them together: 1 wastes none, more
        is quicker for few answers at a time.
        """
        if not 1 <= at_once <= k:
            raise ValueError(f"1 to k = {k} completions can be asked for at once, not {at_once}")
        self._complete, self._passes = complete, passes
        self._k, self._at_once = k, at_once
        self._tries: dict[Hashable, asyncio.Task[_PrefixTrial]] = {}
        self.completions = 0
        """Completions asked for so far."""

    async def label(
        self,
        row: R,
        prompt_ids: Sequence[int],
        response_ids: Sequence[int],
        lines: Sequence[AnswerLine],
        *,
        passed: bool,
        key: Hashable = None,
    ) -> LineLabels:
        """Return the labels of one answer.

        Args:
            row: what the judge needs to know of the prompt. prompt_ids: the prompt. response_ids:
            the answer. lines: its lines, as `rewards.answers.line_ends` finds them. passed: whether
            the answer passes. key: distinguishes rows with one prompt that are judged differently.
        """
        neutral = [line.neutral for line in lines]
        counted = [line for line in lines if not line.neutral]
        if passed:
            return LineLabels(labels_of(neutral, len(counted)), len(counted), len(counted))
        calls = completions = 0

        async def recoverable(count: int) -> bool:
            nonlocal calls, completions
            prefix = tuple(response_ids[: counted[count - 1].end + 1])
            place = (key, tuple(prompt_ids), prefix)
            if place in self._tries:
                return (await self._tries[place]).recoverable
            self._tries[place] = asyncio.ensure_future(self._try(row, prompt_ids, prefix))
            tried = await self._tries[place]
            calls, completions = calls + 1, completions + tried.completions
            return tried.recoverable

        boundary = await search(len(counted), recoverable)
        return LineLabels(labels_of(neutral, boundary), len(counted), boundary, calls, completions)

    async def _try(
        self, row: R, prompt_ids: Sequence[int], prefix_ids: Sequence[int]
    ) -> _PrefixTrial:
        """Return whether one of up to K completions of a prefix passes."""
        asked = 0
        while asked < self._k:
            n = min(self._at_once, self._k - asked)
            found = await self._complete(prompt_ids, prefix_ids, n, first=asked)
            asked += n
            self.completions += n
            judged = await asyncio.gather(
                *(self._passes(row, (*prefix_ids, *each.ids), each.finished) for each in found)
            )
            if any(judged):
                return _PrefixTrial(True, asked)
        return _PrefixTrial(False, asked)
