"""One plain value of every message type, made from its annotations."""

from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np
from msgspec import inspect


def sample_of(kind: type[msgspec.Struct]) -> Any:
    """A message of this type in which every list has one item and every number is small. What a
    type holds of its own kind is left empty."""
    return _of(inspect.type_info(kind))


def _of(info: inspect.Type, annotation: Any = None, within: frozenset[type] = frozenset()) -> Any:
    """Only the annotation says of what type an array's numbers are. `within`: types that hold what
    is made."""
    match info:
        case inspect.CustomType():
            return np.zeros(1, annotation.__args__[1].__args__[0])
        case inspect.StructType():
            hints, inner = get_type_hints(info.cls, include_extras=True), within | {info.cls}
            values = {f.name: _of(f.type, hints[f.name], inner) for f in info.fields}
            return info.cls(**values)
        case inspect.UnionType():
            kind = next(t for t in info.types if not isinstance(t, inspect.NoneType))
            part = next((part for part in get_args(annotation) if get_args(part)), None)
            return _of(kind, part, within)
        case inspect.LiteralType():
            return info.values[0]
        case inspect.ListType():
            if isinstance(info.item_type, inspect.StructType) and info.item_type.cls in within:
                return []
            return [_of(info.item_type, None, within)]
        case inspect.TupleType():
            return tuple(_of(kind, None, within) for kind in info.item_types)
        case inspect.DictType():
            is_array = isinstance(info.value_type, inspect.CustomType)
            of_values = get_args(annotation)[1] if is_array else None
            return {_of(info.key_type): _of(info.value_type, of_values, within)}
        case inspect.StrType():
            return "a"
    return {inspect.IntType: 1, inspect.FloatType: 0.5, inspect.BoolType: False}.get(
        type(info), b""
    )
