"""Everything known about each token of some responses, in arrays of one length.

In: responses, their rows of the windows table, what the learner saw of them. Out: arrays of one
length. What happened to a token is read from what was written down: nothing is inferred. Where a
token was not trained (yet) its update is -1, and what the learner did not report is NaN.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import msgspec
import numpy as np
import numpy.typing as npt
from sqlalchemy import Text, cast

from headrace.protocol.messages.diagnostics import COLUMN_NAMES
from headrace.protocol.records.record_types import DropReason
from headrace.protocol.token_spans import Float32, Int32, MarkName, Source, Speaker, Streams
from storage.database.tables import Window
from storage.journal.diagnostics import DiagnosticsReader
from storage.journal.responses import Int64, Responses, covered

Codes = npt.NDArray[np.int8]
"""Places in a tuple of names; -1: none."""
SOURCES: tuple[str, ...] = get_args(Source)
ROLES: tuple[str, ...] = get_args(Speaker)
MARKS: tuple[str, ...] = get_args(MarkName)
REASONS: tuple[str, ...] = get_args(DropReason)
_REASONS = {reason: code for code, reason in enumerate(REASONS)}
WINDOW = (
    Window.trajectory_id, Window.start, Window.end, Window.index, Window.state, Window.reason,
    Window.update, cast(Window.masked, Text), Window.lineage, Window.window_id,
)  # fmt: skip
"""Columns of a window's row, as `token_table` takes them."""


class TokenTable(NamedTuple):
    """Arrays with one entry per token, [T] each."""

    token_ids: Int32
    logprobs: Float32
    versions: Int64
    """-1: not sampled."""
    sources: Codes
    """The token's author, of SOURCES."""
    turns: Int32
    roles: Codes
    """Who says it in the conversation, of ROLES."""
    marks: Codes
    """The mark on its sampling, of MARKS."""
    loss_weights: Float32
    """Its weight in a loss that it is in; 0 where it was not sampled."""
    window_index: Int32
    """-1: in no complete window."""
    trained_at_update: Int64
    """The update that trained its window; -1: none."""
    loss_mask: npt.NDArray[np.uint8]
    """1: the token was in the policy loss of a committed update."""
    mask_reasons: Codes
    """The reason that keeps it out of every loss, of REASONS."""
    figures: dict[str, Float32]
    """The learner's figures, by the names of `headrace.protocol.messages.diagnostics`."""


def token_table(
    responses: Responses, windows: Sequence[Any], seen: DiagnosticsReader | None = None
) -> TokenTable:
    """Join responses with their windows (rows of WINDOW) and what the learner saw of them."""
    size = len(responses.token_ids)
    sampled = responses.versions >= 0
    table = TokenTable(
        responses.token_ids,
        responses.logprobs,
        responses.versions,
        sources=np.full(size, SOURCES.index("policy"), np.int8),
        turns=np.zeros(size, np.int32),
        roles=np.full(size, ROLES.index("assistant"), np.int8),
        marks=np.full(size, -1, np.int8),
        loss_weights=sampled.astype(np.float32),
        window_index=np.full(size, -1, np.int32),
        trained_at_update=np.full(size, -1, np.int64),
        loss_mask=np.zeros(size, np.uint8),
        mask_reasons=np.full(size, -1, np.int8),
        figures={name: np.full(size, np.nan, np.float32) for name in COLUMN_NAMES},
    )
    for place, streams in responses.streams.items():
        _say(table, streams, int(responses.borders[place]))
    _place(table, responses, windows, seen)
    if not sampled.all():
        table.loss_mask[~sampled] = 0
        table.mask_reasons[~sampled] = -1
        table.loss_weights[~sampled] = 0
    return table


def _place(
    table: TokenTable, responses: Responses, windows: Sequence[Any], seen: DiagnosticsReader | None
) -> None:
    """Write rows of windows on the tokens that they are of."""
    columns = list(zip(*windows, strict=True)) or [()] * len(WINDOW)
    keys, starts, ends, numbers, states, reasons, updates, masked, lineages, window_ids = columns
    order = {key: place for place, key in enumerate(responses.ids.tolist())}
    whose = np.array([order[key] for key in keys], np.int64)
    firsts, lasts = responses.borders[whose], responses.borders[whose + 1]
    begins = np.minimum(firsts + np.array(starts, np.int64), lasts)
    lengths = np.minimum(firsts + np.array(ends, np.int64), lasts) - begins
    trained = np.array([state == "trained" for state in states], bool)
    trained_at = np.array([-1 if update is None else update for update in updates], np.int64)
    dropped = np.array(
        [
            _REASONS[reason] if state == "dropped" and reason else -1
            for state, reason in zip(states, reasons, strict=True)
        ],
        np.int8,
    )
    here = covered(begins, begins + lengths)
    table.window_index[here] = np.repeat(np.array(numbers, np.int64), lengths)
    table.trained_at_update[here] = np.repeat(np.where(trained, trained_at, -1), lengths)
    table.loss_mask[here] = np.repeat(trained, lengths)
    table.mask_reasons[here] = np.repeat(dropped, lengths)
    places = np.flatnonzero(trained)
    masks = msgspec.json.decode(f"[{','.join(masked)}]")
    left_out = [
        (place, start, end, _REASONS[reason])
        for place in places.tolist()
        for reason, start, end, _ in masks[place]
    ]
    if left_out:
        runs = np.array(left_out, np.int64)
        runs[:, 1:3] += firsts[runs[:, 0], None]
        runs = runs[:, 1:]
        kept_out = covered(runs[:, 0], runs[:, 1])
        table.loss_mask[kept_out] = 0
        table.mask_reasons[kept_out] = np.repeat(runs[:, 2], runs[:, 1] - runs[:, 0])
    if seen is not None:
        wanted = [(lineages[place], updates[place], window_ids[place]) for place in places.tolist()]
        for found in seen.read_columns(np.array(wanted, np.int64).reshape(-1, 3)):
            first = begins[places[found.places]]
            for name, (counts, values) in found.figures.items():
                table.figures[name][covered(first, first + counts)] = values


def _say(table: TokenTable, streams: Streams, first: int) -> None:
    """Turn runs into one entry for each token of the response that begins at `first`."""
    for piece in streams.pieces:
        here = slice(first + piece.start, first + piece.end)
        table.sources[here] = SOURCES.index(piece.source)
        table.turns[here] = piece.turn
        table.roles[here] = ROLES.index(piece.role)
    for weight in streams.weights:
        table.loss_weights[first + weight.start : first + weight.end] = weight.value
    for mark in streams.marks:
        table.marks[first + mark.start : first + mark.end] = MARKS.index(mark.name)
