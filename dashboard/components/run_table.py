"""The table of runs: which are shown, in which order, as which rows.

In: lines of `storage.queries.list_runs`. Out: lines and frames. Pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd

from dashboard.formatting import count, duration, share
from dashboard.palette import GREY
from storage.queries import UNREADABLE, RunLine

Order = Callable[[RunLine], tuple[Any, ...]]


def _falling(value: float | None) -> tuple[Any, ...]:
    """Largest first, what is not known last."""
    return (value is None, -(value or 0.0))


SORTS: dict[str, Order] = {
    "newest": lambda line: _falling(line.started_at),
    "oldest": lambda line: (line.started_at or 0.0,),
    "accuracy": lambda line: _falling(line.accuracy),
    "tokens": lambda line: _falling(line.trained_tokens),
    "time": lambda line: _falling(line.wall_s),
    "recipe": lambda line: (line.name, -1 if line.seed is None else line.seed),
}
"""Orders of the whole table by name."""


@dataclass(frozen=True)
class RunFilter:
    """Filter of the list of runs. `text`: words that a line must all contain; of the others
    an empty tuple lets everything through."""

    text: str = ""
    states: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    archived: bool = False


def chosen_lines(lines: Sequence[RunLine], wanted: RunFilter, order: str) -> list[RunLine]:
    """The lines that are asked for, in that order."""
    found = [line for line in lines if _fits(line, wanted)]
    return sorted(found, key=SORTS.get(order, SORTS["newest"]))


def _fits(line: RunLine, wanted: RunFilter) -> bool:
    if line.notes.archived and not wanted.archived:
        return False
    if wanted.states and line.status not in wanted.states:
        return False
    if wanted.kinds and line.kind not in wanted.kinds:
        return False
    if wanted.tags and not set(wanted.tags) & set(line.notes.tags):
        return False
    said = (line.run_dir.name, line.name, line.algorithm, line.mode, line.status, line.detail)
    text = "\n".join([*said, *line.notes.tags, line.notes.note]).casefold()
    return all(word in text for word in wanted.text.casefold().split())


def run_rows(lines: Sequence[RunLine]) -> pd.DataFrame:
    """The rows as the table has them: numbers that can be sorted, empty where nothing is known of a
    run, and `why` it ended or cannot be read."""

    def known(of: Callable[[RunLine], Any]) -> list[Any]:
        return [None if line.status == UNREADABLE else of(line) for line in lines]

    return pd.DataFrame(
        {
            "run": [line.run_dir.name for line in lines],
            "recipe": known(lambda line: line.name),
            "algorithm": known(_how),
            "seed": pd.array(known(lambda line: line.seed), dtype="Int64"),
            "accuracy": pd.array(known(lambda line: line.accuracy), dtype="Float64"),
            "tokens": pd.array(known(lambda line: line.trained_tokens), dtype="Int64"),
            "time": pd.array(known(lambda line: line.wall_s), dtype="Float64"),
            "state": [_state(line) for line in lines],
            "tags": [", ".join(line.notes.tags) for line in lines],
            "note": [line.notes.note or line.notes.trouble for line in lines],
            "when": pd.to_datetime([_moment(line.started_at) for line in lines]),
            "updates": pd.array(known(lambda line: line.updates), dtype="Int64"),
            "why": [line.detail for line in lines],
        }
    )


def _how(line: RunLine) -> str:
    """Kind of a run, with its algorithm and mode."""
    parts = [line.algorithm, line.mode] if line.kind == "training" else [line.kind, line.algorithm]
    return ", ".join(filter(None, parts))


def _moment(at: float | None) -> Any:
    """By the clock of this place, as all pages have it."""
    return datetime.fromtimestamp(at) if at else None


def _state(line: RunLine) -> str:
    return f"{line.status}, archived" if line.notes.archived else line.status


def styled(rows: pd.DataFrame) -> Any:
    """Rows with figures in words, and grey where a folder cannot be read or is archived."""
    grey = rows["state"].map(lambda state: state == UNREADABLE or state.endswith("archived"))
    style = f"color: {GREY}; font-style: italic"
    styles = pd.DataFrame("", index=rows.index, columns=rows.columns)
    styles.loc[grey, :] = style
    words: dict[Any, Any] = {
        **{"accuracy": share, "updates": count, "tokens": count, "time": duration, "seed": "{:d}"},
        "when": "{:%Y-%m-%d %H:%M}",
    }
    return rows.style.apply(lambda _: styles, axis=None).format(words, na_rep="-")
