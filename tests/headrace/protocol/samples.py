"""One plain value of every message type, made from its annotations."""

from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np
from msgspec import inspect


def sample_of(kind: type[msgspec.Struct]) -> Any:
    """A message of this type in which every list has one item and every number is small."""
    return _of(inspect.type_info(kind))


def _of(info: inspect.Type, annotation: Any = None) -> Any:
    """Only the annotation says of what type an array's numbers are."""
    match info:
        case inspect.CustomType():
            return np.zeros(1, annotation.__args__[1].__args__[0])
        case inspect.StructType():
            hints = get_type_hints(info.cls, include_extras=True)
            values = {f.name: _of(f.type, hints[f.name]) for f in info.fields}
            return info.cls(**values)
        case inspect.UnionType():
            kind = next(t for t in info.types if not isinstance(t, inspect.NoneType))
            return _of(kind, next((part for part in get_args(annotation) if get_args(part)), None))
        case inspect.LiteralType():
            return info.values[0]
        case inspect.ListType():
            return [_of(info.item_type)]
        case inspect.TupleType():
            return tuple(map(_of, info.item_types))
        case inspect.DictType():
            is_array = isinstance(info.value_type, inspect.CustomType)
            of_values = get_args(annotation)[1] if is_array else None
            return {_of(info.key_type): _of(info.value_type, of_values)}
        case inspect.StrType():
            return "a"
    return {inspect.IntType: 1, inspect.FloatType: 0.5, inspect.BoolType: False}.get(
        type(info), b""
    )
