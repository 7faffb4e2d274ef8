"""Keys and values of a trajectory's earlier tokens, carried from one update to the next.

In: what a model's attention computes for the tokens of a pack. Out: `Past`, from which a later
pack's attention reads it instead of computing it again. Promises: what is read belongs to the very
tokens that stand before the pack's; a tensor is kept once, from the first forward pass that
computed it in its update; all of it never takes more than `bound` bytes; within an update the
answer to what is there stays the same; what is there depends on the batches alone, and not on time.

Keys are rotated to their places before they come here, so a reader computes its own tokens at
absolute places as well.
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
from learner.batching.layout import Past

Ids = npt.NDArray[np.int32]
KeysAndValues = tuple[Tensor, Tensor]
"""[n, key heads, d] each, of one layer."""
CPU = torch.device("cpu")


class Piece(NamedTuple):
    """What one update computed of a trajectory: n tokens, by layer."""

    update: int
    tokens: int
    layers: list[KeysAndValues]

    @property
    def num_bytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(x.nbytes for layer in self.layers for x in layer)


@dataclass
class Entry:
    """What is kept of a trajectory: its first tokens without a gap, and the images among them."""

    token_ids: Ids
    media: tuple[MediaRun, ...] = ()
    pieces: list[Piece] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Bytes of all its pieces."""
        return sum(piece.num_bytes for piece in self.pieces)


@dataclass
class Figures:
    """What one update found.

    Attributes:
        hits: sequences beyond their first window whose context was there, all of it. misses: such
        sequences of which some context had to be computed. recomputed: the tokens of that context.
        carried: tokens whose keys and values were read. age: updates between the computing of these
        and their use, summed over tokens.
    """

    hits: int = 0
    misses: int = 0
    recomputed: int = 0
    carried: int = 0
    age: int = 0


class Source(NamedTuple):
    """Tokens [begin, end) of a trajectory in a pack; what stands before `begin` is read. They are
    the pack's at `places`, end to end."""

    trajectory: int
    token_ids: Ids
    begin: int
    end: int
    places: tuple[slice, ...]
    media: tuple[MediaRun, ...] = ()


class PrefixCache:
    """The keys and values of one model on one rank.

    Attributes:
        num_bytes: of all that is kept. figures: of the present update.
    """

    def __init__(self, *, bound: int, on_device: int = 0) -> None:
        """`bound`: most bytes; of these, up to `on_device` stay where they were computed, the
        others go to the host's memory."""
        self._bound, self._on_device = bound, on_device
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._update = 0
        self._ended: Collection[int] = ()
        self._known: dict[int, int] = {}
        self._taken: set[int] = set()
        self.num_bytes = self._device_bytes = 0
        self.figures = Figures()

    def __len__(self) -> int:
        """How many trajectories there are keys of."""
        return len(self._entries)

    # -- an update ---------------------------------------------------------------------------------

    def begin_update(self, update: int, ended: Collection[int]) -> None:
        """A new update, after which nobody asks for the trajectories that have `ended`."""
        self._update, self._ended = update, ended
        self._known, self._taken = {}, set()
        self.figures = Figures()

    def usable(
        self,
        trajectory: int,
        token_ids: Ids,
        first: int,
        *,
        opening: int,
        media: tuple[MediaRun, ...] = (),
    ) -> int:
        """How many of a sequence's `first` tokens need not be computed again in this update.
        `opening` marks the first window, before which nothing can be missing; `media` are the
        images in it."""
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

    def past(self, sources: Sequence[Source], device: torch.device) -> "PackPast":
        """What a pack of these sequences, each `begin` of which is `usable`, reads and notes."""
        return PackPast(self, sources, device)

    def pieces(self, trajectory: int) -> list[Piece]:
        """What is kept of a trajectory, from its first token on."""
        return self._entries[trajectory].pieces

    def store(self, past: Past | None) -> None:
        """Keep what a forward pass has noted, of trajectories of which this update has kept nothing
        yet. Whatever finds no room beside what the update uses is not kept."""
        if not isinstance(past, PackPast):
            return
        for source, layers in zip(past.sources, past.taken(), strict=True):
            trajectory = source.trajectory
            if trajectory not in self._taken and trajectory not in self._ended:
                self._taken.add(trajectory)
                self._extend(source, layers)

    def _extend(self, source: Source, layers: list[KeysAndValues]) -> None:
        """Append the tokens of a pack's sequence that are not known yet."""
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
                source.trajectory, Entry(source.token_ids[:0], source.media)
            )
        entry.pieces.append(Piece(self._update, tokens, own))
        # A view would hold the message that it came in.
        entry.token_ids = source.token_ids[: source.end].copy()
        self._entries.move_to_end(source.trajectory)
        self._book(entry.pieces[-1], 1)

    def _make_room(self, size: int) -> bool:
        """Let go what was used longest ago and is not used in this update."""
        while self.num_bytes + size > self._bound:
            idle = next((t for t in self._entries if t not in self._known), None)
            if idle is None:
                return False
            self._drop(idle)
        return True

    def end_update(self, *, sound: bool) -> None:
        """The update is over. Keys from an update that was broken off are not kept: they may be
        what was not finite."""
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
        """Keep nothing."""
        for trajectory in list(self._entries):
            self._drop(trajectory)

    def _drop(self, trajectory: int) -> None:
        entry = self._entries.pop(trajectory, None)
        for piece in entry.pieces if entry is not None else ():
            self._book(piece, -1)

    def _book(self, piece: Piece, sign: int) -> None:
        self.num_bytes += sign * piece.num_bytes
        if piece.layers[0][0].device != CPU:
            self._device_bytes += sign * piece.num_bytes


class PackPast:
    """The `Past` of one pack, until the store has taken what was noted."""

    def __init__(self, store: PrefixCache, sources: Sequence[Source], device: torch.device) -> None:
        self.sources = sources
        self._device = device
        self._pieces = [(store.pieces(s.trajectory), s.begin) for s in sources if s.begin]
        self._noted: dict[int, KeysAndValues] = {}
        self._is_open = True

    def read(self, layer: int) -> KeysAndValues:
        """[K, key heads, d] each, of the tokens before every sequence's `begin`."""
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
        """Hold a layer's keys and values until they are taken. A pass that computes them a second
        time (activation checkpointing does) is not heard."""
        if self._is_open:
            self._noted[layer] = key, value

    def taken(self) -> list[list[KeysAndValues]]:
        """For each source the keys and values of its tokens, layer by layer; afterwards the pack
        holds and hears nothing more."""
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
