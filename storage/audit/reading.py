"""A reader of the journal that checks every checksum and every value.

In: a journal's folder. Out: records with their offset, up to the first byte or record that cannot
be used: one that no coordinator can apply, no database hold or no learner compute with. Promise:
nothing behind such a place is read, and the finding says where it is.
"""

import math
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from headrace.protocol.records import record_types as r
from storage.audit.findings import Findings
from storage.journal.record_batches import SegmentWalk
from storage.journal.segments import rows_before, segment_paths
from storage.journal.store import decode

UNREADABLE = (
    msgspec.MsgspecError, pa.ArrowException, AssertionError, AttributeError, IndexError, KeyError,
    OverflowError, TypeError, ValueError,
)  # fmt: skip
"""Errors that decoding a malformed record can raise."""
LARGEST_INTEGER = 2**63 - 1
"""The largest number of a 64-bit column."""
LARGEST_VERSION = 2**62
LARGEST_POSITION = 2**31 - 1
_FIGURES = (r.UpdateCommitted.__name__, r.MetricsSampled.__name__)


class JournalSurvey(NamedTuple):
    """The whole part of a journal.

    Attributes:
        end: the first offset that it does not hold. figures_at: offset of the last record with the
        coordinator's ledger; -1: there is none. last_batch: the last batch's first offset.
    """

    end: int
    figures_at: int
    last_batch: int


class JournalRecord(NamedTuple):
    """A record and its place."""

    offset: int
    record: r.Record


def survey(folder: Path, findings: Findings, *, growing: bool) -> JournalSurvey:
    """Check every byte of a journal. `growing`: its last batch may be in progress."""
    paths = segment_paths(folder)
    end, figures_at, last_batch = 0, -1, 0
    digest: str | None = None
    if not paths:
        findings.add("journal", folder.name, "holds no segment: there is nothing to count")
    for path, later in zip_longest(paths, paths[1:]):
        if rows_before(path) not in (-1, end):
            text = f"begins with record {rows_before(path)} where {end} is the next"
            findings.add("journal", path.name, text)
            break
        walk = SegmentWalk(path)
        for frame in walk:
            if digest is not None and frame.after != digest:
                text = "a batch does not follow what stands before it"
                findings.add("journal", f"{path.name} at byte {frame.position}", text)
                return JournalSurvey(end, figures_at, last_batch)
            last_batch, digest = end, frame.digest
            figures_at = max(figures_at, _last_figures(frame.batch, end))
            end += frame.batch.num_rows
        if not _is_sound(walk, findings, is_last=later is None, growing=growing) and (
            later is None or rows_before(later) != end
        ):
            break
    return JournalSurvey(end, figures_at, last_batch)


def _is_sound(walk: SegmentWalk, findings: Findings, *, is_last: bool, growing: bool) -> bool:
    """Return whether the bytes of a segment behind its last whole batch are sound."""
    ending = walk.ending()
    if is_last and growing and ending == "damaged":  # or it has grown meanwhile
        ending = "damaged" if SegmentWalk(walk.path).done().end == walk.end else "open"
    if ending in ("sealed", "open") or (is_last and growing and ending == "torn"):
        return True
    size = walk.path.stat().st_size - walk.end
    where = f"{walk.path.name} at byte {walk.end}"
    if is_last and ending == "torn":
        text = f"{size:,} bytes of a write that never came to its end: the next resume cuts them"
        findings.add("torn", where, text)
    else:
        text = f"{size:,} bytes are no whole batch: cut off, or changed since they were written"
        findings.add("damaged", where, text)
    return False


def _last_figures(batch: pa.RecordBatch, first: int) -> int:
    """Offset of the batch's last record with the coordinator's ledger in it, or -1."""
    kinds = batch.column("kind").to_pylist()
    for row in range(len(kinds) - 1, -1, -1):
        if kinds[row] in _FIGURES and b"ledger/generated" in batch.column("body")[row].as_py():
            return first + row
    return -1


class UsableRecords:
    """The usable records of a journal before offset `end`.

    Attributes:
        reached: all records before this offset were usable. problem: why the one at `reached` is
        not; None where there is no such one.
    """

    def __init__(self, folder: Path, end: int) -> None:
        self._folder = folder
        self._end = end
        self.reached = 0
        self.problem: str | None = None

    def __iter__(self) -> Iterator[JournalRecord]:
        for path in segment_paths(self._folder):
            for frame in SegmentWalk(path):
                pairs = decode(frame.batch)
                for _ in range(frame.batch.num_rows):
                    if self.reached >= self._end:
                        return
                    record = self._next(pairs)
                    if record is None:
                        return
                    yield JournalRecord(self.reached, record)
                    self.reached += 1

    def _next(self, pairs: Iterator[tuple[int, r.Record]]) -> r.Record | None:
        """The next record; None where it cannot be used."""
        try:
            offset, record = next(pairs)
            if offset != self.reached:
                self.problem = f"it says that it is record {offset}"
            elif problem := problem_of(record):
                self.problem = f"{type(record).__name__}: {problem}"
            else:
                return record
        except UNREADABLE as error:
            self.problem = f"it cannot be read: {error!r}".splitlines()[0]
        return None


# -- values that no record may hold ---------------------------------------------------------------


def problem_of(record: r.Record) -> str | None:
    """Return why a record cannot be used, in words; None where it can."""
    if isinstance(record, r.ChunkArrived):
        return _problem_of_chunk(record)
    if isinstance(record, r.RewardArrived) and not _is_scored(record):
        return f"the reward is {record.reward}"
    if isinstance(record, r.LinesScored | r.RewardArrived) and not _is_finite(record):
        return "a reward or the score of a line is not finite"
    return _too_large(record, type(record).__name__)


def _is_scored(record: r.RewardArrived) -> bool:
    """Return whether a score whose status is ok has a reward to train on."""
    return record.status != "ok" or (record.reward is not None and math.isfinite(record.reward))


def _is_finite(record: r.LinesScored | r.RewardArrived) -> bool:
    """Return whether all rewards and line scores of a record are finite."""
    numbers = [reward.value for reward in record.rewards]
    if isinstance(record, r.LinesScored):
        numbers += [line.score for line in record.lines if line.score is not None]
    return all(map(math.isfinite, numbers))


def _problem_of_chunk(chunk: r.ChunkArrived) -> str | None:
    size = chunk.token_ids.size
    if size and int(chunk.token_ids.min()) < 0:
        return f"a token id is {int(chunk.token_ids.min())}"
    if chunk.logprobs.size != size:
        return f"{size} tokens have {chunk.logprobs.size} logprobs"
    if chunk.start < 0 or chunk.start + size > LARGEST_POSITION:
        return f"position {chunk.start} is not one"
    if chunk.start + size == 0 and chunk.finish in ("stop", "length"):
        return "an answer ended without a token"
    for span in chunk.spans:
        if not 0 <= span.version <= LARGEST_VERSION:
            return f"weight version {span.version} is not one"
    return None


def _too_large(value: Any, name: str) -> str | None:
    """The first number in a record that does not fit into 64 bits."""
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and not -LARGEST_INTEGER - 1 <= value <= LARGEST_INTEGER
    ):
        return f"{name} is {value}"
    if isinstance(value, msgspec.Struct):
        items = ((field, getattr(value, field)) for field in value.__struct_fields__)
    elif isinstance(value, dict):
        items = ((str(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        items = ((name, item) for item in value)
    else:
        return None
    return next((found for key, item in items if (found := _too_large(item, key))), None)
