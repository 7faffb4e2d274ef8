"""Events of a run as lines of HTML.

In: rows of the events' table. Out: one line each, those that warn marked.
"""

from collections.abc import Callable
from html import escape
from typing import Any

LEVELS = ("error", "warning")
"""Those that warn."""
WARNS = '<span class="hr-warns">!</span> '


def event_html(row: Any, clock: Callable[[float], str]) -> str:
    """One event (at, level, kind, text); `clock` words its time (epoch seconds)."""
    mark = WARNS if row.level in LEVELS else ""
    return (
        f'<div style="margin:.28rem 0"><span class="hr-soft">{clock(row.at)}</span>&ensp;'
        f"{mark}<b>{escape(row.kind.replace('_', ' '))}</b>&ensp;{escape(row.text)}</div>"
    )
