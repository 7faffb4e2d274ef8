"""The keys of a configuration as data: what the models say about themselves.

In: a model class. Out: one `Key` for each leaf, in the order of the files, with dotted name, type,
default and meaning. Error messages, `config show`, the documentation and its tests all read this.
"""

import json
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined


class Key(NamedTuple):
    """One leaf of the configuration."""

    name: str
    type: str
    default: str
    meaning: str


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """The model classes inside an annotation, in order, those of its entries included."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, UnionType, Annotated, tuple, dict):
        return [model for part in get_args(annotation) for model in models_of(part)]
    return []


def kind_of(model: type[BaseModel]) -> str:
    """The tag of a member of a discriminated union, or an empty string."""
    field = model.model_fields.get("kind")
    values = get_args(field.annotation) if field is not None and field.is_required() else ()
    return str(values[0]) if len(values) == 1 else ""


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[Key]:
    """Every leaf below a model, depth first."""
    for name, field in model.model_fields.items():
        dotted = f"{prefix}{name}"
        inner = models_of(field.annotation)
        below = f"{dotted}.NAME." if get_origin(field.annotation) is dict else f"{dotted}."
        if not inner:
            yield Key(
                dotted,
                _type_text(field.annotation) + _bounds(field),
                _default_text(field),
                " ".join((field.description or "").split()),
            )
        for part in inner:
            yield from keys(part, below)


def key_names(model: type[BaseModel]) -> list[str]:
    """Dotted names of all leaves, each once."""
    return list(dict.fromkeys(key.name for key in keys(model)))


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys with values that are no tables; an empty table is a value."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= flattened(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _type_text(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Literal:
        return " or ".join(f"{value!r}".replace("'", '"') for value in get_args(annotation))
    if origin is Annotated:
        return _type_text(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return " or ".join(_type_text(part) for part in get_args(annotation))
    if origin is not None:
        return f"{origin.__name__}[{', '.join(_type_text(part) for part in get_args(annotation))}]"
    return "null" if annotation is NoneType else str(getattr(annotation, "__name__", annotation))


def _bounds(field: FieldInfo) -> str:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    parts = [
        f"{sign} {getattr(entry, name):g}"
        for entry in field.metadata
        for name, sign in signs.items()
        if getattr(entry, name, None) is not None
    ]
    return f", {' and '.join(parts)}" if parts else ""


def _default_text(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None or isinstance(field.default, str | bool):
        return json.dumps(field.default, ensure_ascii=False)
    return str(list(field.default) if isinstance(field.default, tuple) else field.default)
