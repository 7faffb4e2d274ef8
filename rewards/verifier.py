"""From configuration to a verifier.

In: a source of rewards. Out: a verifier, which turns responses into verdicts. Building it loads
what it needs (math-verify, the user's module), so that scoring starts warm.
"""

import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from headrace.config.reward import SourceConfig
from headrace.errors import UserError
from headrace.protocol.messages import ScoreItem
from rewards import coroutines, kinds
from rewards.functions import load_functions
from rewards.verdict import Verdict

Judge = Callable[[ScoreItem], Verdict]
AsyncJudge = Callable[[ScoreItem], Awaitable[Verdict]]
Prepare = Callable[[bool], Iterable[None]]


@dataclass(frozen=True)
class Verifier:
    """Judges responses, one by one or, where it waits for others, many at a time."""

    judge: Judge
    needs: tuple[str, ...] = ()
    """Columns of the dataset that it cannot do without."""
    asks_ids: bool = False
    """Whether it takes token ids."""
    judge_later: AsyncJudge | None = None
    """The judge as a coroutine, of a verifier that scores many responses at a time."""
    concurrency: int = 0
    """How many at a time; 0: one by one."""
    graded: bool = False
    """Its verdicts are scores alone: the source's `correct_threshold` says what is right."""
    prepare: Prepare = field(default=lambda check: ())
    """See to what it depends on, yielding now and then while that takes time. True: raise UserError
    where it is not there, and do not wait."""

    def __call__(self, item: ScoreItem) -> Verdict:
        """The verdict on one response."""
        return self.judge(item)


def waiting(later: AsyncJudge, *, concurrency: int, **more: Any) -> Verifier:
    """A verifier that waits for others."""
    return Verifier(
        lambda item: coroutines.run(later(item)),
        judge_later=later,
        concurrency=concurrency,
        **more,
    )


def build_verifier(source: SourceConfig) -> Verifier:
    """The verifier of a source; UserError when it cannot be had."""
    if source.kind == "function":
        return _of_finished(_of_functions(source), Verdict(source.wrong_reward, False), source)
    kind = _of_kind(source)

    def paid(verdict: Verdict) -> Verdict:
        correct, parts = verdict.correct, verdict.parts
        if kind.graded:
            correct = verdict.reward >= source.correct_threshold
            parts = {"correct": float(correct), **parts}
        return Verdict(_pay(source, verdict.reward), correct, parts)

    later = kind.judge_later
    paying = replace(
        kind,
        judge=lambda item: paid(kind.judge(item)),
        judge_later=None if later is None else _then(later, paid),
        concurrency=_concurrency(source, kind),
    )
    return _of_finished(paying, Verdict(source.wrong_reward, False, {"correct": 0.0}), source)


def _of_functions(source: SourceConfig) -> Verifier:
    functions, threshold = load_functions(source), source.correct_threshold

    async def later(item: ScoreItem) -> Verdict:
        return await functions.later(item, threshold=threshold)

    found = Verifier(
        lambda item: functions(item, threshold=threshold), functions.needs, functions.asks_ids
    )
    if (source.concurrency or 1) > 1 and functions.waits:
        found = replace(found, judge_later=later)
    return replace(found, concurrency=_concurrency(source, found))


def _concurrency(source: SourceConfig, verifier: Verifier) -> int:
    """How many responses a child scores at a time; 0: one by one."""
    if verifier.judge_later is not None:
        return source.concurrency or verifier.concurrency
    if (source.concurrency or 1) > 1:
        who = "a function that is no coroutine" if source.kind == "function" else source.kind
        raise UserError(
            f"concurrency = {source.concurrency}: {who} scores one response at a time; use "
            "children for more"
        )
    return 0


def _then(later: AsyncJudge, after: Callable[[Verdict], Verdict]) -> AsyncJudge:
    async def judge(item: ScoreItem) -> Verdict:
        return after(await later(item))

    return judge


def _of_kind(source: SourceConfig) -> Verifier:
    """What a kind of `rewards.kinds` says of a response, as a score from 0 to 1."""
    module = kinds.load(source.kind)
    told = dict(source.options)
    if source.answer_marker is not None:
        told["answer_marker"] = source.answer_marker
    try:
        options = module.Options.model_validate_json(json.dumps(told), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"])) or "options"
        known = ", ".join(module.Options.model_fields) or "none"
        raise UserError(
            f"option {name} of kind {source.kind!r}: {first['msg'].lower()} (it knows {known})"
        ) from None
    seconds = getattr(options, "seconds", 0.0)
    if seconds >= source.timeout_s:
        raise UserError(
            f"option seconds of kind {source.kind!r} is {seconds:g}, and the source's deadline "
            f"timeout_s, which includes it, only {source.timeout_s:g}"
        )
    verifier: Verifier = module.build(options)
    return verifier


def _pay(source: SourceConfig, score: float) -> float:
    """What a score between a wrong answer's 0 and a right one's 1 earns."""
    if score in (0.0, 1.0):
        return source.correct_reward if score else source.wrong_reward
    return source.wrong_reward + (source.correct_reward - source.wrong_reward) * score


def _of_finished(verifier: Verifier, unfinished: Verdict, source: SourceConfig) -> Verifier:
    """The verifier of responses with an end; others have their verdict already."""
    if not source.require_finish:
        return verifier
    judge, later = verifier.judge, verifier.judge_later

    async def judge_later(item: ScoreItem) -> Verdict:
        assert later is not None
        return await later(item) if item.finished else unfinished

    return replace(
        verifier,
        judge=lambda item: judge(item) if item.finished else unfinished,
        judge_later=judge_later if later is not None else None,
    )
