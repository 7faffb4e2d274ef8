"""Everything known about each token of a response, in arrays of one length.

In: the response, its rows of the windows table, what the learner saw of them. Out: arrays of one
length. What happened to a token is read from what was written down: nothing is inferred. Where a
token was not trained (yet) its update is -1, and what the learner did not report is NaN.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from headrace.protocol.diagnostics import COLUMN_NAMES, TokenDiagnostics
from headrace.protocol.records import DropReason
from headrace.protocol.streams import Float32, Int32, MarkName, Source, Streams
from storage.diagnostics import WindowKey
from storage.responses import Response

Int64 = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]
"""Places in a tuple of names; -1: none."""
SOURCES: tuple[str, ...] = get_args(Source)
MARKS: tuple[str, ...] = get_args(MarkName)
REASONS: tuple[str, ...] = get_args(DropReason)


class TokenTable(NamedTuple):
    """One entry a token, [T] each."""

    token_ids: Int32
    logprobs: Float32
    versions: Int64
    """-1: not sampled."""
    sources: Codes
    """Who wrote it, of SOURCES."""
    turns: Int32
    marks: Codes
    """What is special about how it was made, of MARKS."""
    loss_weights: Float32
    """How much it counts in a loss that it is in; 0 where it was not sampled."""
    window_index: Int32
    """-1: in no complete window."""
    trained_at_update: Int64
    """The update that trained its window; -1: none."""
    loss_mask: npt.NDArray[np.uint8]
    """1: the token was in the policy loss of a committed update."""
    mask_reasons: Codes
    """Why it is kept out of every loss, of REASONS."""
    figures: dict[str, Float32]
    """What the learner reported, by the names of `headrace.protocol.diagnostics`."""


def names_of(codes: Codes, names: tuple[str, ...]) -> npt.NDArray[np.object_]:
    """Codes as the names they stand for, None for none."""
    return np.array([*names, None], dtype=np.object_)[codes]


def token_table(
    response: Response,
    windows: Sequence[Any],
    diagnostics: Mapping[WindowKey, TokenDiagnostics],
) -> TokenTable:
    """Join a response with rows of the windows table and their diagnostics."""
    size = len(response.token_ids)
    sampled = response.versions >= 0
    table = TokenTable(
        response.token_ids,
        response.logprobs,
        response.versions,
        sources=np.full(size, SOURCES.index("policy"), np.int8),
        turns=np.zeros(size, np.int32),
        marks=np.full(size, -1, np.int8),
        loss_weights=sampled.astype(np.float32),
        window_index=np.full(size, -1, np.int32),
        trained_at_update=np.full(size, -1, np.int64),
        loss_mask=np.zeros(size, np.uint8),
        mask_reasons=np.full(size, -1, np.int8),
        figures={name: np.full(size, np.nan, np.float32) for name in COLUMN_NAMES},
    )
    if response.streams is not None:
        _say(table, response.streams)
    for window in windows:
        here = slice(window.start, window.end)
        table.window_index[here] = window.index
        if window.state == "dropped":
            table.mask_reasons[here] = REASONS.index(window.reason)
        if window.state != "trained":
            continue
        table.trained_at_update[here] = window.update
        table.loss_mask[here] = 1
        for reason, start, end, _ in window.masked:
            table.loss_mask[start:end] = 0
            table.mask_reasons[start:end] = REASONS.index(reason)
        seen = diagnostics.get((window.lineage, window.update, window.window_id))
        for name, values in seen.columns.items() if seen is not None else ():
            table.figures[name][here] = values
    if not sampled.all():
        table.loss_mask[~sampled] = 0
        table.mask_reasons[~sampled] = -1
        table.loss_weights[~sampled] = 0
    return table


def _say(table: TokenTable, streams: Streams) -> None:
    """Turn runs into one entry for each token."""
    for piece in streams.pieces:
        table.sources[piece.start : piece.end] = SOURCES.index(piece.source)
        table.turns[piece.start : piece.end] = piece.turn
    for weight in streams.weights:
        table.loss_weights[weight.start : weight.end] = weight.value
    for mark in streams.marks:
        table.marks[mark.start : mark.end] = MARKS.index(mark.name)
