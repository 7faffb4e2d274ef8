"""Inputs for a fuzzer: values by the grammar of the wire, and damage to what is well formed.

Comes in: a source of chance. Goes out: values, text and bytes; most are nearly right, so that they
come further than the first check, and some are not. The same chance gives the same input.
"""

import string
from functools import cache
from random import Random
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np
from msgspec import inspect

WILD = 0.01
"""Share of the values that have any type at all."""
_DEEPEST = 4
INTEGERS = (
    -(2**63),
    -(2**31),
    -1,
    0,
    1,
    2,
    7,
    2**31 - 1,
    2**31,
    2**53 - 1,
    2**53,
    2**63,
    2**64 - 1,
)
FLOATS = (float("nan"), float("inf"), float("-inf"), -1.0, -0.0, 0.5, 1.0, 1e23, 1e308, 5e-324)
TEXTS = (
    "", "0f", "generator-0", "a b", "\0", "two\nlines", "../../up", "'", '"', "~", "=",
    "\U0001f40d", "\u202e", "x" * 65, "x" * 5000,
)  # fmt: skip
_CODES = {np.int32: "i", np.float32: "f", np.uint8: "b"}


def wild(random: Random, depth: int = 0) -> Any:
    """Any value that msgpack knows."""
    kind = random.randrange(8 if depth < _DEEPEST else 6)
    match kind:
        case 0:
            return random.choice(INTEGERS)
        case 1:
            return random.choice(FLOATS)
        case 2:
            return random.choice(TEXTS)
        case 3:
            return random.randbytes(random.randrange(9))
        case 4:
            return random.choice((True, False, None))
        case 5:
            return random.getrandbits(random.randrange(1, 64))
        case 6:
            return [wild(random, depth + 1) for _ in range(random.randrange(4))]
    return {random.choice(TEXTS): wild(random, depth + 1) for _ in range(random.randrange(3))}


class Grammar:
    """Structs of the wire as plain values, arrays as references into a raw frame of `size`
    bytes."""

    def __init__(self, random: Random, size: int) -> None:
        self._random, self._size = random, size

    def struct(self, kind: type[msgspec.Struct], depth: int = 0) -> Any:
        """A struct's fields, in its own form."""
        info, hints = _info(kind), _hints(kind)
        values: dict[str, Any] = {} if info.tag is None else {str(info.tag_field): info.tag}
        for field in info.fields:
            if not field.required and self._random.random() < 0.5:
                if info.array_like:
                    break
                continue
            value = self.value(field.type, hints[field.name], depth + 1)
            values[field.encode_name] = value
        if self._random.random() < WILD:
            values[self._random.choice(TEXTS)] = wild(self._random)
        if values and self._random.random() < WILD:
            del values[self._random.choice(list(values))]
        return list(values.values()) if info.array_like else values

    def value(self, info: inspect.Type, annotation: Any = None, depth: int = 0) -> Any:
        """A value of one annotated type. Only the annotation says of what an array is made."""
        random = self._random
        if random.random() < WILD:
            return wild(random)
        most = 3 if depth < _DEEPEST else 1
        match info:
            case inspect.CustomType():
                return self._array(annotation)
            case inspect.StructType():
                return self.struct(info.cls, depth)
            case inspect.UnionType():
                array = next((kind for kind in get_args(annotation) if get_args(kind)), None)
                plain = [kind for kind in info.types if isinstance(kind, inspect.NoneType)]
                chosen = plain if plain and depth >= _DEEPEST else info.types
                return self.value(random.choice(chosen), array, depth)
            case inspect.LiteralType():
                return random.choice(info.values)
            case inspect.ListType():
                count = random.randrange(most)
                return [self.value(info.item_type, None, depth + 1) for _ in range(count)]
            case inspect.TupleType():
                return [self.value(kind, None, depth + 1) for kind in info.item_types]
            case inspect.DictType():
                inner = None
                if isinstance(info.value_type, inspect.CustomType):
                    inner = get_args(annotation)[1]
                names = random.sample(TEXTS, random.randrange(most))
                return {name: self.value(info.value_type, inner, depth + 1) for name in names}
        return self._plain(info)

    def _plain(self, info: inspect.Type) -> Any:
        random = self._random
        match info:
            case inspect.IntType():
                within = [n for n in INTEGERS if (info.ge or 0) <= n <= (info.le or 2**64)]
                small = random.random() < 0.7 or not within
                return random.randrange(100) if small else random.choice(within)
            case inspect.FloatType():
                return random.random() if random.random() < 0.7 else random.choice(FLOATS)
            case inspect.StrType():
                return random.choice(TEXTS if random.random() < 0.1 else ("0f", "generator-0", ""))
            case inspect.BytesType():
                return random.randbytes(random.randrange(20))
            case inspect.BoolType():
                return random.random() < 0.5
        return None

    def _array(self, annotation: Any) -> list[Any]:
        dtype = annotation.__args__[1].__args__[0]
        offset = 8 * self._random.randrange(self._size // 8 + 1)
        room = (self._size - offset) // np.dtype(dtype).itemsize
        return [_CODES[dtype], offset, self._random.randrange(room + 1)]


@cache
def _info(kind: type[msgspec.Struct]) -> inspect.StructType:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info


@cache
def _hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(kind)


def damaged(random: Random, data: bytes) -> bytes:
    """Bytes with one to four things done to them."""
    changed = bytearray(data)
    for _ in range(random.randrange(1, 5)):
        at = random.randrange(len(changed) + 1)
        length = random.choice((1, 1, 2, 4, 8, 64, 1000))
        match random.randrange(6):
            case 0:
                changed[at : at + 1] = bytes((random.randrange(256),))
            case 1 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
            case 2:
                del changed[at : at + length]
            case 3:
                changed[at:at] = random.randbytes(length)
            case 4:
                changed[at:at] = changed[at : at + length]
            case 5:
                del changed[at:]
    return bytes(changed)


def misspelt(random: Random, text: str, pieces: tuple[str, ...] = ()) -> str:
    """Text with one to three things done to it; `pieces` may be put in."""
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(text) + 1)
        length = random.choice((1, 1, 3, 10))
        put = random.choice((*pieces, *TEXTS, random.choice(string.printable)))
        match random.randrange(3):
            case 0:
                text = text[:at] + text[at + length :]
            case 1:
                text = text[:at] + put + text[at:]
            case 2:
                text = text[:at] + put * random.choice((1, 1, 2, 300)) + text[at + length :]
    return text
