"""Search sessions as everybody here writes them.

In: nothing. Out: types. A query without a click has NO_CLICK for its document.
"""

from dataclasses import dataclass

Pair = tuple[str, str]
"""A query, and the title of the document that was clicked."""
NO_CLICK = "\ue003"
"""A character of the private use area, so that no text means it."""


@dataclass(frozen=True)
class RankedList:
    """Candidates for the last query of a session. `labels`: how relevant each is, 0: not. `where`:
    the file and row that it is from."""

    history: tuple[Pair, ...]
    query: str
    candidates: tuple[str, ...]
    labels: tuple[int, ...]
    where: str = ""


@dataclass(frozen=True)
class SessionData:
    """What a ranker is made from: sessions to contrast, lists to learn from, lists held out.
    `left_out`: rows that say nothing, by reason."""

    sessions: list[tuple[Pair, ...]]
    training: list[RankedList]
    held_out: list[RankedList]
    left_out: dict[str, int]
