"""Runs that others disturbed are run again: which row of a run counts, and whether one is missing.

In: rows by key. A run has one key; its undisturbed row stands under that key, and each disturbed
one under `KEY/disturbed-N`. After `MOST` tries a run is not tried again. What counts is the
undisturbed row, else the least disturbed one, which says so (`disturbed`): a page counts those.
"""

from collections.abc import Mapping
from typing import Any

MOST = 3
Row = dict[str, Any]


def tries_of(key: str, rows: Mapping[str, Row]) -> list[Row]:
    """The disturbed rows of a run."""
    return [rows[name] for n in range(MOST) if (name := f"{key}/disturbed-{n}") in rows]


def row_of(key: str, rows: Mapping[str, Row]) -> Row | None:
    """The row that counts; None without any."""
    if key in rows:
        return rows[key]
    tries = tries_of(key, rows)
    return min(tries, key=lambda row: row["others_cpu_share"], default=None)


def is_missing(key: str, rows: Mapping[str, Row]) -> bool:
    """Whether the run is to be made (again)."""
    return key not in rows and len(tries_of(key, rows)) < MOST


def new_key(key: str, rows: Mapping[str, Row], row: Row) -> str:
    """Where a new row of the run belongs."""
    return f"{key}/disturbed-{len(tries_of(key, rows))}" if row.get("disturbed") else key


def key_of(row: Mapping[str, Any]) -> str:
    """The key of the run that a row is of."""
    return str(row["key"]).partition("/disturbed-")[0]
