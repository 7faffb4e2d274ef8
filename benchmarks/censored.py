"""Figures of which only a bound may be known: a run that never got there took longer than it ran.

In: for each run, the value or its bounds. Out: quotients that leave no run out: where they cannot
be told exactly, they too are bounds. A run that is left out because it never got there flatters
whoever it belongs to.
"""

import math

Bounds = tuple[float, float]
"""The least and the most that a value may be; both the same where it is known."""


def exactly(value: float) -> Bounds:
    """A value that was seen."""
    return value, value


def at_least(value: float) -> Bounds:
    """A value of which it is known only that it is larger."""
    return value, math.inf


def quotient(over: Bounds, under: Bounds) -> Bounds:
    """Bounds of `over / under`, both positive."""
    return over[0] / under[1], over[1] / under[0]
