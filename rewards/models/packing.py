"""Units of a batch laid into packs, as the learner's models take them.

In: units, each a few sequences that a loss needs together, and a budget of tokens. Out: packs with
their units, none of them cut. Promise: outputs are in the order of units, rows and places.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headrace.protocol.token_spans import MediaRun
from learner.batching.layout import layout_of
from learner.batching.packing import pack_sequences
from learner.device import ImageShapes
from learner.models.forward import Pack
from learner.models.images import ImageRow, PackImages, images_of


class UnitRow(NamedTuple):
    """A sequence, its read places with the tokens scored there (or 0), and its images."""

    ids: list[int]
    places: list[int]
    targets: list[int]
    media: tuple[MediaRun, ...] = ()


class LossUnit(NamedTuple):
    """Sequences that a loss needs together, the objective's `facts`, the weight in a mean."""

    rows: tuple[UnitRow, ...]
    facts: tuple[float, ...]
    weight: float = 1.0

    @property
    def tokens(self) -> int:
        """Tokens of all its rows."""
        return sum(len(row.ids) for row in self.rows)

    @property
    def longest(self) -> int:
        """Tokens of its longest row."""
        return max(len(row.ids) for row in self.rows)

    @property
    def reads(self) -> int:
        """Number of outputs of the model for it."""
        return sum(len(row.places) for row in self.rows)


class UnitPack(NamedTuple):
    """One forward pass."""

    pack: Pack
    units: tuple[LossUnit, ...]

    def of_units(self, outputs: Tensor) -> Iterator[tuple[LossUnit, Tensor]]:
        """Each unit with its outputs."""
        parts = outputs.split([unit.reads for unit in self.units])
        return zip(self.units, parts, strict=True)


def packs_of(
    units: Sequence[LossUnit],
    *,
    budget: int,
    device: torch.device,
    images: ImageShapes | None = None,
) -> list[UnitPack]:
    """Packs of at most `budget` tokens, or of one unit. `images`: those of a model that sees."""
    sizes = [unit.tokens for unit in units]
    if images is not None:
        seen = ({run for row in unit.rows for run in row.media} for unit in units)
        sizes = [size + images.cost(list(m)) for size, m in zip(sizes, seen, strict=True)]
    return [
        _pack(tuple(units[i] for i in chosen), device, images)
        for chosen in pack_sequences(sizes, budget=budget)
    ]


def _pack(
    units: tuple[LossUnit, ...], device: torch.device, images: ImageShapes | None
) -> UnitPack:
    rows = [row for unit in units for row in unit.rows]
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index].ids))
    lengths = [len(rows[index].ids) for index in order]
    starts = dict(zip(order, accumulate(lengths, initial=0), strict=False))
    reads = [starts[i] + place for i, row in enumerate(rows) for place in row.places]
    targets = [target for row in rows for target in row.targets]

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    pack = Pack(
        token_ids=tensor([token for index in order for token in rows[index].ids]),
        position_ids=tensor([place for length in lengths for place in range(length)]),
        layout=layout_of(lengths, device=device),
        reads=tensor(reads),
        targets=tensor(targets),
        images=None if images is None else _images([rows[i] for i in order], images, device),
    )
    return UnitPack(pack, units)


def _images(rows: Sequence[UnitRow], images: ImageShapes, device: torch.device) -> PackImages:
    laid = [ImageRow(np.array(row.ids, np.int32), row.media, 0, len(row.ids)) for row in rows]
    starts = [0, *accumulate(row.end for row in laid[:-1])]
    return images_of(laid, starts, images, device)
