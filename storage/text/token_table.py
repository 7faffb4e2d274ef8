"""Everything known about each token of a response, or of several, in arrays of one length.

In: responses, their rows of the windows table, what the learner saw of them. Out: arrays of one
length. What happened to a token is read from what was written down: nothing is inferred. Where a
token was not trained (yet) its update is -1, and what the learner did not report is NaN.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from headrace.protocol.messages.diagnostics import COLUMN_NAMES, TokenDiagnostics
from headrace.protocol.records.record_types import DropReason
from headrace.protocol.token_spans import Float32, Int32, MarkName, Source, Speaker, Streams
from storage.journal.diagnostics import WindowDiagnostics, WindowKey
from storage.journal.responses import Int64, Response, Responses, covered

Codes = npt.NDArray[np.int8]
"""Places in a tuple of names; -1: none."""
SOURCES: tuple[str, ...] = get_args(Source)
ROLES: tuple[str, ...] = get_args(Speaker)
MARKS: tuple[str, ...] = get_args(MarkName)
REASONS: tuple[str, ...] = get_args(DropReason)
_REASONS = {reason: code for code, reason in enumerate(REASONS)}


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


class WindowColumns(NamedTuple):
    """Rows of the windows table as columns. `whose`: the response's place; `numbers`: the window's
    in it."""

    whose: Int64
    starts: Int64
    ends: Int64
    numbers: Int64
    states: Sequence[str]
    reasons: Sequence[str | None]
    updates: Sequence[int | None]
    masked: Sequence[Sequence[Any]]


def token_table(
    response: Response, windows: Sequence[Any], diagnostics: Mapping[WindowKey, TokenDiagnostics]
) -> TokenTable:
    """Join a response with rows of the windows table and their diagnostics."""
    responses = Responses(
        np.array([0, len(response.token_ids)]),
        response.token_ids,
        response.logprobs,
        response.versions,
        {} if response.streams is None else {0: response.streams},
    )
    rows = WindowColumns(
        np.zeros(len(windows), np.int64),
        np.array([window.start for window in windows], np.int64),
        np.array([window.end for window in windows], np.int64),
        np.array([window.index for window in windows], np.int64),
        [window.state for window in windows],
        [window.reason for window in windows],
        [window.update for window in windows],
        [window.masked for window in windows],
    )
    keys = [(window.lineage, window.update, window.window_id) for window in windows]
    seen = [
        WindowDiagnostics(
            np.array([place]),
            {
                name: (np.array([len(values)]), values)
                for name, values in diagnostics[key].columns.items()
            },
        )
        for place, key in enumerate(keys)
        if rows.states[place] == "trained" and key in diagnostics
    ]
    return token_tables(responses, rows, seen)


def token_tables(
    responses: Responses, windows: WindowColumns, seen: Iterable[WindowDiagnostics]
) -> TokenTable:
    """Join responses, one after the other, with their window rows and diagnostics."""
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
    _place(table, responses.borders, windows, seen)
    if not sampled.all():
        table.loss_mask[~sampled] = 0
        table.mask_reasons[~sampled] = -1
        table.loss_weights[~sampled] = 0
    return table


def _place(
    table: TokenTable, borders: Int64, windows: WindowColumns, seen: Iterable[WindowDiagnostics]
) -> None:
    """Write rows of windows on the tokens that they are of."""
    firsts, lasts = borders[windows.whose], borders[windows.whose + 1]
    starts = np.minimum(firsts + windows.starts, lasts)
    ends = np.minimum(firsts + windows.ends, lasts)
    trained = np.array([state == "trained" for state in windows.states], bool)
    updates = np.array([-1 if update is None else update for update in windows.updates], np.int64)
    reasons = np.array(
        [
            _REASONS[reason] if state == "dropped" and reason else -1
            for state, reason in zip(windows.states, windows.reasons, strict=True)
        ],
        np.int8,
    )
    here, lengths = covered(starts, ends), ends - starts
    table.window_index[here] = np.repeat(windows.numbers, lengths)
    table.trained_at_update[here] = np.repeat(np.where(trained, updates, -1), lengths)
    table.loss_mask[here] = np.repeat(trained, lengths)
    table.mask_reasons[here] = np.repeat(reasons, lengths)
    masked = [
        (place, start, end, _REASONS[reason])
        for place in np.flatnonzero(trained).tolist()
        for reason, start, end, _ in windows.masked[place]
    ]
    if masked:
        runs = np.array(masked, np.int64)
        runs[:, 1:3] += firsts[runs[:, 0], None]
        runs = runs[:, 1:]
        kept_out = covered(runs[:, 0], runs[:, 1])
        table.loss_mask[kept_out] = 0
        table.mask_reasons[kept_out] = np.repeat(runs[:, 2], runs[:, 1] - runs[:, 0])
    for places, figures in seen:
        for name, (counts, values) in figures.items():
            table.figures[name][covered(starts[places], starts[places] + counts)] = values


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
