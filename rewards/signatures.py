"""Signatures of reward functions, read before anything is scored.

In: a callable. Out: which keyword arguments it takes, and which columns of the dataset it needs. If
it were called anyway, a function made for another system would pay 0 for right answers or fail at
every response. Here it is a UserError that says what is expected and whose signature the function
looks like.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from headrace.errors import UserError

OWN = ("prompt", "completion", "answer")
"""What every reward function is handed, by name."""

EXPECTED = "(prompt, completion, answer, **info)"

CONVENTIONS = {
    "verl": ("solution_str", "solution_strs"),
    "OpenRLHF": ("queries", "labels"),
    "TRL": ("completions",),
}
"""Parameters that give away for which system a function was written."""


class Signature(NamedTuple):
    """What a reward function is called with."""

    takes: frozenset[str] | None
    """Names of the keyword arguments it takes; None: any."""
    needs: tuple[str, ...]
    """Columns of the dataset that it has no default for."""

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the given keyword arguments that the function takes."""
        return {k: v for k, v in given.items() if self.takes is None or k in self.takes}


def read_signature(function: Callable[..., Any], name: str) -> Signature:
    """The signature of the function `name`; UserError where it cannot be called as
    `function(prompt=..., completion=..., answer=..., **info)`."""
    where = f"reward.function={name!r}"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise UserError(f"{where} has no signature to read; expected {EXPECTED}") from None
    if inspect.iscoroutinefunction(function):
        raise UserError(f"{where} is an async function, which nobody awaits; expected {EXPECTED}")
    parameters = list(signature.parameters.values())
    by_position = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY]
    named = {
        p.name: p
        for p in parameters
        if p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    }
    any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    # A catch-all for the completion would hide that the function looks for it elsewhere.
    missing = [n for n in OWN if n not in named and (n == "completion" or not any_name)]
    looks = _origin([*by_position, *named])
    if by_position:
        wrong = f"takes {_listed(by_position)} by position only, and arguments come by name"
    elif missing:
        wrong = f"does not take {_listed(missing)}"
    else:
        needs = tuple(n for n, p in named.items() if n not in OWN and p.default is p.empty)
        return Signature(None if any_name else frozenset(named), needs)
    raise UserError(f"{where} {wrong}; expected {EXPECTED}, got {_shown(parameters)}{looks}")


def check_columns(name: str, needs: Collection[str], columns: Collection[str]) -> None:
    """UserError where a function needs what no column of the dataset gives."""
    unknown = [n for n in needs if n not in columns]
    if unknown:
        raise UserError(
            f"reward.function={name!r} needs {_listed(unknown)}, which no column of the task gives "
            f"(it has {', '.join(sorted(columns)) or 'none'}); expected {EXPECTED}, where info is "
            f"the task's other columns: give the parameter a default"
        )


def _origin(names: Collection[str]) -> str:
    for system, marks in CONVENTIONS.items():
        if any(mark in names for mark in marks):
            return f". It looks like a reward function for {system}"
    return ""


def _shown(parameters: Collection[inspect.Parameter]) -> str:
    """The parameters' names on one line, without annotations and defaults, which may be long."""
    bare = (p.replace(annotation=p.empty, default=p.empty) for p in parameters)
    return f"({', '.join(map(str, bare))})"


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
