"""The `math` verifier: is the final answer of a response the right one?

In: a response, the right answer, the marker of the final answer if the task has one. Out: right or
wrong. Where both answers are plain numbers they are compared exactly; everything else goes to
math-verify, which is loaded at its first use. It may run for ever on degenerate text: the caller
runs it in a process that can be killed (its own alarms are off).
"""

import logging
import re
from functools import lru_cache
from typing import Any

from rewards.exact_match import answer_after
from rewards.exact_number import read_number

_BOXED = re.compile(r"\\+(?:boxed|fbox)\s*\{")
_HASHES = re.compile(r"^####[ \t]*(\S.*)$", re.MULTILINE)
_DELIMITED = re.compile(r"\$|\\+[(\[]|\\+boxed")
_COMMAND = re.compile(r"\\[a-zA-Z]+(?:\s*\{[a-zA-Z*]+\})?")
_WORD = re.compile(r"[^\W\d_]{4,}|[^\W\d_]{2,}\s+[^\W\d_]{2,}")
_JOINT = re.compile(r"(?:\\[a-zA-Z]*|and|or|[\s{}$,;.()\[\]])*")


def is_right(text: str, answer: str, *, marker: str | None = None) -> bool:
    """Whether the final answer in `text` equals `answer`.

    With a marker the final answer is what follows its last occurrence; without the marker in the
    text the response has no answer. Without one it is the last box, what follows `####`, or the
    last expression. Raises ValueError when `answer` itself cannot be read.
    """
    given = final_answer(text) if marker is None else answer_after(text, marker)
    if marker is not None and not given:
        return False
    target = final_answer(answer)
    short = answer if target is None else target
    wanted = read_number(short)
    value = read_number(text if given is None else given)
    if wanted is not None and value is not None:
        return wanted == value
    return _equal(short, text if given is None else given)


def final_answer(text: str) -> str | None:
    """The content of the last box, or the line after `####`; None where there is neither, or where
    several boxes stand side by side and are the answer together."""
    boxes = _boxes(text)
    if boxes:
        start, _, content = boxes[-1]
        joined = len(boxes) > 1 and _JOINT.fullmatch(text, boxes[-2][1], start)
        return None if joined else content
    marked = _HASHES.findall(text)
    return marked[-1].strip() if marked else None


def load() -> None:
    """Import math-verify now, so that the first answer does not pay for it."""
    _math_verify()


def _boxes(text: str) -> list[tuple[int, int, str]]:
    """(start, end, content) of every closed box, in order."""
    boxes = []
    for match in _BOXED.finditer(text):
        depth = 1
        for at in range(match.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if depth == 0:
                boxes.append((match.start(), at + 1, text[match.end() : at]))
                break
    return boxes


@lru_cache(maxsize=1)
def _math_verify() -> Any:
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return math_verify


def _as_math(text: str) -> str:
    """Put dollar signs around a text that is one bare formula; prose stays as it is."""
    text = text.strip()
    if _DELIMITED.search(text) or "\n" in text or _WORD.search(_COMMAND.sub(" ", text)):
        return text
    return f"${text}$"


def _equal(answer: str, given: str) -> bool:
    library = _math_verify()
    wanted = library.parse(_as_math(answer), parsing_timeout=None)
    if not wanted:
        raise ValueError(f"the right answer {answer[:80]!r} cannot be read as mathematics")
    found = library.parse(_as_math(given), parsing_timeout=None)
    return bool(library.verify(wanted, found, timeout_seconds=None))
