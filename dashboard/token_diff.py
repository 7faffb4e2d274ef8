"""Where two answers to one prompt differ, token by token.

In: token ids. Out: which tokens of each the other does not have at that place. Pure.
"""

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

LONGEST = 1500
"""Tokens of an answer that are compared; behind them everything differs."""


class Difference(NamedTuple):
    """[T] bool each, the tokens that are in one answer alone; `same` are in both, the first
    `together` of them in one piece from the beginning. `compared`: how many of each were."""

    left: npt.NDArray[np.bool_]
    right: npt.NDArray[np.bool_]
    same: int
    together: int
    compared: int


def difference(left: Sequence[int], right: Sequence[int]) -> Difference:
    """Ratcliff and Obershelp's longest common pieces (`difflib`) of the first LONGEST tokens."""
    ours, theirs = list(left[:LONGEST]), list(right[:LONGEST])
    together = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    only_left, only_right = np.ones(len(left), bool), np.ones(len(right), bool)
    only_left[:together] = only_right[:together] = False
    matcher = SequenceMatcher(None, ours[together:], theirs[together:], autojunk=False)
    same = together
    for a, b, size in matcher.get_matching_blocks():
        only_left[together + a : together + a + size] = False
        only_right[together + b : together + b + size] = False
        same += size
    return Difference(only_left, only_right, same, together, min(LONGEST, len(left), len(right)))


def difference_text(found: Difference, left: int, right: int) -> str:
    """What differs between trajectories `left` and `right`, in a sentence."""
    only_left, only_right = int(found.left.sum()), int(found.right.sum())
    if not only_left and not only_right:
        return f"Both say the same, all {found.same:,} tokens."
    return (
        f"They begin with the same {found.together:,} tokens and share {found.same:,}; "
        f"{only_left:,} are in {left} alone and {only_right:,} in {right} alone (underlined)."
    )
