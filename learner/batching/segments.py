"""Segments: tokens of several windows laid end to end, and their bounds.

In: lengths of windows and facts about their trajectories. Out: `Segments`, and figures of every
token that follow from it. Promise: nothing here mixes tokens of two windows, whatever their values
are (a NaN in one window never reaches another).

Legend: T tokens in the pack, S windows (a window may also be a whole trajectory).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Segments(NamedTuple):
    """Bounds of a pack's windows, and facts about each.

    Attributes:
        cu_lengths: [S+1] int64, cumulative lengths; window i is tokens cu[i] to cu[i+1] - 1.
        finished: [S] bool, True if the trajectory ends here (end token or length cap).
        length_so_far: [S] int64, response tokens of the trajectory up to the end of this window.
        lam: [S] float64, the lambda of the policy's advantages. bootstrap_value: [S] what stands in
        for V(s_l), the state after the last token, or None; read only where a window is cut. With
        the boundary "bootstrap" the critic's value; with "outcome" the return that came, NaN where
        it is not known.
    """

    cu_lengths: Tensor
    finished: Tensor
    length_so_far: Tensor
    lam: Tensor
    bootstrap_value: Tensor | None = None


def segments_of(
    lengths: Sequence[int],
    *,
    finished: Sequence[bool],
    lam: float | Sequence[float] | Tensor = 1.0,
    length_so_far: Sequence[int] | None = None,
    bootstrap_value: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> Segments:
    """Build segments from lists; no `length_so_far`: windows are the first ones."""
    num_segments = len(lengths)
    cumulative = torch.zeros(num_segments + 1, dtype=torch.int64)
    cumulative[1:] = torch.tensor(list(lengths), dtype=torch.int64).cumsum(0)
    lambdas = torch.as_tensor(lam, dtype=torch.float64).expand(num_segments)
    so_far = lengths if length_so_far is None else length_so_far
    return Segments(
        cu_lengths=cumulative.to(device),
        finished=torch.tensor(list(finished), dtype=torch.bool, device=device),
        length_so_far=torch.tensor(list(so_far), dtype=torch.int64, device=device),
        lam=lambdas.to(device),
        bootstrap_value=bootstrap_value,
    )


def segment_lengths(segments: Segments) -> Tensor:
    """[S] tokens of each window."""
    return segments.cu_lengths.diff()


def segment_ids(segments: Segments) -> Tensor:
    """[T] the index of each token's window."""
    lengths = segment_lengths(segments)
    return torch.repeat_interleave(torch.arange(lengths.numel(), device=lengths.device), lengths)


def tokens_left(segments: Segments) -> Tensor:
    """[T] number of tokens that follow each token in its window; 0 at the last."""
    ids = segment_ids(segments)
    last = segments.cu_lengths[1:] - 1
    return last[ids] - torch.arange(ids.numel(), device=ids.device)


def trajectory_positions(segments: Segments) -> Tensor:
    """[T] each token's position in its whole response, from 0."""
    return segments.length_so_far[segment_ids(segments)] - 1 - tokens_left(segments)


def segment_sums(x: Tensor, ids: Tensor, num_segments: int) -> Tensor:
    """[S] float64: the sum of x [T] over each window's tokens, given their ids [T]."""
    sums = torch.zeros(num_segments, dtype=torch.float64, device=x.device)
    return sums.index_add(0, ids, x.to(torch.float64))


def discounted_suffix_sums(x: Tensor, decay: Tensor, left: Tensor) -> Tensor:
    """y_t = sum_{k=0}^{left_t} decay_t^k x_{t+k}, for all tokens at once.

    Args:
        x: [T] the terms. decay: [T] constant inside each window. left: [T] int, `tokens_left`.

    By doubling: a sum over 2n terms is the sum over the first n plus decay^n times the sum over
    the next n. It takes log2(longest window) steps over the whole pack where the backward
    recursion takes one per token, and each window sees the same additions in any pack.
    """
    total, factor, step = x, decay, 1
    longest = int(left.max()) + 1 if left.numel() else 0
    while step < longest:
        ahead = torch.zeros_like(total)
        ahead[:-step] = total[step:]
        total = total + torch.where(left >= step, factor * ahead, 0.0)
        factor = factor * factor
        step *= 2
    return total
