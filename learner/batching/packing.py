"""Packing of sequences into forward passes, and their split over optimizer steps.

In: lengths of sequences and a budget of tokens. Out: lists of sequence indices. Promises: every
sequence is in exactly one pack; a pack is over the budget only if one sequence alone is; the same
lengths give the same packs on every machine. No tensors, no model.
"""

from collections.abc import Sequence
from heapq import heapreplace

import numpy as np
import numpy.typing as npt


def pack_sequences(lengths: Sequence[int], *, budget: int) -> list[list[int]]:
    """Sequence indices of each pack, by first-fit decreasing.

    Args:
        lengths: tokens of each sequence, all positive. budget: maximum tokens of a pack; a longer
        sequence has a pack to itself.

    Returns:
        Packs of indices into `lengths`, longest sequence first, so that neighbours in a pack have
        similar lengths. At most 11/9 of the least possible number of packs, plus one (Dosa 2007).

    Raises:
        ValueError: a length is not positive, or the budget is not.
    """
    if budget <= 0:
        raise ValueError(f"budget must be positive, got {budget}")
    if any(length <= 0 for length in lengths):
        raise ValueError("every sequence needs at least one token")
    packs: list[list[int]] = []
    room: list[int] = []
    first_with_room = 0
    shortest = min(lengths, default=0)
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        while first_with_room < len(packs) and room[first_with_room] < shortest:
            first_with_room += 1
        for pack in range(first_with_room, len(packs)):
            if room[pack] >= length:
                packs[pack].append(index)
                room[pack] -= length
                break
        else:
            packs.append([index])
            room.append(budget - length)
    return packs


def balanced_parts(weights: Sequence[int], *, parts: int, order: Sequence[int]) -> list[int]:
    """The part of each item, so that the parts' weights are nearly equal.

    Items are dealt in `order`, each to the lightest part. With at least `parts` items no part
    stays empty, as long as all weights are positive."""
    heap = [(0, part) for part in range(parts)]
    chosen = [0] * len(weights)
    for item in order:
        weight, part = heap[0]
        chosen[item] = part
        heapreplace(heap, (weight + weights[item], part))
    return chosen


def ranges(starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """start, start + 1, ..., start + count - 1 of each range, end to end."""
    before = np.cumsum(counts) - counts
    return np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(starts - before, counts)
