"""User functions as verifiers.

In: `package.module:name` or `path/to/file.py:name`, a callable of `(prompt, completion, answer,
**info)`. Out: verdicts. The function may return a number, or a dict whose `score` is the reward,
whose `correct` says whether the answer is right, and whose other entries are parts. Another
signature is a UserError when the function is loaded; a result that is not a finite number raises
InvalidRewardError, so that a mistake never becomes a reward of zero.
"""

import importlib
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.errors import UserError
from rewards.signatures import OWN, Signature, read_signature
from rewards.verdict import Verdict

MAX_PARTS = 64


class InvalidRewardError(Exception):
    """A reward function returned something that is not a finite number."""


@dataclass(frozen=True)
class RewardFunction:
    """A user's function and how it is called."""

    function: Callable[..., Any]
    signature: Signature

    def __call__(
        self, prompt: str, completion: str, answer: str, info: str, *, threshold: float
    ) -> Verdict:
        """The verdict on one response; `info` is a JSON object whose entries are keyword arguments
        (those that the function takes)."""
        given = {**json.loads(info), **dict(zip(OWN, (prompt, completion, answer), strict=True))}
        return read_result(self.function(**self.signature.arguments(given)), threshold=threshold)


def load_function(name: str) -> RewardFunction:
    """The function that `name` names; UserError when there is none, or one that cannot be called
    as a reward function."""
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise UserError(
            f"reward.function={name!r}: write package.module:name or path/to/file.py:name"
        )
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UserError(f"reward.function={name!r}: {place} has no function {attribute!r}")
    return RewardFunction(function, read_signature(function, name))


def read_result(result: object, *, threshold: float) -> Verdict:
    """The verdict in what a function returned; InvalidRewardError when there is none. The answer is
    right where the function says `correct`; where it does not say, from a score of `threshold`."""
    if not isinstance(result, Mapping):
        reward = _finite("the result", result)
        return Verdict(reward, reward >= threshold)
    if "score" not in result:
        raise InvalidRewardError("the returned dict has no `score`")
    if len(result) > MAX_PARTS:
        raise InvalidRewardError(
            f"{len(result)} entries in the returned dict ({MAX_PARTS} at most)"
        )
    parts = {str(k): _finite(f"part {k!r}", v) for k, v in result.items() if k != "score"}
    reward = _finite("`score`", result["score"])
    correct = parts.get("correct", float(reward >= threshold))
    if correct not in (0.0, 1.0):
        raise InvalidRewardError(f"`correct` is {correct:g}, neither true nor false")
    return Verdict(reward, bool(correct), parts)


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
