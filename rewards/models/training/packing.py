"""Units of a batch laid into packs, as the learner's models take them.

In: units, each a few sequences that a loss needs together, and a budget of tokens. Out: packs with
their units. Promise: the outputs of a pack are in the order of its units, in these of their rows,
in these of their places; a unit is never cut.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from learner.batching.layout import layout_of
from learner.batching.packing import pack_sequences
from learner.models.forward import Pack


class Row(NamedTuple):
    """A sequence, the places in it that are read, and for each the token that is scored there (0
    where none is)."""

    ids: list[int]
    places: list[int]
    targets: list[int]


class Unit(NamedTuple):
    """Sequences that a loss needs together. `facts`: what the objective knows of them; `weight`:
    what they count for in a mean."""

    rows: tuple[Row, ...]
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
        """Numbers that the model gives for it."""
        return sum(len(row.places) for row in self.rows)


class UnitPack(NamedTuple):
    """One forward pass."""

    pack: Pack
    units: tuple[Unit, ...]

    def of_units(self, outputs: Tensor) -> Iterator[tuple[Unit, Tensor]]:
        """Each unit with its outputs."""
        parts = outputs.split([unit.reads for unit in self.units])
        return zip(self.units, parts, strict=True)


def packs_of(units: Sequence[Unit], *, budget: int, device: torch.device) -> list[UnitPack]:
    """Packs of at most `budget` tokens, or of one unit."""
    sizes = [unit.tokens for unit in units]
    return [
        _pack(tuple(units[i] for i in chosen), device)
        for chosen in pack_sequences(sizes, budget=budget)
    ]


def _pack(units: tuple[Unit, ...], device: torch.device) -> UnitPack:
    rows = [row for unit in units for row in unit.rows]
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index].ids))
    lengths = [len(rows[index].ids) for index in order]
    starts, begin = [0] * len(rows), 0
    for index, length in zip(order, lengths, strict=True):
        starts[index] = begin
        begin += length
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
    )
    return UnitPack(pack, units)
