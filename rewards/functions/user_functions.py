"""User functions as verifiers.

In: names such as `package.module:name` or `path/to/file.py:name` with weights. Out: verdicts. A
name may be a function of any convention (`calling_conventions.py`), plain or `async`, or a rubric
of verifiers with its functions, also of the environment that a `load_environment` creates. What
cannot be called is a UserError at loading.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from headrace.config.sections.reward import Adapter, SourceConfig, WeightedFunction
from headrace.errors import UserError
from headrace.host.user_code import load_module
from headrace.protocol.messages.control import ScoreItem
from rewards.functions import coroutines
from rewards.functions.arguments import Chat, InvalidRewardError, ResponseFacts
from rewards.functions.calling_conventions import Binding, bind
from rewards.functions.results import FunctionResult, Verdict, read_result, weigh
from rewards.functions.signatures import read_signature


class FunctionCall(NamedTuple):
    """A function and its arguments."""

    function: Callable[..., Any]
    positional: list[Any]
    named: dict[str, Any]

    def result(self) -> Any:
        """Return its result, waited for where it is a coroutine."""
        returned = self.function(*self.positional, **self.named)
        return coroutines.run(returned) if inspect.isawaitable(returned) else returned

    async def later(self) -> Any:
        """The same of a coroutine function, while others run."""
        return await self.function(*self.positional, **self.named)


@dataclass(frozen=True)
class RewardFunction:
    """A user's function, how it is called, and how much it counts."""

    label: str
    function: Callable[..., Any]
    binding: Binding
    weight: float = 1.0

    def read(self, returned: Any) -> FunctionResult | None:
        """Read its score of one response, by its convention; None: it does not apply."""
        return read_result(returned, self.binding.convention.returns)

    def read_each(self, returned: Any, number: int, what: str) -> list[FunctionResult | None]:
        """Read its scores of `number` things, whose list it returned; else InvalidRewardError."""
        if hasattr(returned, "tolist"):
            returned = returned.tolist()
        if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
            raise InvalidRewardError(
                f"the result is {type(returned).__name__}, where a list of {number} belongs, one "
                f"entry for each of the {what}"
            )
        if len(returned) != number:
            raise InvalidRewardError(f"a list of {len(returned)} for {number} {what}")
        return list(map(read_result, returned))

    @property
    def waits(self) -> bool:
        """True if the function is a coroutine function."""
        called = getattr(self.function, "__call__", None)  # noqa: B004
        return any(map(inspect.iscoroutinefunction, (self.function, called)))


@dataclass(frozen=True)
class RewardFunctions:
    """The functions of a source: a weighted sum.

    An item becomes calls, their results a verdict; groups and lines do both in their own way."""

    functions: tuple[RewardFunction, ...]
    threshold: float
    """From this score on an answer is right, where a function does not say so itself."""

    def __call__(self, item: ScoreItem) -> Verdict:
        """The verdict on an item."""
        return self.verdict(item, [call.result() for call in self.calls(item)])

    async def later(self, item: ScoreItem) -> Verdict:
        """The same of coroutine functions, while others run."""
        return self.verdict(item, [await call.later() for call in self.calls(item)])

    def calls(self, item: ScoreItem) -> list[FunctionCall]:
        """A call of each function."""
        known = {chat: ResponseFacts(item, chat) for chat in get_args(Chat)}
        return [
            FunctionCall(f.function, *f.binding.arguments(item, known[f.binding.convention.chat]))
            for f in self.functions
        ]

    def verdict(self, item: ScoreItem, returned: Sequence[Any]) -> Verdict:
        """Return the verdict from what the functions returned."""
        return self.weighed([f.read(r) for f, r in zip(self.functions, returned, strict=True)])

    def weighed(self, results: Sequence[FunctionResult | None]) -> Verdict:
        """One verdict from what each function says of a response."""
        pairs = zip(self.functions, results, strict=True)
        return weigh([(f.label, f.weight, r) for f, r in pairs], threshold=self.threshold)

    @property
    def waits(self) -> bool:
        """True if all functions are coroutine functions."""
        return all(f.waits for f in self.functions)

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns of the dataset that they cannot do without."""
        return tuple(dict.fromkeys(n for f in self.functions for n in f.binding.needs))

    @property
    def asks_ids(self) -> bool:
        """True if one of them takes token ids that do not come by themselves."""
        return any(f.binding.asks_ids for f in self.functions)


def load_functions(config: SourceConfig) -> RewardFunctions:
    """The functions that a recipe names; UserError where one cannot be had."""
    alone = () if config.function is None else (WeightedFunction(name=config.function),)
    found = [
        RewardFunction(f.label, f.function, f.binding, entry.weight * f.weight)
        for entry in (*alone, *config.functions)
        for f in _load(entry.name, entry.adapter or config.adapter)
    ]
    if not found:
        raise UserError("reward.kind is `function`: name one with reward.function=module:name")
    return RewardFunctions(tuple(_with_own_labels(found)), config.correct_threshold)


def _load(name: str, adapter: Adapter | None) -> Iterator[RewardFunction]:
    """The functions of this name; UserError where there is none, and whatever its module raises."""
    where = f"reward.function={name!r}"
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise UserError(f"{where}: write package.module:name or path/to/file.py:name")
    try:
        found: Any = getattr(load_module(place), attribute, None)
    except (ModuleNotFoundError, UserError) as error:
        raise UserError(f"{where}: cannot import it ({error})") from error
    if attribute == "load_environment" and inspect.isfunction(found):
        found = found()
    rubrics = list(_rubrics(found))
    if not rubrics:
        if not callable(found):
            raise UserError(f"{where}: {place} has no function {attribute!r}")
        binding = bind(read_signature(found, where), where, adapter=adapter)
        yield RewardFunction(attribute, found, binding)
    for rubric in rubrics:
        yield from _of_rubric(rubric, where)


def _rubrics(found: object) -> Iterator[Any]:
    """Yield the rubrics of an object: it is one, or holds one (environment) or several."""
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
