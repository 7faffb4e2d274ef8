"""The usual answers of the `math` verifier, told at a glance.

In: a response, the right answer, the marker of the final answer if the task has one. Out: right or
wrong, or None where only `math_answer` can say. Promises: what it says is what `math_answer` says;
it is never an error, loads nothing, and its time is linear in the length of the texts, so that it
needs no process of its own.
"""

import re
from decimal import Decimal

from rewards.exact_match import answer_after

_NUMBER = re.compile(r"[-+]?[0-9]{1,15}(?:\.[0-9]{1,15})?")
_BOXED = re.compile(r"\\boxed\{([^\s{}\\]{1,32})\}")
_BOXES = re.compile(r"boxed|fbox")
_SAID_LAST = re.compile(r"final\s+answer", re.IGNORECASE)


def at_a_glance(text: str, answer: str, *, marker: str | None = None) -> bool | None:
    """Whether the final answer in `text` equals `answer`, where both are plain numbers or the same
    text, or where the marker is missing."""
    wanted = answer
    if marker is not None:
        wanted = answer if (after := answer_after(answer, marker)) is None else after
    wanted = wanted.strip()
    if not wanted:
        return None
    given = text if marker is None else answer_after(text, marker)
    given = "" if given is None else given.strip()
    if not given:
        return False
    if given == wanted:
        return True
    if _NUMBER.fullmatch(wanted) is None:
        return None
    if marker is None:
        given = _boxed(given) or given
    return Decimal(given) == Decimal(wanted) if _NUMBER.fullmatch(given) else None


def _boxed(text: str) -> str | None:
    """What the only box of a text holds, where nothing behind it is called the answer."""
    if len(_BOXES.findall(text)) != 1:
        return None
    box = _BOXED.search(text)
    return None if box is None or _SAID_LAST.search(text, box.end()) else box[1]
