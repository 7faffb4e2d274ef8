"""Two accounts of the same numbers, compared.

In: names with arrays or numbers, stored and made again. Out: a `Quantity` for each kind of number.
Promises: NaN means that a number is not known, and only where both are known are they compared; one
that is known on the stored side alone is counted as not made; one that is known on the other side
alone differs.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MOST = 5
"""Maximum number of differences named per quantity."""
Array = npt.NDArray[np.float64]


class Difference(NamedTuple):
    """A number that differs: whose it is, its place there, and both accounts of it."""

    whose: str
    place: int | None
    stored: float | None
    recomputed: float | None


class Quantity(NamedTuple):
    """What came of comparing one kind of number.

    Attributes:
        name: what it is. source: what it was made from, `store` or `models`. tolerance: how far two
        numbers may lie apart, as a share of the stored one where that is
            over 1.
        compared: how many numbers both accounts have. differing: how many of them lie further
        apart, or are known to one account only. unmade: how many are stored and could not be made
        again. largest: the largest distance of two numbers, as the tolerance counts it. worst: some
        that differ, the largest difference first.
    """

    name: str
    source: str
    tolerance: float
    compared: int
    differing: int
    unmade: int
    largest: float
    worst: list[Difference]


class Row(NamedTuple):
    """Numbers of one owner: their places from `first` on (None: it has no places)."""

    whose: str
    first: int | None
    stored: Array
    recomputed: Array


def quantity(
    name: str, rows: Iterable[Row], *, source: str, tolerance: float, lacks: bool = False
) -> Quantity:
    """Compare rows. `lacks`: a number that was not made has a reason, and does not differ."""
    compared = differing = unmade = 0
    largest = 0.0
    worst: list[tuple[float, Difference]] = []
    for row in rows:
        known, made = ~np.isnan(row.stored), ~np.isnan(row.recomputed)
        with np.errstate(invalid="ignore"):
            apart = np.abs(row.stored - row.recomputed) / np.maximum(1.0, np.abs(row.stored))
        apart[np.isnan(apart)] = np.inf
        apart[(row.stored == row.recomputed) | ~(known | made)] = 0.0
        if lacks:
            unmade += int((known & ~made).sum())
            apart[known & ~made] = 0.0
        differs = apart > tolerance
        compared += int((known & made).sum())
        differing += int(differs.sum())
        largest = max(largest, float(apart[np.isfinite(apart)].max(initial=0.0)))
        places = np.flatnonzero(differs)
        order = places[np.argsort(-apart[places], kind="stable")[:MOST]]
        for place in order.tolist():
            where = None if row.first is None else row.first + place
            pair = _number(row.stored[place]), _number(row.recomputed[place])
            worst.append((float(apart[place]), Difference(row.whose, where, *pair)))
        worst = sorted(worst, key=lambda found: -found[0])[:MOST]
    return Quantity(
        name, source, tolerance, compared, differing, unmade, largest, [d for _, d in worst]
    )


def named_rows(stored: Mapping[str, object], recomputed: Mapping[str, object]) -> list[Row]:
    """Rows of the numbers that were made again and are stored by name; a list has a place for each
    of its numbers."""
    rows = []
    for name in sorted(set(stored) & set(recomputed)):
        both = (np.atleast_1d(np.array(x[name], np.float64)) for x in (stored, recomputed))
        rows.append(row_of(name, 0 if isinstance(stored[name], list) else None, *both))
    return rows


def row_of(
    whose: str, first: int | None, stored: npt.NDArray[Any], recomputed: npt.NDArray[Any]
) -> Row:
    """A row of two accounts that need not be of one length: what one of them lacks is not known."""
    size = max(stored.size, recomputed.size)
    padded = (
        np.concatenate([x.astype(np.float64), np.full(size - x.size, np.nan)])
        for x in (stored, recomputed)
    )
    return Row(whose, first, *padded)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
