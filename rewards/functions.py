"""User functions as verifiers.

In: `package.module:name` or `path/to/file.py:name`, a callable of `(prompt, completion, answer,
**info)`. Out: a reward and its parts. It may return a number, or a dict whose `score` is the reward
and whose other entries are parts; anything that is not a finite number raises InvalidRewardError,
so that a mistake never becomes a reward of zero.
"""

import importlib
import importlib.util
import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.errors import UserError

MAX_PARTS = 64


class InvalidRewardError(Exception):
    """A reward function returned something that is not a finite number."""


def load_function(name: str) -> Callable[..., Any]:
    """The callable that `name` names; UserError when there is none."""
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise UserError(
            f"reward.function={name!r}: write package.module:name or path/to/file.py:name"
        )
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UserError(f"reward.function={name!r}: {place} has no function {attribute!r}")
    return function


def call_function(
    function: Callable[..., Any], prompt: str, completion: str, answer: str, info: str
) -> tuple[float, dict[str, float]]:
    """(reward, parts) of one response; `info` is a JSON object whose entries are keyword arguments
    (those that the function takes)."""
    extra = {k: v for k, v in json.loads(info).items() if k not in _OWN}
    parameters = inspect.signature(function).parameters.values()
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        taken = {p.name for p in parameters}
        extra = {k: v for k, v in extra.items() if k in taken}
    return read_result(function(prompt, completion, answer, **extra))


def read_result(result: object) -> tuple[float, dict[str, float]]:
    """Split what a function returned into reward and parts; InvalidRewardError when it is none."""
    if not isinstance(result, Mapping):
        return _finite("the result", result), {}
    if "score" not in result:
        raise InvalidRewardError("the returned dict has no `score`")
    if len(result) > MAX_PARTS:
        raise InvalidRewardError(
            f"{len(result)} entries in the returned dict ({MAX_PARTS} at most)"
        )
    parts = {str(k): _finite(f"part {k!r}", v) for k, v in result.items() if k != "score"}
    return _finite("`score`", result["score"]), parts


_OWN = frozenset({"prompt", "completion", "answer"})


def _finite(what: str, value: object) -> float:
    # Text is never a number here, although float("1.0") would read it.
    if not hasattr(value, "__float__"):
        raise InvalidRewardError(f"{what} is {type(value).__name__}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise InvalidRewardError(f"{what} is {number}, not a finite number")
    return number


def _load_module(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(f"reward.function: cannot import {name!r} ({error})") from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"reward.function: no file {path}")
    spec = importlib.util.spec_from_file_location(f"reward_function_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
