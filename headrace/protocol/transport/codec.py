"""Messages to multipart frames and back.

Two frames: a header (three bytes of magic and version, then msgpack) and one raw frame that holds
every array of the message end to end, each 8-byte aligned. In the header an array is [dtype code,
byte offset, count]. Decoding checks magic, version, size, tags, types and array bounds, and raises
ProtocolError for anything else; arrays are read-only views of the raw frame, so nothing is copied.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from headrace.errors import ProtocolError
from headrace.protocol.messages.control import PROTOCOL_VERSION, AnyMessage, Message

MAGIC = b"HR" + bytes([PROTOCOL_VERSION])
_DTYPES: dict[str, np.dtype[Any]] = {
    "i": np.dtype("<i4"),
    "f": np.dtype("<f4"),
    "b": np.dtype("u1"),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_ALIGN = 8
MAX_REASON_CHARACTERS = 500
"""Characters of a reason: msgspec's repeats what it did not know."""
T = TypeVar("T")
_SIZED = msgspec.msgpack.Encoder(enc_hook=np.ndarray.tobytes)


class Codec(Generic[T]):
    """Encoder and decoder of one tagged union of structs that hold 1-D numpy arrays."""

    def __init__(self, union: Any, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._blob = bytearray()
        self._raw: memoryview = memoryview(b"")
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._take_array)
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(
            union, dec_hook=self._give_array
        )

    def encode(self, message: T) -> list[bytes]:
        """Frames of a message; ProtocolError when it is over the limit."""
        self._blob = bytearray()
        header = MAGIC + self._encoder.encode(message)
        if len(header) + len(self._blob) > self._max_bytes:
            raise ProtocolError(
                f"{type(message).__name__} of {len(header) + len(self._blob)} bytes is over the "
                f"limit of {self._max_bytes}"
            )
        return [header, bytes(self._blob)]

    def decode(self, frames: Sequence[bytes | memoryview]) -> T:
        """The message in the frames; ProtocolError when it is not one."""
        if len(frames) != 2:
            raise ProtocolError(f"a message has 2 frames, got {len(frames)}")
        header, raw = memoryview(frames[0]), memoryview(frames[1])
        if header.nbytes + raw.nbytes > self._max_bytes:
            raise ProtocolError(
                f"message of {header.nbytes + raw.nbytes} bytes is over the limit of "
                f"{self._max_bytes}"
            )
        if bytes(header[:2]) != MAGIC[:2] or header.nbytes < 4:
            raise ProtocolError("not a Headrace message")
        if header[2] != PROTOCOL_VERSION:
            raise ProtocolError(f"protocol version {header[2]}, this is {PROTOCOL_VERSION}")
        self._raw = raw
        try:
            return self._decoder.decode(header[3:])
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise ProtocolError(
                f"malformed message: {str(error)[:MAX_REASON_CHARACTERS]}"
            ) from error

    def _take_array(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.ndim != 1:
            raise TypeError(f"cannot put {type(value).__name__} on the wire")
        code = _CODES.get(value.dtype)
        if code is None:
            raise TypeError(f"cannot put an array of {value.dtype} on the wire")
        self._blob.extend(b"\0" * (-len(self._blob) % _ALIGN))
        offset = len(self._blob)
        self._blob.extend(np.ascontiguousarray(value).data)
        return [code, offset, value.size]

    def _give_array(self, kind: Any, reference: Any) -> Any:
        wanted = np.dtype(kind.__args__[1].__args__[0])
        if not isinstance(reference, list) or len(reference) != 3:
            raise ValueError("array reference is malformed")
        code, offset, count = reference
        if not isinstance(code, str) or _DTYPES.get(code) != wanted:
            raise ValueError(f"array of code {code!r} where {wanted} belongs")
        if type(offset) is not int or type(count) is not int or min(offset, count) < 0:
            raise ValueError("array reference is malformed")
        if offset % _ALIGN or offset + count * wanted.itemsize > self._raw.nbytes:
            raise ValueError("array reaches past its frame or is not aligned")
        return np.frombuffer(self._raw, dtype=wanted, count=count, offset=offset)


def in_parts(items: Iterable[T], most: int) -> Iterator[list[T]]:
    """Yield structs in lists of about `most` bytes; one that is longer stands alone."""
    part, size = list[T](), 0
    for item in items:
        own = len(_SIZED.encode(item))
        if part and size + own > most:
            yield part
            part, size = [], 0
        part.append(item)
        size += own
    if part:
        yield part


def message_codec(*, max_bytes: int) -> Codec[Message]:
    """The codec of the wire. Threads must not share it."""
    return Codec(AnyMessage, max_bytes=max_bytes)
