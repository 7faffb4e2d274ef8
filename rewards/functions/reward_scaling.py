"""Scaling of scores to rewards, as a source of rewards says.

In: a source, an item, and what its verifier says of it. Out: the verdict that counts. Pure.
Promises: what training sees of every kind, unit and pace of scoring is decided here; an item has as
many verdicts as it asked for, else it is InvalidRewardError.
"""

import math
import re
from dataclasses import replace

from headrace.config.sections.reward import SourceConfig
from headrace.protocol.messages.control import ScoreItem
from rewards.functions.arguments import InvalidRewardError
from rewards.functions.results import Verdict


def early_verdict(source: SourceConfig, item: ScoreItem) -> Verdict | None:
    """Return the verdict on a response that lacks end or format; else None, as for groups."""
    return blocked_verdict(source, item) if source.unit == "trajectory" else None


def blocked_verdict(source: SourceConfig, item: ScoreItem) -> Verdict | None:
    """Return the verdict that precedes the kind's; None where the kind's counts."""
    if not item.finished and source.require_finish:
        return unfinished(source)
    if source.format is not None and not re.fullmatch(source.format, item.text, re.DOTALL):
        verdict = unfinished(source)
        return replace(verdict, parts={**verdict.parts, "format": 0.0})
    return None


def waits_for_an_end(source: SourceConfig, item: ScoreItem) -> bool:
    """Return whether a response lacks an end that it needs; groups and lines need none."""
    return not item.finished and source.require_finish and source.unit == "trajectory"


def scale_verdict(
    source: SourceConfig, item: ScoreItem, verdict: Verdict, *, graded: bool
) -> Verdict:
    """Scale a verdict. `graded`: a score alone, made right by `correct_threshold`."""
    match source.unit:
        case "trajectory":
            return scale_response(source, verdict, graded=graded)
        case "group":
            return _of_siblings(source, item, verdict, graded=graded)
        case "line":
            return _of_lines(item, verdict)


def _of_siblings(
    source: SourceConfig, item: ScoreItem, verdict: Verdict, *, graded: bool
) -> Verdict:
    """Scale the siblings' verdicts; without end or format they have theirs already."""
    given = verdict.siblings
    if len(given) != len(item.siblings):
        raise InvalidRewardError(f"{len(given)} verdicts for {len(item.siblings)} siblings")
    earned = (each and scale_response(source, each, graded=graded) for each in given)
    seen = zip(item.siblings, earned, strict=True)
    each = tuple(blocked_verdict(source, sibling) or v for sibling, v in seen)
    if not any(each):
        raise InvalidRewardError("all siblings get None, so no reward applies to this group")
    return Verdict(siblings=each)


def _of_lines(item: ScoreItem, verdict: Verdict) -> Verdict:
    """Check the scores of lines; the coordinator pays them before their response ends."""
    if len(verdict.lines) != len(item.line_ends):
        raise InvalidRewardError(f"{len(verdict.lines)} scores for {len(item.line_ends)} lines")
    for score in verdict.lines:
        if score is not None and not math.isfinite(score):
            raise InvalidRewardError(f"the score of a line is {score}, not a finite number")
    return verdict


def unfinished(source: SourceConfig) -> Verdict:
    """Return the verdict on a response without an end."""
    parts = {} if source.kind == "function" else {"correct": 0.0}
    return Verdict(source.wrong_reward, False, parts)


def scale_response(source: SourceConfig, verdict: Verdict, *, graded: bool) -> Verdict:
    """Scale one response's verdict. A score that was on another scale is a part."""
    if source.format is not None:
        verdict = replace(verdict, parts={"format": 1.0, **verdict.parts})
    if source.pays_itself():
        return verdict
    score, correct, parts = verdict.reward, verdict.correct, verdict.parts
    if graded:
        correct = score >= source.correct_threshold
        parts = {"correct": float(correct), **parts}
    if source.score_range is not None:
        low, high = source.score_range
        parts = {"score": score, **parts}
        score = min(max((score - low) / (high - low), 0.0), 1.0)
    return replace(verdict, reward=_earned(source, score), correct=correct, parts=parts)


def _earned(source: SourceConfig, score: float) -> float:
    """Map a score between a wrong answer's 0 and a right one's 1 to its reward."""
    if score in (0.0, 1.0):
        return source.correct_reward if score else source.wrong_reward
    return source.wrong_reward + (source.correct_reward - source.wrong_reward) * score
