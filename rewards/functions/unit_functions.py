"""Functions by what they score at once: a response, all responses to a prompt, or lines.

In: an item with siblings, or with the texts of its lines. Out: a verdict for each sibling, or a
score for each line; None: it is neutral. For siblings a function is called once: what its
convention hands over in lists has an entry for each of them, and what stands under a singular name
is that of the prompt, which all share. A function that takes one response is a UserError. For lines
it is called like one that scores whole responses, with the response so far, which may go on, and
with `lines` besides.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import fsum
from typing import Any

from headrace.config.sections.reward import SourceConfig
from headrace.errors import UserError
from headrace.protocol.messages.control import ScoreItem
from rewards.functions.arguments import RESPONSES, ResponseFacts
from rewards.functions.calling_conventions import Binding, bind
from rewards.functions.results import Verdict
from rewards.functions.user_functions import (
    FunctionCall,
    RewardFunction,
    RewardFunctions,
    load_functions,
)

LINES = "lines"
_OWN = frozenset({"completion_ids", "state"})
"""Facts of one response that have no plural name: a group has a list of them under the same one."""


class GroupFunctions(RewardFunctions):
    """The functions of a source whose unit is group: a weighted sum for each sibling."""

    def calls(self, item: ScoreItem) -> list[FunctionCall]:
        """A call of each function with all siblings."""
        return [
            FunctionCall(f.function, *group_arguments(f.binding, item.siblings))
            for f in self.functions
        ]

    def verdict(self, item: ScoreItem, returned: Sequence[Any]) -> Verdict:
        """A verdict for each sibling; None where all functions say that none applies."""
        columns = [
            f.read_each(result, len(item.siblings), "siblings")
            for f, result in zip(self.functions, returned, strict=True)
        ]
        rows = zip(*columns, strict=True)
        return Verdict(siblings=tuple(self.weighed(row) if any(row) else None for row in rows))


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


def load_unit_functions(source: SourceConfig) -> RewardFunctions:
    """The functions that a source names; UserError where one cannot score what is its unit."""
    loaded = load_functions(source)
    if source.unit == "group":
        return GroupFunctions(tuple(map(_of_groups, loaded.functions)), loaded.threshold)
    if source.unit == "line":
        return LineFunctions(tuple(map(_of_lines, loaded.functions)), loaded.threshold)
    return loaded


def _of_groups(function: RewardFunction) -> RewardFunction:
    """The function bound so that `completions` means all siblings in every convention."""
    binding, where = function.binding, f"reward.function {function.label!r}"
    if binding.adapter == "areal":
        binding = bind(binding.signature, where, adapter="plain", objects=binding.objects)
    for name, source in binding.sources.items():
        is_one = binding.convention.singular(name) in (*RESPONSES, "query")
        if is_one and not source.columns and not source.wraps:
            raise UserError(
                f"{where} takes {binding.signature}, where `{name}` is one response: with unit = "
                f'"group" it is called once for all of them, as `{name}s`'
            )
    return replace(function, binding=binding)


def group_arguments(
    binding: Binding, siblings: Sequence[ScoreItem]
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments for one call with all siblings."""
    known = ResponseFacts(siblings[0], binding.convention.chat)
    calls = [binding.arguments(sibling) for sibling in siblings]
    positional = [
        _joined(binding, name, known, [call[0][place] for call in calls])
        for place, name in enumerate(binding.signature.by_position)
    ]
    names = calls[0][1]
    return positional, {
        name: _joined(binding, name, known, [call[1].get(name, [None]) for call in calls])
        for name in names
    }


def _joined(binding: Binding, name: str, known: ResponseFacts, values: Sequence[Any]) -> Any:
    """One argument from those of the siblings' own calls."""
    if _is_listed(binding, name, known):
        return [value[0] for value in values]
    return list(values) if binding.convention.singular(name) in _OWN else values[0]


def _is_listed(binding: Binding, name: str, known: ResponseFacts) -> bool:
    """Return whether each sibling's own call has this argument in a list of one."""
    source = binding.sources.get(name)
    if source is None:
        return name not in binding.objects and binding.convention.lists
    for column, wraps in source.columns:
        if column in known.columns:
            return wraps
    return source.wraps


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
