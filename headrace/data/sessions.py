"""Search sessions, and rows that hold one.

A row is `{"history": [{"query", "clicked"}, ...]}` with `query`, `candidates` and `labels` (or
`clicked`, the right candidate's text or place). In: rows. Out: sessions and lists. A query without
a click has NO_CLICK for its document. UserError for a row that is none, which names it.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import UserError

Pair = tuple[str, str]
"""A query, and the title of the document that was clicked."""
NO_CLICK = "\ue003"
"""A character of the private use area, so that no text means it."""
NOTHING_CLICKED = ("[empty_d]", "", None)
"""Forms of NO_CLICK in files."""


@dataclass(frozen=True)
class RankedList:
    """Candidates of a session's last query. `labels`: relevance, 0: none. `where`: file and row."""

    history: tuple[Pair, ...]
    query: str
    candidates: tuple[str, ...]
    labels: tuple[int, ...]
    where: str = ""


@dataclass(frozen=True)
class SessionData:
    """A ranker's sessions to contrast, lists to learn from, lists held out. `left_out`: empty
    rows."""

    sessions: list[tuple[Pair, ...]]
    training: list[RankedList]
    held_out: list[RankedList]
    left_out: dict[str, int]


def clean_list(ranked: RankedList) -> tuple[RankedList, str]:
    """Return the list without empty and repeated candidates, whose highest label counts, and what
    it lacks for training or measurement; "" where it lacks nothing."""
    unique = {c: label for label, c in sorted(zip(ranked.labels, ranked.candidates, strict=True))}
    candidates = tuple(c for c in dict.fromkeys(ranked.candidates) if c.strip())
    labels = tuple(unique[c] for c in candidates)
    lacks = "" if any(label > 0 for label in labels) else "without_relevant"
    sound = replace(ranked, candidates=candidates, labels=labels)
    return sound, lacks if ranked.query.strip() else "without_query"


def document_of(text: str | None) -> str:
    """A document's title, or NO_CLICK."""
    return NO_CLICK if text in NOTHING_CLICKED else str(text)


def label_of(value: Any, where: str) -> int:
    """Return the relevance of a candidate."""
    with suppress(TypeError, ValueError, OverflowError):
        if (label := int(value)) == float(value):
            return label
    raise UserError(f"{where}: the label is {str(value)[:40]!r}, not a whole number")


def history_of(row: Mapping[str, Any], where: str) -> tuple[Pair, ...]:
    """Return the earlier queries and clicks of a row."""
    history: Any = row.get("history", row.get("session", []))
    try:
        return tuple((str(each["query"]), document_of(each.get("clicked"))) for each in history)
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{where}: history is no list of query and clicked") from error


def clicked_of(row: Mapping[str, Any]) -> str | None:
    """Return the text of the clicked candidate of a row, or None."""
    clicked, candidates = row.get("clicked"), row.get("candidates")
    if isinstance(clicked, int) and isinstance(candidates, list) and 0 <= clicked < len(candidates):
        return str(candidates[clicked])
    if isinstance(clicked, str):
        return clicked
    labels = row.get("labels")
    if isinstance(labels, list) and isinstance(candidates, list) and len(labels) == len(candidates):
        return next((str(c) for c, one in zip(candidates, labels, strict=True) if one), None)
    return None


def ranked_list_of(row: Mapping[str, Any], where: str) -> RankedList:
    """The list of a row."""
    query, candidates, labels = (row.get(key) for key in ("query", "candidates", "labels"))
    if not isinstance(query, str) or not isinstance(candidates, list):
        raise UserError(
            f"{where}: no query and candidates (the row has {', '.join(sorted(row)) or 'nothing'})"
        )
    if labels is None:
        clicked = clicked_of(row)
        labels = [int(str(c) == clicked) for c in candidates]
    if not isinstance(labels, list) or len(labels) != len(candidates):
        raise UserError(f"{where}: {len(candidates)} candidates and other labels")
    return RankedList(
        history_of(row, where),
        query,
        tuple(map(str, candidates)),
        tuple(label_of(label, where) for label in labels),
        where,
    )
