"""Plain data between the two processes of a cell, as JSON that neither side can turn into code.

What arrives is made of Python's own types: a subclass of a number, a string or a container comes as
its base type, a scalar of numpy as the number that it is, so that no value brings its own idea of
equality along. Anything else stays where it is and is named by a number (`export`, `find`).
"""

from collections.abc import Callable
from typing import Any

Json = Any
Export = Callable[[object], Json]
Find = Callable[[Json], Any]

_EXACT_INTEGERS = 1 << 53


def encode(value: Any, export: Export) -> Json:
    """JSON for a value; `export` names what is not plain."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = int.__index__(value)
        return number if -_EXACT_INTEGERS < number < _EXACT_INTEGERS else ["int", hex(number)]
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, dict):
        pairs = dict.items(value)
        return ["dict", *([encode(k, export), encode(v, export)] for k, v in pairs)]
    for kind, name in _SEQUENCES:
        if isinstance(value, kind):
            return [name, *(encode(item, export) for item in kind.__iter__(value))]
    if isinstance(value, bytes | bytearray):
        return ["bytearray" if isinstance(value, bytearray) else "bytes", value.hex()]
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, range):
        return ["range", value.start, value.stop, value.step]
    if isinstance(value, type) and value in _TYPES:
        return ["type", value.__name__]
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return encode(value.item(), export)
    kind = type(value)
    match (kind.__module__, kind.__name__):
        case ("decimal", "Decimal"):
            return ["Decimal", str(value)]
        case ("fractions", "Fraction"):
            return ["Fraction", hex(value.numerator), hex(value.denominator)]
        case ("datetime", "date" | "time" | "datetime"):
            return [kind.__name__, value.isoformat()]
    return export(value)


_SEQUENCES: tuple[tuple[Any, str], ...] = (
    (list, "list"), (tuple, "tuple"), (set, "set"), (frozenset, "frozenset"),
)  # fmt: skip


_TYPES = (
    bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range,
    object,
)  # fmt: skip
"""Types that are identified by name. None of them runs what it is given."""


def decode(data: Json, find: Find) -> Any:
    """Return the value for JSON of `encode`; ValueError, TypeError or LookupError for others."""
    if not isinstance(data, list):
        if isinstance(data, dict):
            raise TypeError("a JSON object stands for nothing")
        # One object for every NaN would make lists that hold it equal.
        return float("nan") if isinstance(data, float) and data != data else data
    name, *rest = data
    for kind, known in _SEQUENCES:
        if name == known:
            return kind(decode(item, find) for item in rest)
    match name:
        case "dict":
            return {decode(k, find): decode(v, find) for k, v in rest}
        case "int":
            return int(rest[0], 16)
        case "bytes":
            return bytes.fromhex(rest[0])
        case "bytearray":
            return bytearray.fromhex(rest[0])
        case "complex":
            return complex(rest[0], rest[1])
        case "range":
            return range(*rest)
        case "type":
            return {each.__name__: each for each in _TYPES}[rest[0]]
        case "mine" | "yours":
            return find(data)
        case "Decimal":
            from decimal import Decimal

            return Decimal(rest[0])
        case "Fraction":
            from fractions import Fraction

            return Fraction(int(rest[0], 16), int(rest[1], 16))
        case "date" | "time" | "datetime":
            import datetime

            return getattr(datetime, name).fromisoformat(rest[0])
    raise ValueError(f"no such kind of value: {name!r}")
