"""Responses put together from the chunks in the journal, many at a time, as columns.

In: the journal's folder and which trajectories are wanted. Out: the same responses, in the same
order, as `storage.responses.read_responses` gives one by one. Promise: one pass, and memory for a
page and for the responses that are still being put together.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage.responses import Wanted, chunks_of, last_offsets_of, streams_of
from storage.segments import read_batches
from storage.tokens import Responses, covered

Int64 = npt.NDArray[np.int64]


class FlatResponses(NamedTuple):
    """Responses and whose they are."""

    ids: Int64
    responses: Responses


def flat_responses(
    journal: Path, wanted: Wanted, most_tokens: int, most_rows: int
) -> Iterator[FlatResponses]:
    """Pages of at most so many responses, and of not many more than so many tokens."""
    if len(wanted.ids) == 0:
        return
    final = int(wanted.last_offsets.max())
    waiting: list[pa.RecordBatch] = []
    tokens = 0
    for batch in read_batches(journal):
        chosen = chunks_of(batch, wanted)
        if chosen.num_rows:
            waiting.append(chosen)
            tokens += len(chosen.column("token_ids").flatten())
        last = batch.column("offset")[batch.num_rows - 1].as_py()
        if waiting and (tokens >= most_tokens or last >= final):
            chunks = pa.concat_batches(waiting)
            ends = last_offsets_of(chunks, wanted)
            for page in _pages(chunks, ends, last, most_tokens, most_rows):
                yield _flat(page)
            waiting, tokens = [chunks.filter(pa.array(ends > last))], 0
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


def _flat(chunks: pa.RecordBatch) -> FlatResponses:
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
    responses = Responses(
        borders,
        token_ids,
        chunks.column("logprobs").flatten().to_numpy(),
        versions,
        streams_of(chunks, place),
    )
    return FlatResponses(whose[firsts], responses)
