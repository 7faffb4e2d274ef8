"""Responses put together again from the chunks in the journal.

In: the journal's folder and which trajectories are wanted. Out: one Response a trajectory, in the
order in which their last chunks were written. One pass, and memory only for the wanted responses
that are still being put together.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.records import ChunkArrived
from headrace.protocol.streams import Float32, Int32, Piece, Streams
from storage.journal import decode
from storage.marks import Marks
from storage.segments import read_batches


class Response(NamedTuple):
    """Tokens of one response, [T] each, from position 0."""

    token_ids: Int32
    logprobs: Float32
    """Behaviour logprobs; 0 where a token was inserted."""
    versions: npt.NDArray[np.int64]
    """Weight version that sampled each token; -1 where it was inserted."""
    streams: Streams | None = None
    """None: the policy sampled every token, and nothing else is to be said of them."""


EMPTY = Response(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int64))


class Wanted(NamedTuple):
    """Which trajectories to put together: ids ascending, and where each one's last chunk is."""

    ids: npt.NDArray[np.int64]
    last_offsets: npt.NDArray[np.int64]


def read_responses(
    journal: Path, wanted: Wanted, first_offset: int = 0, marks: Marks | None = None
) -> Iterator[tuple[int, Response]]:
    """(trajectory_id, response) of each wanted trajectory; no chunk is before `first_offset`.
    `marks`: as for `storage.segments.read_batches`."""
    if len(wanted.ids) == 0:
        return
    final = int(wanted.last_offsets.max())
    parts: dict[int, list[ChunkArrived]] = {}
    for batch in read_batches(journal, first_offset, marks):
        chosen = chunks_of(batch, wanted)
        last_offsets = last_offsets_of(chosen, wanted).tolist()
        for (offset, chunk), last in zip(decode(chosen), last_offsets, strict=True):
            assert isinstance(chunk, ChunkArrived)
            parts.setdefault(chunk.trajectory_id, []).append(chunk)
            if offset == last:
                yield chunk.trajectory_id, _join(parts.pop(chunk.trajectory_id))
        if batch.column("offset")[batch.num_rows - 1].as_py() >= final:
            return


def chunks_of(batch: pa.RecordBatch, wanted: Wanted) -> pa.RecordBatch:
    """The rows of a batch that are chunks of wanted trajectories."""
    trajectories = batch.column("trajectory_id").fill_null(-1).to_numpy()
    places = np.searchsorted(wanted.ids, trajectories).clip(max=len(wanted.ids) - 1)
    is_chunk = pc.equal(batch.column("kind"), ChunkArrived.__name__).to_numpy(zero_copy_only=False)
    offsets = batch.column("offset").to_numpy()
    mask = (
        is_chunk & (wanted.ids[places] == trajectories) & (offsets <= wanted.last_offsets[places])
    )
    return batch.filter(pa.array(mask))


def last_offsets_of(chunks: pa.RecordBatch, wanted: Wanted) -> npt.NDArray[np.int64]:
    """For each chunk of a wanted trajectory, where the trajectory's last chunk is."""
    return wanted.last_offsets[np.searchsorted(wanted.ids, chunks.column("trajectory_id"))]


def streams_of(chunks: pa.RecordBatch, whose: npt.NDArray[np.int64]) -> dict[int, Streams]:
    """The streams of those responses that have any, by their number in `whose`, which says for each
    chunk which response it is of."""
    spoken = np.unique(whose[chunks.column("body").is_valid().to_numpy(zero_copy_only=False)])
    found: dict[int, Streams] = {}
    for response in spoken.tolist():
        records = decode(chunks.filter(pa.array(whose == response)))
        streams = _streams([chunk for _, chunk in records if isinstance(chunk, ChunkArrived)])
        if streams is not None:
            found[response] = streams
    return found


def _join(chunks: list[ChunkArrived]) -> Response:
    tokens: list[Any] = [chunk.token_ids for chunk in chunks]
    logprobs: list[Any] = [chunk.logprobs for chunk in chunks]
    token_ids = np.concatenate(tokens, dtype=np.int32)
    return Response(
        token_ids,
        np.concatenate(logprobs, dtype=np.float32),
        _versions(chunks, len(token_ids)),
        _streams(chunks),
    )


def _versions(chunks: list[ChunkArrived], size: int) -> npt.NDArray[np.int64]:
    spans = [span for chunk in chunks for span in chunk.spans]
    lengths = [span.end - span.start for span in spans]
    if sum(lengths) == size:
        return np.repeat(np.array([span.version for span in spans], np.int64), lengths)
    versions = np.full(size, -1, np.int64)
    for span in spans:
        versions[span.start : span.end] = span.version
    return versions


def _streams(chunks: list[ChunkArrived]) -> Streams | None:
    """The chunks' streams as one; where one chunk has pieces, those without are the policy's."""
    said = [chunk.streams for chunk in chunks if chunk.streams is not None]
    if not said:
        return None
    return Streams(
        pieces=_pieces(chunks) if any(streams.pieces for streams in said) else [],
        weights=[weight for streams in said for weight in streams.weights],
        rewards=[reward for streams in said for reward in streams.rewards],
        coefficients=[number for streams in said for number in streams.coefficients],
        marks=[mark for streams in said for mark in streams.marks],
    )


def _pieces(chunks: list[ChunkArrived]) -> list[Piece]:
    """Pieces that cover the response. A chunk without pieces holds tokens of the policy that
    continue the last turn."""
    joined: list[Piece] = []
    for chunk in chunks:
        pieces = chunk.streams.pieces if chunk.streams is not None else []
        if not pieces and len(chunk.token_ids):
            turn = joined[-1].turn if joined else 0
            end = chunk.start + len(chunk.token_ids)
            pieces = [Piece("policy", "assistant", turn, chunk.start, end)]
        for piece in pieces:
            last = joined[-1] if joined else None
            if last is not None and _kind(last) == _kind(piece):
                joined[-1] = msgspec.structs.replace(last, end=piece.end)
            else:
                joined.append(piece)
    return joined


def _kind(piece: Piece) -> tuple[Any, ...]:
    return piece.source, piece.role, piece.turn, piece.media
