"""Signatures of reward functions, read before anything is scored.

In: a callable. Out: the names of its arguments, those without a default apart. Arguments are bound
by these names (`calling_conventions.py`), so what has no signature cannot be a reward function.
"""

import inspect
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from headrace.errors import UserError
from rewards.functions.arguments import PLURALS

EXPECTED = "(prompt, completion, answer, **info)"
"""The form of a function that was written for Headrace."""


class Signature(NamedTuple):
    """Arguments of a reward function."""

    by_position: tuple[str, ...]
    """Arguments that come by position only."""
    required: frozenset[str]
    """Arguments without a default."""
    names: tuple[str, ...]
    """All named arguments, in order."""
    any_name: bool
    """True: it takes further keyword arguments (`**info`)."""
    texts: frozenset[str] = frozenset()
    """Arguments that are annotated as one text."""

    def __str__(self) -> str:
        """The names on one line, without annotations and defaults, which may be long."""
        optional = (f"{n}=" if n not in self.required else n for n in self.names)
        return f"({', '.join([*optional, *(['**'] if self.any_name else [])])})"


def read_signature(function: Callable[..., Any], where: str) -> Signature:
    """The signature of a function; UserError where it has none, or is a class."""
    if inspect.isclass(function):
        raise UserError(f"{where} is a class: name a function, or an object that can be called")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise UserError(f"{where} has no signature to read; expected {EXPECTED}") from None
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [p for p in parameters if p.kind not in variadic]
    return Signature(
        tuple(p.name for p in named if p.kind is inspect.Parameter.POSITIONAL_ONLY),
        frozenset(p.name for p in named if p.default is p.empty),
        tuple(p.name for p in named),
        any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters),
        frozenset(p.name for p in named if p.annotation in (str, "str")),
    )


def check_columns(where: str, needs: Collection[str], columns: Collection[str]) -> None:
    """Raise UserError where no column of the dataset gives what a function needs.

    A list with one entry per response takes the column of its entries' name."""
    unknown = [n for n in needs if not {n, PLURALS.get(n, n)} & set(columns)]
    if unknown:
        listed = ", ".join(f"`{name}`" for name in unknown)
        raise UserError(
            f"{where} needs {listed}, which no column of the task gives (it has "
            f"{', '.join(sorted(columns)) or 'none'}) and nothing else is known by that name; add "
            f"the column, give the parameter a default, or see docs/rewards.md for the "
            f"names that are known"
        )
