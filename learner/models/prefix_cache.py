"""Cache of trajectories' earlier keys and values, carried from update to update.

In: the keys and values that a model's attention computes for a pack. Out: `PastKeyValues`, from
which a later pack's attention reads them instead of computing them again. Promises: they belong to
the very tokens before the pack's; a tensor is kept once, from the first forward pass that computed
it in its update; all of them never take more than `bound` bytes; within an update lookups stay the
same; the content depends on the batches alone, and not on time.

Keys are already rotated to their places, so a reader computes its own tokens at absolute places as
well.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.protocol.token_spans import MediaRun
from learner.batching.layout import PastKeyValues

Ids = npt.NDArray[np.int32]
KeysAndValues = tuple[Tensor, Tensor]
"""[n, key heads, d] each, of one layer."""
CPU = torch.device("cpu")


class CachePiece(NamedTuple):
    """Keys and values of n tokens of a trajectory that one update computed, by layer."""

    update: int
    tokens: int
    layers: list[KeysAndValues]

    @property
    def num_bytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(x.nbytes for layer in self.layers for x in layer)


@dataclass
class CacheEntry:
    """A cached trajectory: its first tokens without a gap, and the images among them."""

    token_ids: Ids
    media: tuple[MediaRun, ...] = ()
    pieces: list[CachePiece] = field(default_factory=list)


@dataclass
class CacheFigures:
    """Cache statistics of one update.

    Attributes:
        hits: sequences beyond their first window whose whole context was cached. misses: such
        sequences of which some context had to be computed. recomputed: the tokens of that context.
        carried: tokens whose keys and values were read. age: updates between the computing of these
        and their use, summed over tokens.
    """

    hits: int = 0
    misses: int = 0
    recomputed: int = 0
    carried: int = 0
    age: int = 0


class CacheSource(NamedTuple):
    """Tokens [begin, end) of a trajectory, in a pack at `places`; earlier are cached."""

    trajectory: int
    token_ids: Ids
    begin: int
    end: int
    places: tuple[slice, ...]
    media: tuple[MediaRun, ...] = ()


class PrefixCache:
    """The cached keys and values of one model on one rank.

    `num_bytes`: of all that is kept. `figures`: of the present update."""

    def __init__(self, *, bound: int, on_device: int = 0) -> None:
        """`bound`: maximum bytes; `on_device`: of these on the device, not the host."""
        self._bound, self._on_device = bound, on_device
        self._entries: OrderedDict[int, CacheEntry] = OrderedDict()
        self._update = 0
        self._ended: Collection[int] = ()
        self._known: dict[int, int] = {}
        self._taken: set[int] = set()
        self.num_bytes = self._device_bytes = 0
        self.figures = CacheFigures()

    def __len__(self) -> int:
        """Number of cached trajectories."""
        return len(self._entries)

    # -- an update ---------------------------------------------------------------------------------

    def begin_update(self, update: int, ended: Collection[int]) -> None:
        """Begin an update, after which the trajectories that have `ended` are dropped."""
        self._update, self._ended = update, ended
        self._known, self._taken = {}, set()
        self.figures = CacheFigures()

    def usable(
        self,
        trajectory: int,
        token_ids: Ids,
        first: int,
        *,
        opening: int,
        media: tuple[MediaRun, ...] = (),
    ) -> int:
        """Return how many of a sequence's `first` tokens this update can read.

        `opening` marks the first window, before which nothing is missing; `media`: its images."""
        if trajectory not in self._known:
            self._known[trajectory] = self._look_up(trajectory, token_ids, media)
            self._count(trajectory, first, later=first >= opening)
        return min(self._known[trajectory], first)

    def _look_up(self, trajectory: int, token_ids: Ids, media: tuple[MediaRun, ...]) -> int:
        entry = self._entries.get(trajectory)
        if entry is None:
            return 0
        size = min(entry.token_ids.size, token_ids.size)
        same = np.array_equal(entry.token_ids[:size], token_ids[:size])
        if not same or entry.media != media:
            self._drop(trajectory)
            return 0
        self._entries.move_to_end(trajectory)
        return size

    def _count(self, trajectory: int, first: int, *, later: bool) -> None:
        figures, used = self.figures, min(self._known[trajectory], first)
        figures.carried += used
        left = used
        for piece in self._entries[trajectory].pieces if used else []:
            tokens = min(left, piece.tokens)
            figures.age += tokens * (self._update - piece.update)
            left -= tokens
        if later:
            figures.hits += used == first
            figures.misses += used < first
            figures.recomputed += first - used

    def past(self, sources: Sequence[CacheSource], device: torch.device) -> "PackKeyValues":
        """Return the past of a pack of these sequences; each `begin` must be `usable`."""
        return PackKeyValues(self, sources, device)

    def pieces(self, trajectory: int) -> list[CachePiece]:
        """Return a trajectory's cached pieces, from its first token on."""
        return self._entries[trajectory].pieces

    def store(self, past: PastKeyValues | None) -> None:
        """Store a forward pass's keys and values, once per trajectory and update.

        Those that find no room beside what the update uses are not kept."""
        if not isinstance(past, PackKeyValues):
            return
        for source, layers in zip(past.sources, past.taken(), strict=True):
            trajectory = source.trajectory
            if trajectory not in self._taken and trajectory not in self._ended:
                self._taken.add(trajectory)
                self._extend(source, layers)

    def _extend(self, source: CacheSource, layers: list[KeysAndValues]) -> None:
        """Append the tokens of a pack's sequence that are not cached yet."""
        entry = self._entries.get(source.trajectory)
        known = 0 if entry is None else entry.token_ids.size
        skipped, tokens = known - source.begin, source.end - known
        size = sum(x[skipped:].nbytes for layer in layers for x in layer)
        if tokens <= 0 or not self._make_room(size):
            return
        stays = self._device_bytes + size <= self._on_device
        own = [(_copy(k[skipped:], stays), _copy(v[skipped:], stays)) for k, v in layers]
        if entry is None:
            entry = self._entries.setdefault(
                source.trajectory, CacheEntry(source.token_ids[:0], source.media)
            )
        entry.pieces.append(CachePiece(self._update, tokens, own))
        # A view would hold the message that it came in.
        entry.token_ids = source.token_ids[: source.end].copy()
        self._entries.move_to_end(source.trajectory)
        self._book(entry.pieces[-1], 1)

    def _make_room(self, size: int) -> bool:
        """Drop the least recently used trajectories that this update does not use."""
        while self.num_bytes + size > self._bound:
            idle = next((t for t in self._entries if t not in self._known), None)
            if idle is None:
                return False
            self._drop(idle)
        return True

    def end_update(self, *, sound: bool) -> None:
        """End the update; if it was broken off, drop its keys: they may not be finite."""
        for trajectory in self._taken if not sound else ():
            entry = self._entries.get(trajectory)
            if entry is not None and entry.pieces[-1].update == self._update:
                self._book(piece := entry.pieces.pop(), -1)
                entry.token_ids = entry.token_ids[: entry.token_ids.size - piece.tokens]
                if not entry.pieces:
                    del self._entries[trajectory]
        for trajectory in self._ended:
            self._drop(trajectory)

    def forget(self) -> None:
        """Drop all trajectories."""
        for trajectory in list(self._entries):
            self._drop(trajectory)

    def _drop(self, trajectory: int) -> None:
        entry = self._entries.pop(trajectory, None)
        for piece in entry.pieces if entry is not None else ():
            self._book(piece, -1)

    def _book(self, piece: CachePiece, sign: int) -> None:
        self.num_bytes += sign * piece.num_bytes
        if piece.layers[0][0].device != CPU:
            self._device_bytes += sign * piece.num_bytes


