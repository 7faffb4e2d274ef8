"""Boxes in images: their overlap, their matching, and the grid of their coordinates.

In: boxes `x1, y1, x2, y2` of any one system of coordinates. Out: intersection over union (IoU), its
mean over the best matching, coordinates on a grid. Pure. A box that is inverted, empty or not
finite has an IoU of 0 with every other one.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

GRID = 999
"""The largest coordinate of models that ground (Seed1.5-VL, arXiv 2505.07062)."""

Box = Sequence[float]
Floats = npt.NDArray[np.float64]


def pairwise_iou(first: Sequence[Box], second: Sequence[Box]) -> Floats:
    """[N, M] IoU of each of N boxes with each of M."""
    a = np.asarray(first, np.float64).reshape(-1, 1, 4)
    b = np.asarray(second, np.float64).reshape(1, -1, 4)
    shape = (a.shape[0], b.shape[1])
    # What is no box takes part as one without an area.
    a, b = (np.where(_are_boxes(x)[..., None], x, 0.0) for x in (a, b))
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    shared = np.prod(np.maximum(sides, 0.0), axis=-1)
    union = _area(a) + _area(b) - shared
    found: Floats = np.divide(shared, union, out=np.zeros(shape), where=union > 0)
    return found


def mean_iou(given: Sequence[Box], wanted: Sequence[Box]) -> float:
    """The mean IoU of the pairs of the best matching (Hungarian method), over max(len(given),
    len(wanted)): boxes too many or too few count as 0. 0 where there are none."""
    if not given or not wanted:
        return 0.0
    overlaps = pairwise_iou(given, wanted)
    most = max(len(given), len(wanted))
    if 1 in (len(given), len(wanted)):
        return float(overlaps.max()) / most
    # Reading a run imports this module, and needs no scipy.
    from scipy.optimize import linear_sum_assignment

    return float(overlaps[linear_sum_assignment(overlaps, maximize=True)].sum()) / most


def to_grid(
    pixels: Sequence[float], size: tuple[float, float], largest: float = GRID
) -> tuple[int, ...]:
    """Return pixels `x, y, ...` of an image of (width, height) on a grid from 0 to `largest`."""
    return tuple(math.floor(p / size[i % 2] * largest + 0.5) for i, p in enumerate(pixels))


def _are_boxes(boxes: Floats) -> npt.NDArray[np.bool_]:
    proper = (boxes[..., 2] > boxes[..., 0]) & (boxes[..., 3] > boxes[..., 1])
    found: npt.NDArray[np.bool_] = proper & np.isfinite(boxes).all(-1)
    return found


def _area(boxes: Floats) -> Floats:
    found: Floats = np.prod(boxes[..., 2:] - boxes[..., :2], axis=-1)
    return found
