"""Pairs of a run's own answers: right against wrong ones of one group.

In: answers with their groups. Out: pairs. Promise: every right and every wrong answer is used
before any is used again, and two equal answers make no pair.
"""

from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from typing import NamedTuple

from rewards.models.encoding import Prompt
from rewards.models.training.examples import PreferencePair
from tasks.rows import prompt_text


class GroupAnswer(NamedTuple):
    """An answer of a `group` (empty: its prompt's); `correct` None: it makes no pair."""

    group: str
    prompt: Prompt
    text: str
    correct: bool | None


def pairs_of(answers: Iterable[GroupAnswer], *, per_group: int) -> list[PreferencePair]:
    """At most `per_group` pairs of each group that has right and wrong answers, in order."""
    groups: dict[tuple[str, str], list[GroupAnswer]] = {}
    for answer in answers:
        groups.setdefault((answer.group, prompt_text(answer.prompt)), []).append(answer)
    return [pair for members in groups.values() for pair in _pairs(members, per_group)]


def _pairs(members: Sequence[GroupAnswer], per_group: int) -> list[PreferencePair]:
    right = _texts(members, correct=True)
    wrong = [text for text in _texts(members, correct=False) if text not in right]
    if not right or not wrong:
        return []
    count = max(len(right), len(wrong))
    matched = zip(islice(cycle(right), count), islice(cycle(wrong), count), strict=True)
    prompt, group = members[0].prompt, members[0].group
    return [
        PreferencePair(prompt, chosen, rejected, where=f"group {group}" if group else "")
        for chosen, rejected in islice(matched, per_group)
    ]


def _texts(members: Sequence[GroupAnswer], *, correct: bool) -> list[str]:
    return list(dict.fromkeys(m.text for m in members if m.correct is correct and m.text))
