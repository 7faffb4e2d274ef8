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

from rewards.exact_match import answer_after, wanted_answer
from rewards.exact_number import read_number, same_number

_BOXED = re.compile(r"\\+(?:boxed|fbox)\s*\{")
_HASHES = re.compile(r"^####[ \t]*(\S.*)$", re.MULTILINE)
_DELIMITED = re.compile(r"\$|\\+[(\[]|\\+boxed")
_DIGITS = re.compile(r"[-+]?[0-9]+(?:[ ,.][0-9]+)*")
_COMMAND = re.compile(r"\\[a-zA-Z]+(?:\s*\{[a-zA-Z*]+\})?")
_WORD = re.compile(r"[^\W\d_]{4,}|[^\W\d_]{2,}\s+[^\W\d_]{2,}")
_JOINT = re.compile(r"\s*(?:\\?[\s{}$,;.()\[\]]|\\(?:text|q?quad)|and|or)*")


def is_right(text: str, answer: str, *, marker: str | None = None) -> bool:
    """Whether the final answer in `text` equals `answer`.

    With a marker the final answer is what follows its last occurrence; a response without the
    marker has no answer. Without one it is the last box, what follows `####`, or the last
    expression. Raises ValueError when there is no right answer.
    """
    wanted_source = wanted_answer(answer, marker)
    given = text if marker is None else answer_after(text, marker)
    if not given:
        return False
    wanted_text, wanted_formula = _read(wanted_source)
    given_text, given_formula = _read(given)
    wanted, value = read_number(wanted_text), read_number(given_text)
    if wanted is not None and value is not None:
        return same_number(wanted, value)
    if _plain(wanted_text) == _plain(given_text):
        return True
    return _equal(wanted_formula, given_formula)


def boxed_answer(text: str) -> str | None:
    """The content of the last box; boxes that stand side by side (`\\boxed{1} and \\boxed{2}`) are
    one list. None without a box."""
    boxes = _boxes(text)
    if not boxes:
        return None
    contents = [boxes[-1][2]]
    for left, right in zip(reversed(boxes[:-1]), reversed(boxes), strict=False):
        if not _JOINT.fullmatch(text, left[1], right[0]):
            break
        contents.insert(0, left[2])
    return ", ".join(contents)


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


def _read(text: str) -> tuple[str, str]:
    """The answer in a text, bare (perhaps a number) and as math-verify is to see it."""
    box = boxed_answer(text)
    if box is not None:
        return box, f"$\\boxed{{{box}}}$"
    marked = _HASHES.findall(text)
    bare = (marked[-1] if marked else text).strip()
    return bare, bare if _is_prose(bare) else f"$\\boxed{{{bare}}}$"


def _is_prose(text: str) -> bool:
    """Whether math-verify has to look for the formula in the text. That is also so for digits with
    blanks or a comma among them, because math-verify knows how numbers are written in other
    countries."""
    if "\n" in text or _DELIMITED.search(text) or _DIGITS.fullmatch(text):
        return True
    return _WORD.search(_COMMAND.sub(" ", text)) is not None


def _plain(text: str) -> str:
    """The form in which answers in words are compared: the same words are the same answer."""
    return " ".join(text.split()).strip(" .").casefold()


def _equal(wanted: str, given: str) -> bool:
    library = _math_verify()
    gold = library.parse(wanted, parsing_timeout=None)
    found = library.parse(given, parsing_timeout=None)
    return bool(library.verify(gold, found, timeout_seconds=None))
