"""Functions that score lines of a response, which may go on.

In: an item with the texts of its lines. Out: a score for each line; None: it is neutral. A function
is called like one that scores whole responses, with the response so far, and with `lines` besides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum

from headrace.config.reward import SourceConfig
from headrace.errors import UserError
from headrace.protocol.messages import ScoreItem
from rewards.conventions import bind
from rewards.functions import RewardFunction, load_functions
from rewards.listed import entries
from rewards.results import read_result

LINES = "lines"


@dataclass(frozen=True)
class LineFunctions:
    """The functions of a source whose unit is line: a weighted sum for each line."""

    functions: tuple[RewardFunction, ...]

    def __call__(self, item: ScoreItem) -> tuple[float | None, ...]:
        """The score of each line; None where no function has one."""
        columns = [_scores(function, item) for function in self.functions]
        return tuple(map(_sum, zip(*columns, strict=True)))

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns of the dataset that they cannot do without."""
        return tuple(dict.fromkeys(n for f in self.functions for n in f.binding.needs))


def load_line_functions(source: SourceConfig) -> LineFunctions:
    """The functions that a source names; UserError where one does not take lines."""
    return LineFunctions(tuple(map(_of_lines, load_functions(source).functions)))


def _of_lines(function: RewardFunction) -> RewardFunction:
    signature, where = function.binding.signature, f"reward.function {function.label!r}"
    if LINES not in signature.names and not signature.any_name:
        raise UserError(
            f'{where} takes {signature}: with unit = "line" it is handed `lines`, the texts of the '
            "lines to score; expected (prompt, completion, answer, lines, **info)"
        )
    objects = {**function.binding.objects, LINES: None}
    binding = bind(signature, where, adapter=function.binding.adapter, objects=objects)
    return replace(function, binding=binding)


def _scores(function: RewardFunction, item: ScoreItem) -> list[float | None]:
    """Each line's score, times the function's weight."""
    by_position = function.binding.signature.by_position
    positional, named = function.binding.arguments(item)
    if LINES in by_position:
        positional[by_position.index(LINES)] = list(item.lines)
    else:
        named[LINES] = list(item.lines)
    given = entries(function.call(positional, named), len(item.lines), LINES)
    results = map(read_result, given)
    return [None if result is None else function.weight * result.score for result in results]


def _sum(scores: Sequence[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return fsum(known) if known else None
