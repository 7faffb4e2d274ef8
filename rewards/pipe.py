"""What a worker and its scoring child say to each other over the child's stdin and stdout.

Frames are four bytes of length (big-endian) and msgpack; token ids are bytes in it. Worker to
child: one `Setup`, then `Batch`es. Child to worker: one `Ready` (or `Unfit`), then for every batch
one `Began` and, in order, one `Outcome` an item.
"""

import struct
from typing import Any, BinaryIO, Literal

import msgspec
import numpy as np

from headrace.protocol.messages import ScoreItem

LENGTH = struct.Struct(">I")
MAX_ANSWER_BYTES = 1 << 20
"""Longest frame that a worker accepts from a child."""
MAX_ERROR = 2000
"""Most characters of an error's text."""


class Setup(msgspec.Struct, frozen=True, tag=True):
    """`config` is a source of rewards (`SourceConfig`) as JSON."""

    config: str


class Batch(msgspec.Struct, frozen=True, tag=True):
    """Score these, in this order."""

    items: list[ScoreItem]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The verifier is loaded; `needs` are the columns of the dataset it cannot do without, and
    `asks_ids` says whether it takes token ids."""

    needs: list[str] = []
    asks_ids: bool = False


class Unfit(msgspec.Struct, frozen=True, tag=True):
    """The verifier cannot be had; `mistake` when that is the user's fault."""

    error: str
    mistake: bool


class Began(msgspec.Struct, frozen=True, tag=True):
    """The batch was read and its first item is being scored."""


class Outcome(msgspec.Struct, frozen=True, tag=True):
    """The next item of the batch is done; the one after it begins."""

    status: Literal["ok", "crashed", "invalid"]
    seconds: float
    reward: float = 0.0
    correct: bool = False
    parts: dict[str, float] = {}
    error: str | None = None
    lines: list[float | None] = []
    siblings: list["Outcome"] = []


Question = Setup | Batch
Answer = Ready | Unfit | Began | Outcome


def _take_ids(value: Any) -> bytes:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"cannot put {type(value).__name__} into a frame")
    return value.astype("<i4").tobytes()


def _give_ids(kind: Any, value: Any) -> Any:
    return np.frombuffer(value, "<i4")


question_decoder: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(
    Question, dec_hook=_give_ids
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
