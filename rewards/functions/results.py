"""Scores from what reward functions return.

In: what came back for one response: a number, a list with one entry, an array or a tensor, a dict,
an object with a `reward`, or None. Out: a score, the function's opinion of the answer, and parts;
None where the function does not apply. Everything else raises InvalidRewardError, so that a mistake
never becomes a reward of zero.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rewards.functions.arguments import InvalidRewardError

MAX_PARTS = 64
Form = Literal["one", "list", "first"]
"""Form of a returned reward: itself, a list with one per response, or a tuple's first."""
SCORES = ("score", "reward", "rewards")
"""The entry of a dict that is the reward."""
JUDGEMENTS = ("correct", "acc", "is_correct")
"""Entries that say whether the answer is right; only ours has to be true or false."""


@dataclass(frozen=True)
class Verdict:
    """A verifier's judgement of one response, of its lines, or of a group.

    `reward` is what training sees, `correct` whether the answer is right, `parts` are further
    numbers to look at.

    A source of lines gives `lines` instead, one score for each line that was asked for (None: a
    neutral line, such as a comment), and a source of groups `siblings`, one verdict for each of
    them (None: no reward applies to this one)."""

    reward: float = 0.0
    correct: bool = False
    parts: dict[str, float] = field(default_factory=dict)
    lines: tuple[float | None, ...] = ()
    siblings: "tuple[Verdict | None, ...]" = ()
    model: str | None = None
    """The model that gave the score, where the run trains it."""


class FunctionResult(NamedTuple):
    """One function's score of one response."""

    score: float
    correct: bool | None
    """None: it does not say."""
    parts: dict[str, float]


def read_result(result: object, form: Form = "one") -> FunctionResult | None:
    """The score in what a function returned; None where it returned None for this response."""
    if form == "first" and isinstance(result, tuple) and result:
        result = result[0]
    if form == "list" and result is not None and not _is_listed(result):
        raise InvalidRewardError(
            f"the result is {type(result).__name__} for a list of responses, not a list: if the "
            "function takes one response at a time, say whose it is with reward.adapter"
        )
    value = _single(result, "the result")
    if value is None:
        return None
    if hasattr(value, "reward") and not isinstance(value, Mapping):
        value = {k: getattr(value, k) for k in ("reward", "is_correct") if hasattr(value, k)}
    if isinstance(value, Mapping):
        return _read_dict(value)
    return FunctionResult(_finite("the result", value), None, {})


def _read_dict(result: Mapping[object, object]) -> FunctionResult | None:
    key = next((name for name in SCORES if name in result), None)
    if key is None:
        raise InvalidRewardError("the returned dict has no `score`")
    if len(result) > MAX_PARTS:
        raise InvalidRewardError(
            f"{len(result)} entries in the returned dict ({MAX_PARTS} at most)"
        )
    score = _single(result[key], f"`{key}`")
    if score is None:
        return None
    parts: dict[str, float] = {}
    for name, entry in result.items():
        if name != key:
            parts.update(_parts(str(name), entry))
    return FunctionResult(_finite(f"`{key}`", score), _judgement(parts, result), parts)


def _judgement(parts: Mapping[str, float], result: Mapping[object, object]) -> bool | None:
    if "correct" in result and parts.get("correct") not in (0.0, 1.0):
        raise InvalidRewardError(f"`correct` is {result['correct']!r:.40}, neither true nor false")
    for name in JUDGEMENTS:
        if parts.get(name) in (0.0, 1.0):
            return bool(parts[name])
    return None


def _parts(name: str, entry: object) -> dict[str, float]:
    """Numbers in an entry, one level deep; texts, None and lists of several are left out."""
    if isinstance(entry, Mapping):
        return {k: v for n, inner in entry.items() for k, v in _parts(f"{name}/{n}", inner).items()}
    if hasattr(entry, "tolist"):
        entry = entry.tolist()
    while isinstance(entry, list | tuple) and len(entry) == 1:
        entry = entry[0]
    name = name.encode(errors="replace").decode()  # half a character could not be sent
    return {name: _finite(f"part {name!r}", entry)} if hasattr(entry, "__float__") else {}


def _is_listed(value: object) -> bool:
    """Return whether it is a list, an array or a tensor with at least one dimension."""
    if isinstance(value, Sequence):
        return not isinstance(value, str | bytes)
    return bool(getattr(value, "ndim", 0))


def _single(value: object, what: str) -> object:
    """The one entry of a list, an array or a tensor; other values as they are."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if len(value) != 1:
            raise InvalidRewardError(f"{what} is a list of {len(value)} for one response")
        return _single(value[0], what)
    return value


def _finite(what: str, value: object) -> float:
    # Text is never a number here, although float("1.0") would read it.
    if not hasattr(value, "__float__"):
        raise InvalidRewardError(f"{what} is {type(value).__name__}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise InvalidRewardError(f"{what} is {number}, not a finite number")
    return number


def weigh(
    results: Sequence[tuple[str, float, FunctionResult | None]], *, threshold: float
) -> Verdict:
    """Combine results (label, weight, result) to the weighted sum of those that apply.

    The first of them with a weight says whether the answer is right: by itself, else from a score
    of `threshold` on. With several functions each one's score is a part under its label."""
    applied = [(label, weight, result) for label, weight, result in results if result is not None]
    if not applied:
        who = "the function says" if len(results) == 1 else "all functions say"
        raise InvalidRewardError(f"{who} None, so no reward applies to this response")
    first = next((result for _, weight, result in applied if weight), applied[0][2])
    correct = first.correct if first.correct is not None else first.score >= threshold
    reward = math.fsum(weight * result.score for _, weight, result in applied)
    if len(results) == 1:
        return Verdict(reward, correct, first.parts)
    parts = {label: result.score for label, _, result in applied}
    for label, _, result in applied:
        parts.update({f"{label}/{name}": part for name, part in result.parts.items()})
    return Verdict(reward, correct, dict(list(parts.items())[:MAX_PARTS]))
