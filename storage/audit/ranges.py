"""Values that no record may hold, because a coordinator could not apply them, a database could not
hold them, or a learner could not compute with them.

Comes in: one record. Goes out: what is wrong with it, or None. Promise: the record alone decides,
so a bad record is found at its own place and not where something later fails because of it.
"""

import math
from typing import Any

import msgspec

from headrace.protocol.records import ChunkArrived, LinesScored, Record, RewardArrived

MOST = 2**63 - 1
"""The largest number of a 64-bit column."""
LARGEST_VERSION = 2**62
LARGEST_POSITION = 2**31 - 1


def problem_of(record: Record) -> str | None:
    """Why a record cannot be used, in words; None where it can."""
    if isinstance(record, ChunkArrived):
        return _problem_of_chunk(record)
    if isinstance(record, RewardArrived) and not _is_scored(record):
        return f"the reward is {record.reward}"
    if isinstance(record, LinesScored | RewardArrived) and not _is_finite(record):
        return "a reward or the score of a line is not finite"
    return _too_large(record, type(record).__name__)


def _is_scored(record: RewardArrived) -> bool:
    """Whether a score whose status is ok has a reward to train on."""
    return record.status != "ok" or (record.reward is not None and math.isfinite(record.reward))


def _is_finite(record: LinesScored | RewardArrived) -> bool:
    """Whether whatever was earned somewhere can be trained on."""
    numbers = [reward.value for reward in record.rewards]
    if isinstance(record, LinesScored):
        numbers += [line.score for line in record.lines if line.score is not None]
    return all(map(math.isfinite, numbers))


def _problem_of_chunk(chunk: ChunkArrived) -> str | None:
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
    if isinstance(value, int) and not isinstance(value, bool) and not -MOST - 1 <= value <= MOST:
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
