"""Curves of several runs: put together, and told apart.

In: curves, frames with columns x and value; points without a value are left out, and of several at
one x the last counts. Between two points a curve is drawn as a straight line, and may be anywhere
between their values; beyond its ends it is not known. Out: a band over seeds, and the point from
which two curves stay apart. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Numbers = npt.NDArray[np.float64]
BAND_POINTS = 400
"""Maximum number of points of a band."""


@dataclass(frozen=True)
class Divergence:
    """Two curves are apart for good from `x` on. `gap` is the first less the second, where both
    were last known."""

    x: float
    gap: float


def first_divergence(
    first: pd.DataFrame, second: pd.DataFrame, margin: float, *, lasts: float = 0.0
) -> Divergence | None:
    """The first point of either curve from which on `first` stays more than `margin` above
    `second`, or more than `margin` below it, to the end of what is known of both. Between two of
    its points a curve may be anywhere between their values: curves are apart where that leaves no
    doubt. None: they are not apart at that end, or for less than the share `lasts` of what is known
    of both, or never side by side."""
    (x1, y1), (x2, y2) = points_of(first), points_of(second)
    if not len(x1) or not len(x2):
        return None
    begin, end = max(x1[0], x2[0]), min(x1[-1], x2[-1])
    at = np.union1d(x1, x2)
    at = at[(begin <= at) & (at <= end)]
    if not len(at):
        return None
    gap = np.interp(at, x1, y1) - np.interp(at, x2, y2)
    (low1, high1), (low2, high2) = _bounds(at, x1, y1), _bounds(at, x2, y2)
    apart = (low1 - high2 if gap[-1] > 0 else low2 - high1) > margin
    if not apart[-1]:
        return None
    together = np.flatnonzero(~apart)
    since = float(at[together[-1] + 1 if len(together) else 0])
    if end - since < lasts * (end - begin):
        return None
    return Divergence(since, float(gap[-1]))


def _bounds(at: Numbers, x: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
    """The least and the largest that a curve of the points (x, y) may be at each place: its value
    at a point, both neighbours' between two."""
    after = np.searchsorted(x, at, side="left").clip(max=len(x) - 1)
    before = np.where(x[after] == at, after, np.maximum(after - 1, 0))
    return np.minimum(y[before], y[after]), np.maximum(y[before], y[after])


def seed_band(curves: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Columns x, low, value, high, runs: the least, the median and the largest of the curves that
    are known at x, and how many these are. The x are the curves' own, or, of many, `BAND_POINTS` at
    even distances."""
    known = [(x, y) for x, y in map(points_of, curves) if len(x)]
    if not known:
        return pd.DataFrame(columns=["x", "low", "value", "high", "runs"], dtype=float)
    at = np.unique(np.concatenate([x for x, _ in known]))
    if len(at) > BAND_POINTS:
        at = np.linspace(at[0], at[-1], BAND_POINTS)
    rows = np.vstack([np.interp(at, x, y, left=np.nan, right=np.nan) for x, y in known])
    covered = ~np.isnan(rows).all(axis=0)
    at, rows = at[covered], rows[:, covered]
    return pd.DataFrame(
        {
            "x": at,
            "low": np.nanmin(rows, axis=0),
            "value": np.nanmedian(rows, axis=0),
            "high": np.nanmax(rows, axis=0),
            "runs": (~np.isnan(rows)).sum(axis=0),
        }
    )


def points_of(curve: pd.DataFrame) -> tuple[Numbers, Numbers]:
    """A curve's x, rising, and its values."""
    known: Any = curve[["x", "value"]].astype(float).dropna()
    known = known.sort_values("x", kind="stable").drop_duplicates("x", keep="last")
    return known["x"].to_numpy(), known["value"].to_numpy()
