"""User functions as verifiers.

In: names such as `package.module:name` or `path/to/file.py:name` with weights. Out: verdicts. A
name may be a function of any convention (`conventions.py`), plain or `async`, or a rubric of
verifiers with functions of its own. What cannot be called is a UserError when it is loaded.
"""

import importlib
import importlib.util
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.config.reward import Adapter, SourceConfig
from headrace.errors import UserError
from headrace.protocol.messages import ScoreItem
from rewards import coroutines
from rewards.conventions import Binding, bind
from rewards.results import Result, read_result, weigh
from rewards.signatures import read_signature
from rewards.verdict import Verdict


@dataclass(frozen=True)
class RewardFunction:
    """A user's function, how it is called, and how much it counts."""

    label: str
    function: Callable[..., Any]
    binding: Binding
    weight: float = 1.0

    def __call__(self, item: ScoreItem) -> Result | None:
        """What the function says of one response; None: it does not apply."""
        positional, named = self.binding.arguments(item)
        result = self.function(*positional, **named)
        if inspect.isawaitable(result):
            result = coroutines.run(result)
        return read_result(result)

    async def later(self, item: ScoreItem) -> Result | None:
        """The same of a coroutine, while others run."""
        positional, named = self.binding.arguments(item)
        return read_result(await self.function(*positional, **named))

    @property
    def waits(self) -> bool:
        """Whether it is a coroutine function."""
        called = getattr(self.function, "__call__", None)  # noqa: B004
        return any(map(inspect.iscoroutinefunction, (self.function, called)))


@dataclass(frozen=True)
class RewardFunctions:
    """The functions of a recipe: a weighted sum."""

    functions: tuple[RewardFunction, ...]

    def __call__(self, item: ScoreItem, *, threshold: float) -> Verdict:
        """The verdict on one response."""
        results = [(f.label, f.weight, f(item)) for f in self.functions]
        return weigh(results, threshold=threshold)

    async def later(self, item: ScoreItem, *, threshold: float) -> Verdict:
        """The same of coroutines, while others run."""
        results = [(f.label, f.weight, await f.later(item)) for f in self.functions]
        return weigh(results, threshold=threshold)

    @property
    def waits(self) -> bool:
        """Whether all of them are coroutine functions."""
        return all(f.waits for f in self.functions)

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns of the dataset that they cannot do without."""
        return tuple(dict.fromkeys(n for f in self.functions for n in f.binding.needs))

    @property
    def asks_ids(self) -> bool:
        """Whether one of them takes token ids."""
        return any(f.binding.asks_ids for f in self.functions)


def load_functions(config: SourceConfig) -> RewardFunctions:
    """The functions that a recipe names; UserError where one cannot be had."""
    if config.function is not None:
        return RewardFunctions(tuple(_load(config.function, config.adapter)))
    found = [
        RewardFunction(f.label, f.function, f.binding, entry.weight * f.weight)
        for entry in config.functions
        for f in _load(entry.name, entry.adapter or config.adapter)
    ]
    if not found:
        raise UserError("reward.kind is `function`: name one with reward.function=module:name")
    return RewardFunctions(tuple(_with_own_labels(found)))


def _load(name: str, adapter: Adapter | None) -> Iterator[RewardFunction]:
    where = f"reward.function={name!r}"
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise UserError(f"{where}: write package.module:name or path/to/file.py:name")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    found = getattr(module, attribute, None)
    rubrics = list(_rubrics(found))
    if not rubrics:
        if not callable(found):
            raise UserError(f"{where}: {place} has no function {attribute!r}")
        binding = bind(read_signature(found, where), where, adapter=adapter)
        yield RewardFunction(attribute, found, binding)
    for rubric in rubrics:
        yield from _of_rubric(rubric, where)


def _rubrics(found: object) -> Iterator[Any]:
    """The rubrics of verifiers that an object is or holds: an environment has one, a group
    several."""
    found = getattr(found, "rubric", found)
    if inspect.isroutine(found) or inspect.isclass(found) or found is None:
        return
    inner = getattr(found, "rubrics", None)
    if isinstance(inner, Iterable) and not isinstance(inner, str | Mapping):
        for one in inner:
            yield from _rubrics(one)
    elif _functions_of(found):
        yield found


def _functions_of(rubric: object) -> list[tuple[Callable[..., Any], float]]:
    functions = getattr(rubric, "funcs", None) or getattr(rubric, "reward_funcs", None)
    weights = getattr(rubric, "weights", None) or getattr(rubric, "reward_weights", None)
    if not isinstance(functions, list) or not isinstance(weights, list):
        return []
    return list(zip(functions, map(float, weights), strict=True))


def _of_rubric(rubric: Any, where: str) -> Iterator[RewardFunction]:
    objects = getattr(rubric, "class_objects", None) or {"parser": getattr(rubric, "parser", None)}
    for function, weight in _functions_of(rubric):
        label = getattr(function, "__name__", type(function).__name__)
        signature = read_signature(function, f"{where}, {label}")
        binding = bind(signature, f"{where}, {label}", adapter="verifiers", objects=objects)
        yield RewardFunction(label, function, binding, weight)


def _with_own_labels(functions: list[RewardFunction]) -> Iterator[RewardFunction]:
    """Labels that several functions share are numbered."""
    shared = {label for label, n in Counter(f.label for f in functions).items() if n > 1}
    seen: Counter[str] = Counter()
    for f in functions:
        seen[f.label] += 1
        label = f"{f.label}_{seen[f.label]}" if f.label in shared else f.label
        yield RewardFunction(label, f.function, f.binding, f.weight)


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
    name = f"reward_function_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
