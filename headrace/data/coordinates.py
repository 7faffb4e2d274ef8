"""Points and boxes: how models that ground write them, and how boxes overlap.

In: a response, or the right answer of a row. Out: groups of numbers: two are a point, four a box.
Written alike: `1,2,3,4`, `[[1, 2, 3, 4], [5, 6, 7, 8]]`, `(1,2),(3,4)`, `<bbox>1 2 3 4</bbox>`,
`{"bbox_2d": [1, 2, 3, 4], "label": "cup"}`. Linear in the length of the text. Of boxes `x1, y1, x2,
y2` of any one system of coordinates: intersection over union (IoU), its mean over the best
matching, coordinates on a grid. A box that is inverted, empty or not finite has an IoU of 0 with
every other one. Pure.
"""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from headrace.data.answer_text import said_part

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
    one, other = (np.prod(x[..., 2:] - x[..., :2], axis=-1) for x in (a, b))
    union = one + other - shared
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
) -> tuple[float, ...]:
    """Return pixels `x, y, ...` of an image of (width, height) on a grid from 0 to `largest`,
    in whole steps if it is above 1; a box's side of less than one has the steps that it touches."""
    exact = [p / size[i % 2] * largest for i, p in enumerate(pixels)]
    if largest <= 1:
        return tuple(exact)
    found = [math.floor(place + 0.5) for place in exact]
    for i in range(len(found) - 2):
        if found[i] == found[i + 2]:
            found[i], found[i + 2] = math.floor(exact[i]), math.ceil(exact[i + 2])
    return tuple(found)


def _are_boxes(boxes: Floats) -> npt.NDArray[np.bool_]:
    proper = (boxes[..., 2] > boxes[..., 0]) & (boxes[..., 3] > boxes[..., 1])
    found: npt.NDArray[np.bool_] = proper & np.isfinite(boxes).all(-1)
    return found


MAX_BOXES = 1_000
"""Boxes of a response; with more it has none that count."""
_NUMBER = r"(?>[-+]?(?:[0-9]{1,15}(?:\.[0-9]{1,15})?|nan|inf(?:inity)?))(?!\w)"
_RUN = re.compile(rf"(?<![\w.]){_NUMBER}(?:[\s,;()\[\]]{{1,20}}{_NUMBER})*", re.IGNORECASE)
_ONE = re.compile(_NUMBER, re.IGNORECASE)


class Grounding(BaseModel):
    """Options of a source that say where coordinates stand and what they mean."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    largest: float = Field(default=GRID, gt=0)
    """Coordinates go from 0 to it, on both axes; a response with others has none that count."""

    column: str | None = None
    """Column with the true boxes: one, or a list of them. None: the row's answer has them."""

    size_column: str | None = None
    """Column with the image's [width, height], for true boxes in pixels. None: on the grid."""

    thought: str | None = Field(default=None, pattern=r"^[\w-]+$")
    """Tag of the response's thought (`think`), in which nothing is read."""

    answer_marker: str | None = Field(default=None, min_length=1)
    """Text right before the answer. None: it is all that the response says."""

    def needs(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return tuple(name for name in (self.column, self.size_column) if name is not None)


def read_groups(text: str, size: int) -> list[tuple[float, ...]]:
    """Return the numbers together in a text, by `size`, at most MAX_BOXES + 1 groups. Fewer than
    `size` together, as in prose, are none; a group that is not whole is one of NaN."""
    found: list[tuple[float, ...]] = []
    for run in islice(_RUN.finditer(text), 10 * MAX_BOXES):
        numbers = [float(number) for number in _ONE.findall(run[0])]
        if len(numbers) < size:
            continue
        whole = len(numbers) - len(numbers) % size
        found += (tuple(numbers[i : i + size]) for i in range(0, whole, size))
        found += [(math.nan,) * size] if whole < len(numbers) else []
        if len(found) > MAX_BOXES:
            break
    return found[: MAX_BOXES + 1]


def response_groups(text: str, options: Grounding, size: int) -> list[tuple[float, ...]]:
    """Return a response's points or boxes, none beyond MAX_BOXES; outside the grid they are NaN."""
    groups = read_groups(said_part(text, options.thought, options.answer_marker), size)
    if len(groups) > MAX_BOXES:
        return []
    inside = (all(0 <= number <= options.largest for number in group) for group in groups)
    return [g if fits else (math.nan,) * size for g, fits in zip(groups, inside, strict=True)]


def true_boxes(answer: str, columns: Mapping[str, Any], options: Grounding) -> list[Box]:
    """The row's boxes on the grid of responses; ValueError where it has none, or one is none."""
    told = answer if options.column is None else str(_column(columns, options.column))
    boxes: list[Box] = list(read_groups(told, 4))
    most = options.largest if options.size_column is None else math.inf
    fit = all(x1 < x2 <= most and y1 < y2 <= most for x1, y1, x2, y2 in boxes)
    if not boxes or len(boxes) > MAX_BOXES or not fit:
        raise ValueError(f"{told[:60]!r} is no true box: x1 < x2 <= {most:g}, y1 < y2 <= {most:g}")
    if options.size_column is None:
        return boxes
    width, height = _size(_column(columns, options.size_column), options.size_column)
    return [to_grid(box, (width, height), options.largest) for box in boxes]


def _column(columns: Mapping[str, Any], name: str) -> Any:
    if name not in columns:
        raise ValueError(f"the row has no column {name!r}")
    return columns[name]


def _size(told: object, name: str) -> tuple[float, float]:
    if isinstance(told, Sequence) and len(told) == 2:
        width, height = told
        if all(isinstance(x, int | float) and x > 0 for x in (width, height)):
            return float(width), float(height)
    raise ValueError(f"column {name!r} is not the image's [width, height]")
