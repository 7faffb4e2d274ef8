"""Hypothesis strategies for every message and record type, made from their annotations: values
within the bounds that the annotations give."""

from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from msgspec import inspect

Strategy = st.SearchStrategy[Any]
LONGEST_ARRAY = 9
_ELEMENTS: dict[type, Strategy] = {
    np.int32: st.integers(-(2**31), 2**31 - 1),
    np.float32: st.floats(width=32),
    np.uint8: st.integers(0, 255),
}


def structs(kind: type[msgspec.Struct]) -> Strategy:
    """Values of a struct type."""
    return of_type(inspect.type_info(kind))


def of_type(info: inspect.Type, annotation: Any = None) -> Strategy:
    """Values of one annotated type; a type without a rule here fails the test that meets it. Only
    the annotation says of what type an array's numbers are."""
    match info:
        case inspect.CustomType():
            return _array(annotation)
        case inspect.StructType():
            return _struct(info.cls)
        case inspect.UnionType():
            # One member at most is an array: msgspec allows no more.
            array = next((kind for kind in get_args(annotation) if get_args(kind)), None)
            return st.one_of(*(of_type(kind, array) for kind in info.types))
        case inspect.LiteralType():
            return st.sampled_from(info.values)
        case inspect.ListType():
            return st.lists(of_type(info.item_type), max_size=3)
        case inspect.TupleType():
            return st.tuples(*map(of_type, info.item_types))
        case inspect.DictType():
            values = (
                get_args(annotation)[1] if isinstance(info.value_type, inspect.CustomType) else None
            )
            key, value = of_type(info.key_type), of_type(info.value_type, values)
            return st.dictionaries(key, value, max_size=3)
        case inspect.IntType():
            low = -(2**63) if info.ge is None else info.ge
            return st.integers(low, 2**64 - 1 if info.le is None else info.le)
        case inspect.FloatType():
            return st.floats(info.ge, info.le, allow_nan=False)
        case inspect.StrType(pattern=str() as pattern):
            # Each of our patterns takes the beginning of what it takes.
            return st.from_regex(pattern).map(lambda text: text[:8])
    return _PLAIN[type(info)]


_PLAIN: dict[type, Strategy] = {
    inspect.StrType: st.text(max_size=8),
    inspect.BytesType: st.binary(max_size=16),
    inspect.BoolType: st.booleans(),
    inspect.NoneType: st.none(),
    inspect.AnyType: st.text(max_size=8),
}


@cache
def _struct(kind: type[msgspec.Struct]) -> Strategy:
    """Made when values are drawn: a type may hold others of its kind."""
    return st.deferred(lambda: _fields(kind))


def _fields(kind: type[msgspec.Struct]) -> Strategy:
    info, hints = inspect.type_info(kind), get_type_hints(kind)
    assert isinstance(info, inspect.StructType)
    fields = {field.name: of_type(field.type, hints[field.name]) for field in info.fields}
    return st.fixed_dictionaries(fields).map(lambda values: kind(**values))


def _field(info: inspect.Type, annotation: Any) -> Strategy:
    """Values of a field; an array, or a dict of arrays, is known by its annotation alone."""
    match info:
        case inspect.CustomType():
            return _array(annotation)
        case inspect.DictType(key_type=key, value_type=inspect.CustomType()):
            return st.dictionaries(of_type(key), _array(annotation.__args__[1]), max_size=3)
    return of_type(info)


def _array(annotation: Any) -> Strategy:
    scalar = annotation.__args__[1].__args__[0]
    sizes = st.integers(0, LONGEST_ARRAY)
    return arrays.arrays(np.dtype(scalar), sizes, elements=_ELEMENTS[scalar])
