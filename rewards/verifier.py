"""From configuration to a verifier.

In: a source of rewards. Out: a verifier, which turns one response into a verdict. Building it loads
what it needs (math-verify, the user's module), so that scoring starts warm.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from pydantic import ValidationError

from headrace.config.reward import SourceConfig
from headrace.errors import UserError
from headrace.protocol.messages import ScoreItem
from rewards import kinds
from rewards.functions import load_functions
from rewards.groups import load_group_functions
from rewards.known import InvalidRewardError
from rewards.line_functions import load_line_functions
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
    found = _of_functions(source) if source.kind == "function" else _of_kind(source)
    pays_itself = source.kind == "function" and source.score_range is None
    paid = found.judge if pays_itself else _paid(found.judge, source)
    match source.unit:
        case "trajectory":
            judge = _of_finished(paid, source)
        case "group":
            judge = _of_siblings(paid, source)
        case "line":
            judge = _of_lines(found.judge)
    return replace(found, judge=judge)


def _of_functions(source: SourceConfig) -> Verifier:
    """What functions say."""
    match source.unit:
        case "trajectory":
            functions = load_functions(source)
            threshold = source.correct_threshold
            return Verifier(
                lambda item: functions(item, threshold=threshold),
                functions.needs,
                functions.asks_ids,
            )
        case "group":
            groups = load_group_functions(source)
            needs, asks_ids = groups.functions.needs, groups.functions.asks_ids
            return Verifier(lambda item: Verdict(siblings=tuple(groups(item))), needs, asks_ids)
        case "line":
            lines = load_line_functions(source)
            return Verifier(lambda item: Verdict(lines=lines(item)), lines.needs)


def _of_kind(source: SourceConfig) -> Verifier:
    """What a kind of `rewards.kinds` says: scores from 0 to 1."""
    module = kinds.load(source.kind)
    units = getattr(module, "UNITS", ("trajectory",))
    if source.unit not in units:
        known = " and ".join(f'"{unit}"' for unit in units)
        raise UserError(f'kind {source.kind!r} has no unit "{source.unit}" (it has {known})')
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


def _paid(judge: Judge, source: SourceConfig) -> Judge:
    """The judge whose scores earn what the source says."""

    def paid(item: ScoreItem) -> Verdict:
        verdict = judge(item)
        if item.unit == "group":
            priced = tuple(each and _priced(source, each) for each in verdict.siblings)
            return replace(verdict, siblings=priced)
        return _priced(source, verdict)

    return paid


def _priced(source: SourceConfig, verdict: Verdict) -> Verdict:
    """The verdict with what its score earns. A score that was put on another scale is a part."""
    score, parts = verdict.reward, verdict.parts
    if source.score_range is not None:
        low, high = source.score_range
        parts = {"score": score, **parts}
        score = min(max((score - low) / (high - low), 0.0), 1.0)
    return replace(verdict, reward=_pay(source, score), parts=parts)


def _pay(source: SourceConfig, score: float) -> float:
    """What a score between a wrong answer's 0 and a right one's 1 earns."""
    if score in (0.0, 1.0):
        return source.correct_reward if score else source.wrong_reward
    return source.wrong_reward + (source.correct_reward - source.wrong_reward) * score


def _of_finished(judge: Judge, source: SourceConfig) -> Judge:
    """The judge of responses with an end; others have their verdict already."""
    unfinished = _unfinished(source)
    if not source.require_finish:
        return judge
    return lambda item: judge(item) if item.finished else unfinished


def _unfinished(source: SourceConfig) -> Verdict:
    parts = {} if source.kind == "function" else {"correct": 0.0}
    return Verdict(source.wrong_reward, False, parts)


def _of_siblings(judge: Judge, source: SourceConfig) -> Judge:
    """The judge of groups: it sees all siblings, and those without an end have their verdict
    already."""
    unfinished = _unfinished(source)

    def judged(item: ScoreItem) -> Verdict:
        given = judge(item).siblings
        if len(given) != len(item.siblings):
            raise InvalidRewardError(f"{len(given)} verdicts for {len(item.siblings)} siblings")
        seen = [i.finished or not source.require_finish for i in item.siblings]
        counts = (v if ends else unfinished for ends, v in zip(seen, given, strict=True))
        return Verdict(siblings=tuple(counts))

    return judged


def _of_lines(judge: Judge) -> Judge:
    """The judge of lines, which may be those of a response without an end."""

    def judged(item: ScoreItem) -> Verdict:
        verdict = judge(item)
        if len(verdict.lines) != len(item.line_ends):
            raise InvalidRewardError(f"{len(verdict.lines)} scores for {len(item.line_ends)} lines")
        for score in verdict.lines:
            if score is not None and not math.isfinite(score):
                raise InvalidRewardError(f"the score of a line is {score}, not a finite number")
        return verdict

    return judged
