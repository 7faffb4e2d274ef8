"""Functions that score lines of a response, which may go on.

In: an item with the texts of its lines. Out: a score for each line; None: it is neutral. A function
is called like one that scores whole responses, with the response so far, and with `lines` besides.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import fsum
from typing import Any

from headrace.config.sections.reward import SourceConfig
from headrace.errors import UserError
from headrace.protocol.messages.control import ScoreItem
from rewards.functions.calling_conventions import bind
from rewards.functions.results import Verdict
from rewards.functions.user_functions import (
    FunctionCall,
    RewardFunction,
    RewardFunctions,
    load_functions,
)

LINES = "lines"


class LineFunctions(RewardFunctions):
    """The functions of a source whose unit is line: a weighted sum for each line."""

    def calls(self, item: ScoreItem) -> list[FunctionCall]:
        """A call of each function with all lines."""
        return [_call(function, item) for function in self.functions]

    def verdict(self, item: ScoreItem, returned: Sequence[Any]) -> Verdict:
        """A score for each line; None where no function has one."""
        columns = [
            [r and f.weight * r.score for r in f.read_each(result, len(item.lines), LINES)]
            for f, result in zip(self.functions, returned, strict=True)
        ]
        return Verdict(lines=tuple(map(_sum, zip(*columns, strict=True))))

    @property
    def asks_ids(self) -> bool:
        """No: with lines, token ids come by themselves."""
        return False


def load_line_functions(source: SourceConfig) -> LineFunctions:
    """The functions that a source names; UserError where one does not take lines."""
    loaded = load_functions(source)
    return LineFunctions(tuple(map(_of_lines, loaded.functions)), loaded.threshold)


def _of_lines(function: RewardFunction) -> RewardFunction:
    binding, where = function.binding, f"reward.function {function.label!r}"
    signature = binding.signature
    if LINES not in signature.names and not signature.any_name:
        raise UserError(
            f'{where} takes {signature}: with unit = "line" it is handed `lines`, the texts of the '
            "lines to score; expected (prompt, completion, answer, lines, **info)"
        )
    objects = {**binding.objects, LINES: None}
    bound = bind(signature, where, adapter=binding.adapter, objects=objects)
    return replace(function, binding=replace(bound, doubtful=binding.doubtful))


def _call(function: RewardFunction, item: ScoreItem) -> FunctionCall:
    by_position = function.binding.signature.by_position
    positional, named = function.binding.arguments(item)
    if LINES in by_position:
        positional[by_position.index(LINES)] = list(item.lines)
    else:
        named[LINES] = list(item.lines)
    return FunctionCall(function.function, positional, named)


def _sum(scores: Sequence[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return fsum(known) if known else None
