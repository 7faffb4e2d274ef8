"""Messages of a worker and its scoring child over the child's stdin and stdout.

Frames are four bytes of length (big-endian) and msgpack; token ids are bytes in it. Worker to
child: one `Setup`, then `Batch`es. Child to worker: perhaps some `Starting`, one `Ready` (or
`Unfit`), then for every batch one `Began` and one `Outcome` an item: in order, or, from a child
that scores many responses at a time, as they are done.
"""

import struct
from typing import Any, BinaryIO, Literal

import msgspec
import numpy as np

from headrace.protocol.messages.control import ScoreItem
from rewards.functions.results import Verdict

LENGTH = struct.Struct(">I")
MAX_ANSWER_BYTES = 1 << 20
"""Longest frame that a worker accepts from a child."""
MAX_ERROR = 2000
"""Maximum characters of an error's text."""


class Setup(msgspec.Struct, frozen=True, tag=True):
    """A `SourceConfig` as JSON. `check`: fail at once where what it depends on is not there."""

    config: str
    check: bool = False


class Batch(msgspec.Struct, frozen=True, tag=True):
    """Score these, in this order. `first` is the number of the first one; the others follow."""

    items: list[ScoreItem]
    first: int = 0


class Starting(msgspec.Struct, frozen=True, tag=True):
    """Not ready, but at it: the worker goes on waiting."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The verifier is loaded.

    `needs`: columns of the dataset it cannot do without. `asks_ids`: it takes token ids.
    `concurrency`: items that it scores at a time; 0: one by one, in batches."""

    needs: list[str] = []
    asks_ids: bool = False
    concurrency: int = 0


class Unfit(msgspec.Struct, frozen=True, tag=True):
    """The verifier cannot be had; `mistake` when that is the user's fault."""

    error: str
    mistake: bool


class Began(msgspec.Struct, frozen=True, tag=True):
    """The batch up to `end` was read; its first item, or all of it, is being scored."""

    end: int = 0


class Outcome(msgspec.Struct, frozen=True, tag=True):
    """The item with this number is done; one by one, the batch's next begins.

    `timeout`: it was given up at its deadline, and the child goes on."""

    status: Literal["ok", "timeout", "crashed", "invalid"]
    seconds: float
    reward: float = 0.0
    correct: bool = False
    parts: dict[str, float] = {}
    error: str | None = None
    lines: list[float | None] = []
    siblings: list["Outcome"] = []
    number: int = 0
    model: str | None = None

    @classmethod
    def of(cls, verdict: Verdict | None, seconds: float) -> "Outcome":
        """Return a verdict's outcome; None: no reward applies to the response."""
        if verdict is None:
            error = "the function says None, so no reward applies to this response"
            return cls("invalid", seconds, error=error)
        return cls(
            "ok",
            seconds,
            verdict.reward,
            verdict.correct,
            verdict.parts,
            lines=list(verdict.lines),
            siblings=[cls.of(sibling, seconds) for sibling in verdict.siblings],
            model=verdict.model,
        )


Question = Setup | Batch
Answer = Starting | Ready | Unfit | Began | Outcome


def _take_ids(value: Any) -> bytes:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"cannot put {type(value).__name__} into a frame")
    return value.astype("<i4").tobytes()


question_decoder: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(
    Question, dec_hook=lambda kind, value: np.frombuffer(value, "<i4")
)
answer_decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def pack(message: Question | Answer) -> bytes:
    """One frame."""
    body = msgspec.msgpack.encode(message, enc_hook=_take_ids)
    return LENGTH.pack(len(body)) + body


def read_question(stream: BinaryIO) -> Question | None:
    """The next frame; None at the end of the stream."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    body = stream.read(LENGTH.unpack(head)[0])
    return question_decoder.decode(body)
