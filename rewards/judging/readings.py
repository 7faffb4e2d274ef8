"""Reading of a judge's reply.

In: a reply (its text, and its tokens' log-probabilities where the server gives them). Out: p(yes),
or a number. Pure. What cannot be read is an InvalidRewardError, never a score.
"""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from headrace.data.answer_text import without_thought
from rewards.functions.arguments import InvalidRewardError

GROUP = "score"
"""Name of the group of a pattern that is the score."""
JUDGES_THOUGHT = "think"
_SHOWN = 80


class JudgeReply(NamedTuple):
    """A judge's reply.

    `alternatives`: for each of its tokens the log-probabilities of the likeliest tokens there, the
    sampled one first; empty where the server gives none."""

    text: str
    alternatives: tuple[Mapping[str, float], ...] = ()
    tokens_in: int = 0
    tokens_out: int = 0


def two_token(yes: float, no: float) -> float:
    """Return sigma(l_yes - l_no), p(yes) by logits or log-probabilities (Pairwise-RL)."""
    return (1.0 + math.tanh((yes - no) / 2)) / 2


def both_orders(front: float, back: float) -> float:
    """Return the probability that a response beats its anchor, free of position bias.

    `front`: p(yes), the response first; `back`: p(yes), the anchor first (Pairwise-RL)."""
    return 0.5 * (front + 1.0 - back)


def yes_probability(reply: JudgeReply, yes: str, no: str) -> float:
    """Return the probability of yes.

    That of the token where the judge says yes or no, else of its first; without logprobs 1 or 0."""
    place = _deciding(reply, yes, no)
    if place is not None:
        found_yes, found_no = _mass(place, yes), _mass(place, no)
        # What is not among the likeliest is at most as likely as the last of them.
        least = min(place.values())
        if found_yes is not None or found_no is not None:
            return two_token(
                least if found_yes is None else found_yes, least if found_no is None else found_no
            )
    text = without_thought(reply.text, JUDGES_THOUGHT)
    either = rf"(?<!\w)(?:(?P<yes>{re.escape(yes.strip())})|{re.escape(no.strip())})(?!\w)"
    said = list(re.finditer(either, text, re.IGNORECASE))
    if not said:
        raise InvalidRewardError(
            f"the judge said neither {yes.strip()!r} nor {no.strip()!r}: {_shown(reply.text)}"
        )
    return float(said[-1]["yes"] is not None)


def number(reply: JudgeReply, pattern: str, low: float, high: float) -> float:
    """The last number that the pattern's group finds, as a share of the scale."""
    text = without_thought(reply.text, JUDGES_THOUGHT)
    found = [match[GROUP] for match in re.finditer(pattern, text, re.IGNORECASE) if match[GROUP]]
    if not found:
        raise InvalidRewardError(f"no score in the judge's answer: {_shown(reply.text)}")
    try:
        value = float(found[-1])
    except ValueError:
        raise InvalidRewardError(f"the judge's score {found[-1][:_SHOWN]!r} is no number") from None
    if not low <= value <= high:
        raise InvalidRewardError(f"the judge's score {value:g} is not between {low:g} and {high:g}")
    return (value - low) / (high - low)


def _deciding(reply: JudgeReply, yes: str, no: str) -> Mapping[str, float] | None:
    """The place where the judge says yes or no, else the first, unless a thought begins there."""
    words, so_far = {spelled(yes), spelled(no)}, ""
    sampled = [next(iter(place), "") for place in reply.alternatives]
    # A thought whose beginning stands in the prompt has its end alone here.
    thought_end = "".join(sampled).rfind(f"</{JUDGES_THOUGHT}>")
    for token, place in zip(sampled, reply.alternatives, strict=True):
        if spelled(token) in words and len(so_far) > thought_end and not _thinks(so_far):
            return place
        so_far += token
    if not reply.alternatives or _thinks(so_far) or thought_end >= 0:
        return None
    return reply.alternatives[0]


def _thinks(text: str) -> bool:
    return text.count(f"<{JUDGES_THOUGHT}>") > text.count(f"</{JUDGES_THOUGHT}>")


def _mass(place: Mapping[str, float], word: str) -> float | None:
    """The log-probability of a word in all its spellings (`Yes`, ` yes`)."""
    found = [value for token, value in place.items() if spelled(token) == spelled(word)]
    if not found:
        return None
    top = max(found)
    return top + math.log(math.fsum(math.exp(value - top) for value in found))


def spelled(token: str) -> str:
    """A token or word without capitals and blanks around it."""
    # Tokens of some servers show their leading blank as a mark.
    return token.replace("\u0120", " ").replace("\u2581", " ").strip().casefold()


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