class PackKeyValues:
    """The `PastKeyValues` of one pack, until the cache has taken its keys and values."""

    def __init__(
        self, store: PrefixCache, sources: Sequence[CacheSource], device: torch.device
    ) -> None:
        self.sources = sources
        self._device = device
        self._pieces = [(store.pieces(s.trajectory), s.begin) for s in sources if s.begin]
        self._noted: dict[int, KeysAndValues] = {}
        self._is_open = True

    def read(self, layer: int) -> KeysAndValues:
        """[K, key heads, d] keys and values of the tokens before every sequence's `begin`."""
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for pieces, left in self._pieces:
            for piece in pieces:
                key, value = piece.layers[layer]
                keys.append(key[:left])
                values.append(value[:left])
                left = max(0, left - piece.tokens)
        return _joined(keys, self._device), _joined(values, self._device)

    def add_layer(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Hold a layer's keys and values until they are taken.

        Ignores a pass that computes them a second time (activation checkpointing does)."""
        if self._is_open:
            self._noted[layer] = key, value

    def taken(self) -> list[list[KeysAndValues]]:
        """Take each source's keys and values by layer; the pack then accepts no more."""
        layers = [self._noted[layer] for layer in sorted(self._noted)]
        found = [
            [(_at(k, source.places), _at(v, source.places)) for k, v in layers]
            for source in self.sources
        ]
        self._noted, self._is_open = {}, False
        return found


def _copy(x: Tensor, stays: bool) -> Tensor:
    """A tensor of its own: a view would hold all of its pack."""
    return x.to(x.device if stays else CPU, copy=True).contiguous()


def _at(rows: Tensor, places: Sequence[slice]) -> Tensor:
    parts = [rows[place] for place in places]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _joined(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.cat([part.to(device) for part in parts])
