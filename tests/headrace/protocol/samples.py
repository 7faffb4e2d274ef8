"""One plain value of every message type, made from its annotations."""

from typing import Any, get_type_hints

import msgspec
import numpy as np
from msgspec import inspect


def sample_of(kind: type[msgspec.Struct]) -> Any:
    """A message of this type in which every list has one item and every number is small."""
    return _of(inspect.type_info(kind))


def _of(info: inspect.Type) -> Any:
    match info:
        case inspect.StructType():
            hints = get_type_hints(info.cls, include_extras=True)
            values = {
                f.name: np.zeros(1, hints[f.name].__args__[1].__args__[0])
                if isinstance(f.type, inspect.CustomType)
                else _of(f.type)
                for f in info.fields
            }
            return info.cls(**values)
        case inspect.UnionType():
            return _of(next(t for t in info.types if not isinstance(t, inspect.NoneType)))
        case inspect.LiteralType():
            return info.values[0]
        case inspect.ListType():
            return [_of(info.item_type)]
        case inspect.TupleType():
            return tuple(map(_of, info.item_types))
        case inspect.DictType():
            return {_of(info.key_type): _of(info.value_type)}
        case inspect.StrType():
            return "a"
    return {inspect.IntType: 1, inspect.FloatType: 0.5, inspect.BoolType: False}.get(
        type(info), b""
    )
