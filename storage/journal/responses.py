"""Responses put together again from the chunks in the journal.

In: the journal's folder and which trajectories are wanted. Out: their responses, in the order in
which their last chunks were written, in pages of columns. One pass, and memory only for a page and
for twice the wanted responses that are still being put together.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.records.record_types import ChunkArrived
from headrace.protocol.token_spans import Float32, Int32, Piece, Streams
from headrace.trajectory.trajectories import add_pieces
from storage.journal.segment_index import SegmentIndex
from storage.journal.segments import read_batches
from storage.journal.store import decode

Int64 = npt.NDArray[np.int64]
_PAGE_TOKENS, _PAGE_ROWS = 1 << 17, 4096


class Responses(NamedTuple):
    """Several responses, the tokens of one after those of the other. Response i is that of
    trajectory ids[i] and has the tokens from borders[i] to borders[i + 1]; `streams` are those of
    responses that have any, by i."""

    ids: Int64
    borders: Int64
    token_ids: Int32
    logprobs: Float32
    """Behaviour logprobs; 0 where a token was inserted."""
    versions: Int64
    """Weight version that sampled each token; -1 where it was inserted."""
    streams: Mapping[int, Streams]
    """Without any the policy sampled every token, and nothing else is to be said of them."""


def no_tokens(ids: Sequence[int]) -> Responses:
    """Responses without tokens."""
    tokens = np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int64)
    return Responses(np.array(ids, np.int64), np.zeros(len(ids) + 1, np.int64), *tokens, {})


class ResponseSelection(NamedTuple):
    """Trajectories to put together: ids ascending, and the offset of each last chunk."""

    ids: npt.NDArray[np.int64]
    last_offsets: npt.NDArray[np.int64]


def response_pages(
    journal: Path,
    wanted: ResponseSelection,
    most_tokens: int = _PAGE_TOKENS,
    most_rows: int = _PAGE_ROWS,
    first_offset: int = 0,
    index: SegmentIndex | None = None,
) -> Iterator[Responses]:
    """Pages of the wanted trajectories, bounded by responses and, roughly, tokens; no chunk is
    before `first_offset`. `index`: as for `storage.journal.segments.read_batches`."""
    if len(wanted.ids) == 0:
        return
    final = int(wanted.last_offsets.max())
    waiting, tokens = list[pa.RecordBatch](), 0
    for batch in read_batches(journal, first_offset, index):
        chosen = chunks_of(batch, wanted)
        if chosen.num_rows:
            waiting.append(chosen)
            tokens += len(chosen.column("token_ids").flatten())
        last = batch.column("offset")[batch.num_rows - 1].as_py()
        if waiting and (tokens >= most_tokens or last >= final):
            chunks = pa.concat_batches(waiting)
            whose = np.searchsorted(wanted.ids, chunks.column("trajectory_id"))
            ends = wanted.last_offsets[whose]
            for page in _pages(chunks, ends, last, most_tokens, most_rows):
                yield _flat(page)
            waiting = [chunks.filter(pa.array(ends > last))]
            tokens = -len(waiting[0].column("token_ids").flatten())  # as many come before a copy
        if last >= final:
            return


def _pages(
    chunks: pa.RecordBatch, ends: Int64, last: int, most_tokens: int, most_rows: int
) -> Iterator[pa.RecordBatch]:
    """The chunks of responses that are whole, response by response."""
    offsets = chunks.column("offset").to_numpy()
    order = np.lexsort((offsets, ends))
    order = order[ends[order] <= last]
    if not len(order):
        return
    sizes = chunks.column("token_ids").value_lengths().to_numpy()[order]
    firsts = np.flatnonzero(np.diff(ends[order], prepend=-1))
    before = (np.cumsum(sizes) - sizes)[firsts].tolist()
    cuts = [0]
    for number, tokens in enumerate(before):
        if tokens - before[cuts[-1]] >= most_tokens or number - cuts[-1] >= most_rows:
            cuts.append(number)
    for first, end in pairwise([*firsts[cuts].tolist(), len(order)]):
        yield chunks.take(pa.array(order[first:end]))


def _flat(chunks: pa.RecordBatch) -> Responses:
    whose = chunks.column("trajectory_id").to_numpy()
    firsts = np.flatnonzero(np.diff(whose, prepend=whose[0] - 1))
    sizes = chunks.column("token_ids").value_lengths().to_numpy()
    borders = np.append(0, np.cumsum(np.add.reduceat(sizes, firsts, dtype=np.int64)))
    token_ids = chunks.column("token_ids").flatten().to_numpy()
    place = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(whose)))
    spans = chunks.column("spans")
    version, start, end = (field.to_numpy() for field in spans.flatten().flatten())
    base = borders[place].repeat(spans.value_lengths().to_numpy())
    versions = np.full(len(token_ids), -1, np.int64)
    versions[covered(base + start, base + end)] = np.repeat(version, end - start)
    return Responses(
        whose[firsts],
        borders,
        token_ids,
        chunks.column("logprobs").flatten().to_numpy(),
        versions,
        streams_of(chunks, place),
    )


def chunks_of(batch: pa.RecordBatch, wanted: ResponseSelection) -> pa.RecordBatch:
    """The rows of a batch that are chunks of wanted trajectories."""
    trajectories = batch.column("trajectory_id").fill_null(-1).to_numpy()
    places = np.searchsorted(wanted.ids, trajectories).clip(max=len(wanted.ids) - 1)
    is_chunk = pc.equal(batch.column("kind"), ChunkArrived.__name__).to_numpy(zero_copy_only=False)
    offsets = batch.column("offset").to_numpy()
    mask = (
        is_chunk & (wanted.ids[places] == trajectories) & (offsets <= wanted.last_offsets[places])
    )
    return batch.filter(pa.array(mask))


def streams_of(chunks: pa.RecordBatch, whose: npt.NDArray[np.int64]) -> dict[int, Streams]:
    """Streams of the responses that have any. `whose`: each chunk's response, rising."""
    spoken = np.isin(whose, whose[chunks.column("body").is_valid().to_numpy(zero_copy_only=False)])
    found: dict[int, Streams] = {}
    told = zip(whose[spoken].tolist(), decode(chunks.filter(pa.array(spoken))), strict=True)
    for response, records in groupby(told, key=lambda one: one[0]):
        own = _streams([chunk for _, (_, chunk) in records if isinstance(chunk, ChunkArrived)])
        if own is not None:
            found[response] = own
    return found


def _streams(chunks: list[ChunkArrived]) -> Streams | None:
    """The chunks' streams as one. Beside pieces, a chunk without them is the policy's."""
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
    """Pieces that cover the response."""
    joined: list[Piece] = []
    for chunk in chunks:
        pieces = chunk.streams.pieces if chunk.streams is not None else []
        add_pieces(joined, pieces, chunk.start, chunk.start + len(chunk.token_ids))
    return joined


def covered(starts: Int64, ends: Int64) -> Int64:
    """All positions in runs [start, end), run by run."""
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
