"""Messages in a file, one after the other, as they stand on the wire.

In: messages, or a path. Out: a file, or the messages. Promise: the wire's codec reads and writes
them, so no pickle.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from headrace.protocol.codec import message_codec
from headrace.protocol.messages import Message

UNBOUNDED = 1 << 40
"""Bytes: a file that a process of ours wrote has no limit."""
_SIZE_BYTES = 8


def write_messages(path: Path, messages: Iterable[Message]) -> None:
    """A new file of messages."""
    codec = message_codec(max_bytes=UNBOUNDED)
    with path.open("wb") as file:
        for message in messages:
            for frame in codec.encode(message):
                file.write(len(frame).to_bytes(_SIZE_BYTES, "little"))
                file.write(frame)


def read_messages(path: Path) -> Iterator[Message]:
    """The messages of a file, one in memory at a time."""
    codec = message_codec(max_bytes=UNBOUNDED)
    with path.open("rb") as file:
        while header := _frame(file):
            yield codec.decode([header, _frame(file)])


def _frame(file: BinaryIO) -> bytes:
    """The next frame; an empty one at the end of the file."""
    return file.read(int.from_bytes(file.read(_SIZE_BYTES), "little"))
