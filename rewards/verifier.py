"""From configuration to a verifier.

In: a source of rewards. Out: a verifier, which turns one response into a verdict. Building it loads
what it needs (math-verify, the user's module), so that scoring starts warm.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import ValidationError

from headrace.config.reward import SourceConfig
from headrace.errors import UserError
from headrace.protocol.messages import ScoreItem
from rewards import kinds
from rewards.functions import load_functions
from rewards.verdict import Verdict

Judge = Callable[[ScoreItem], Verdict]


@dataclass(frozen=True)
class Verifier:
    """Judges responses one by one."""

    judge: Judge
    needs: tuple[str, ...] = ()
    """Columns of the dataset that it cannot do without."""
    asks_ids: bool = False
    """Whether it takes token ids."""

    def __call__(self, item: ScoreItem) -> Verdict:
        """The verdict on one response."""
        return self.judge(item)


def build_verifier(source: SourceConfig) -> Verifier:
    """The verifier of a source; UserError when it cannot be had."""
    if source.kind == "function":
        functions = load_functions(source)

        def scored(item: ScoreItem) -> Verdict:
            verdict = functions(item, threshold=source.correct_threshold)
            return verdict if source.score_range is None else _priced(source, verdict)

        unfinished = Verdict(source.wrong_reward, False)
        judge = _of_finished(scored, unfinished, source)
        return Verifier(judge, functions.needs, functions.asks_ids)
    kind = _of_kind(source)

    def paid(item: ScoreItem) -> Verdict:
        return _priced(source, kind(item))

    unfinished = Verdict(source.wrong_reward, False, {"correct": 0.0})
    return Verifier(_of_finished(paid, unfinished, source), kind.needs)


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


def _priced(source: SourceConfig, verdict: Verdict) -> Verdict:
    """The verdict with what its score earns. A score that was put on another scale is a part."""
    score, parts = verdict.reward, verdict.parts
    if source.score_range is not None:
        low, high = source.score_range
        parts = {"score": score, **parts}
        score = min(max((score - low) / (high - low), 0.0), 1.0)
    return Verdict(_pay(source, score), verdict.correct, parts)


def _pay(source: SourceConfig, score: float) -> float:
    """What a score between a wrong answer's 0 and a right one's 1 earns."""
    if score in (0.0, 1.0):
        return source.correct_reward if score else source.wrong_reward
    return source.wrong_reward + (source.correct_reward - source.wrong_reward) * score


def _of_finished(judge: Judge, unfinished: Verdict, source: SourceConfig) -> Judge:
    """The judge of responses with an end; others have their verdict already."""
    if not source.require_finish:
        return judge
    return lambda item: judge(item) if item.finished else unfinished
