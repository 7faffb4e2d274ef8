"""Measurement of compared sides in turns, for all timed benchmarks.

In: sides by name, each a function of the turn's number that returns its figures. Out: the figures
of each side turn by turn, the spread of their ratios, and one result with the state of the machine.
Promises: the first side changes from turn to turn; turn 0 warms up and is not counted; a ratio is
of figures of the same turn; a result beside which others took more than `DISTURBED_CORES` is
printed and marked, but becomes no row.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from benchmarks.kit.machine_state import MachineWatch
from benchmarks.kit.rows import report_result

F = TypeVar("F")
Figures = Mapping[str, Any]


def time_call(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def in_turns(
    sides: Mapping[str, Callable[[int], F]],
    repeats: int,
    *,
    warm_up: bool = True,
    seen: Callable[[Mapping[str, F]], object] = lambda turn: None,
) -> dict[str, list[F]]:
    """Measure each side in turns 1 to `repeats`; `seen` receives each of them."""
    names = list(sides)
    figures: dict[str, list[F]] = {name: [] for name in names}
    for turn in range(0 if warm_up else 1, repeats + 1):
        first = (turn - 1) % len(names)
        found = {name: sides[name](turn) for name in names[first:] + names[:first]}
        if turn:
            for name in names:
                figures[name].append(found[name])
            seen(found)
    return figures


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


def spread(values: Sequence[float], name: str = "ratio", digits: int = 4) -> dict[str, float]:
    """Return a row's median, least and largest: `name`, `name`_min, `name`_max."""
    found = {"": statistics.median(values), "_min": min(values), "_max": max(values)}
    return {name + end: round(value, digits) for end, value in found.items()}


def spread_text(row: Figures, name: str = "ratio") -> str:
    """Format a spread: the median, with least and largest in brackets."""
    return f"{row[name]:.3f} ({row[f'{name}_min']:.3f} to {row[f'{name}_max']:.3f})"


def conclude(name: str, options: argparse.Namespace, measure: Callable[[], Figures]) -> int:
    """Measure and report; return the exit code.

    The figures and the state of the machine meanwhile go to `options.rows`, where there is such a
    file and nothing disturbed them, and with `--json` to the last line."""
    with MachineWatch() as watch:
        figures = measure()
    state = watch.state({})
    if getattr(options, "rows", None) is not None and state["disturbed"]:
        share = state["others_cpu_share"]
        print(f"others took {share:.2f} of a core meanwhile: no row of it", file=sys.stderr)
        options.rows = None
    return report_result(options, {"name": name, **figures, **state})
