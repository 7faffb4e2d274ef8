"""Answers as texts: those of a run's training groups, and how some begin."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from sqlalchemy import and_, select

from storage.database.reader import RunReader, open_run, read_config
from storage.database.tables import Trajectory
from storage.exports.chats import PromptChats, response_chats
from storage.exports.pages import pages, wanted_where
from storage.journal.responses import ResponseSelection, chunks_of
from storage.journal.segment_index import SegmentIndex
from storage.journal.segments import read_batches
from storage.text.detokenize import required_decoder, text_decoder

MAX_DISTANCE = 200_000
"""Maximum number of the journal's records read for a page: a tenth of a second."""
BEGINNING_TOKENS = 40
"""Tokens of an answer that are its beginning."""
_SEGMENT_INDEX = SegmentIndex()


class GroupAnswer(NamedTuple):
    """An answer, of an episode its last turn, and the prompt, both as rewards read them, and the
    verdict (None: not scored). `group_id` "": a file does not say; `finished`: not cut."""

    group_id: int | str
    prompt: str | list[dict[str, Any]]
    text: str
    correct: bool | None
    finished: bool = True


def group_answers(run_dir: Path) -> Iterator[GroupAnswer]:
    """Scored answers of training groups, as they ended. UserError: there is no tokenizer."""
    t = Trajectory
    scored = and_(t.purpose == "train", t.last_offset.is_not(None), t.correct.is_not(None))
    names = ("group_id", "prompt_id", "prompt", "correct", "status")
    with open_run(run_dir).moment() as reader:
        decoder, chats = required_decoder(run_dir), PromptChats(reader, ("images",))
        for page in pages(reader, wanted_where(reader, scored), names):
            columns, said = (page.scalars[name] for name in names), response_chats(page, decoder)
            for group, prompt, asked, ok, status, (chat, own) in zip(*columns, said, strict=True):
                text = chat[own[-1]]["content"] if own else ""
                asked = chats.asked(prompt, asked)
                yield GroupAnswer(group, asked, text, bool(ok), status == "finished")


def beginnings(run_dir: Path, ids: Sequence[int]) -> dict[int, str]:
    """The first tokens of these answers as text. Answers without tokens are left out; so are all
    without a tokenizer, or where they lie more than MAX_DISTANCE records apart."""
    reader, decoder = open_run(run_dir), text_decoder(run_dir)
    # What an environment says first comes before the answer's own tokens.
    has_turns = bool(read_config(run_dir).get("environment"))
    last = Trajectory.last_offset if has_turns else Trajectory.first_offset
    query = select(Trajectory.trajectory_id, Trajectory.first_offset, last).where(
        Trajectory.run == reader.key,
        Trajectory.trajectory_id.in_(ids),
        Trajectory.first_offset.is_not(None),
    )
    places = {key: (first, end) for key, first, end in reader.rows(query)}
    found: dict[int, str] = {}
    if decoder is None:
        return found
    for chunks in near_chunks(reader, places):
        names = ("trajectory_id", "lease_id", "token_ids")
        for key, lease, tokens in zip(
            *(chunks.column(name).to_pylist() for name in names), strict=True
        ):
            if lease >= 0 and tokens and key not in found:
                found[key] = decoder.text(np.array(tokens[:BEGINNING_TOKENS], np.int32))
    return found


def near_chunks(
    reader: RunReader, places: Mapping[int, tuple[int, int]]
) -> Iterator[pa.RecordBatch]:
    """Chunks of some trajectories between the first and last of `places` (offsets by id), in
    batches; none where these lie more than MAX_DISTANCE records apart."""
    first, last = (pick(chain(*places.values()), default=0) for pick in (min, max))
    if not places or last - first > MAX_DISTANCE:
        return
    wanted = ResponseSelection(np.array(sorted(places)), np.full(len(places), last))
    for batch in read_batches(reader.journal, first, _SEGMENT_INDEX):
        yield chunks_of(batch, wanted)
        if batch.column("offset")[batch.num_rows - 1].as_py() >= last:
            return
