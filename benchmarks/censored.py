"""Figures of which only a bound may be known: a run that never got there took longer than it ran.

In: for each run, the value or its bounds. Out: medians with least and largest that leave no run
out: where they cannot be told exactly, they too are bounds. A run that is left out because it never
got there flatters whoever it belongs to.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

Bounds = tuple[float, float]
"""The least and the most that a value may be; both the same where it is known."""
Spread = dict[str, list[float | None]]
"""`median`, `min`, `max`: each the least and the most that it may be, None for no upper bound."""


def exactly(value: float) -> Bounds:
    """A value that was seen."""
    return value, value


def at_least(value: float) -> Bounds:
    """A value of which it is known only that it is larger."""
    return value, math.inf


def quotient(over: Bounds, under: Bounds) -> Bounds:
    """Bounds of `over / under`, both positive."""
    return over[0] / under[1], over[1] / under[0]


def spread(values: Sequence[Bounds]) -> Spread | None:
    """Median, least and largest; None without values."""
    if not values:
        return None
    lows, highs = [low for low, _ in values], [high for _, high in values]
    # All three rise with every value, so that bounds of the values give bounds of the figures.
    return {
        "median": pair((statistics.median(lows), statistics.median(highs))),
        "min": pair((min(lows), min(highs))),
        "max": pair((max(lows), max(highs))),
    }


def pair(bounds: Bounds) -> list[float | None]:
    """Bounds as JSON has them: None for no upper bound."""
    low, high = bounds
    return [low, None if math.isinf(high) else high]


def spread_text(figures: Mapping[str, Sequence[float | None]] | None, form: str) -> str:
    """`median (least to most)`; `-` where there is nothing."""
    if figures is None:
        return "-"
    median, least, most = (bounds_text(figures[k], form) for k in ("median", "min", "max"))
    return median if least == most else f"{median} ({least} to {most})"


def bounds_text(bounds: Sequence[float | None], form: str) -> str:
    """A value, `at least` or `at most` one, or between two."""
    low, high = bounds
    assert low is not None
    if high is None:
        return f"at least {low:{form}}"
    if f"{low:{form}}" == f"{high:{form}}":
        return f"{low:{form}}"
    return f"at most {high:{form}}" if low == 0 else f"between {low:{form}} and {high:{form}}"
