"""Letters of multiple choice.

In: an answer or a response. Out: the letter it chooses, or None. The article "A", the pronoun "I",
a letter behind "not" and one of several that is called wrong are no choices. Linear in the text.
"""

import re

from rewards.answers.notation import unwrap_text

LETTERS = "ABCDEFGHIJ"
_WIDE = 20_000
_REACH = 40
"""Maximum characters between "the answer is" and the letter of the answer."""

_ALONE = re.compile(r"\(?\s*([A-Za-z])\s*\)?\s*[.:)]?")
_LED = re.compile(r"(?:\(\s*([A-J])\s*\)|([A-J])\s*[).:])\s*(\S.*)", re.DOTALL)
_LABELLED = re.compile(r"([A-J])\s+([A-Z0-9\\$(].*)", re.DOTALL)
_CROWDED = re.compile(r"\\text\{\(?[A-Z]\)?\}[0-9]")
_LETTER = re.compile(
    r"(?<![A-Za-z0-9'\u2019\\_^=+-])([A-J])(?![A-Za-z0-9'\u2019_^=+(-]|\)?\}[0-9])"
)
_NEGATED = re.compile(
    r"(?:\bnot|n't|n\u2019t|\bnor|\bneither|\u4e0d\u662f)[\s(*]*$|[-+^](?:\\text\w*\{)?\(?$",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"\s*\)?[*_]*\s+(?:(?:is|are|was|must be)\s+(?:not|wrong|incorrect|false|out|eliminated"
    r"|impossible|ruled out)|isn't|isn\u2019t|cannot|can't|can\u2019t|fails|does not|doesn't)\b",
    re.IGNORECASE,
)
_GOES_ON = re.compile(r" (?!because|since|as |is |and |which|with |so |or )[a-z]")
_ANSWER = re.compile(r"answer|correct (?:option|choice)|final choice|\u7b54\u6848", re.IGNORECASE)
_CHOICE = re.compile(
    r"option|choice|choose|select|pick|go with|it's|it is|must be|therefore", re.IGNORECASE
)


def read_letter(text: str) -> tuple[str, str] | None:
    """Return the letter that an answer is and the text behind it (`(C) 12`), or None."""
    if _CROWDED.match(text):
        return None
    text = " ".join(unwrap_text(text).split())
    if match := _ALONE.fullmatch(text):
        return match[1], ""
    if match := _LED.fullmatch(text):
        return match[1] or match[2], match[3].strip()
    if match := _LABELLED.fullmatch(text):
        return match[1], match[2].strip()
    return None


def said_letter(text: str, letters: str = LETTERS) -> str | None:
    """Return the chosen letter: behind the last "answer", at the start, or the last alone."""
    text = text[-_WIDE:]
    alone = [
        (match.start(), match[1])
        for match in _LETTER.finditer(text)
        if match[1] in letters and _is_choice(text, match)
    ]
    # Said to be wrong, unless nothing else is said of any: then that may be the question.
    alone = [each for each in alone if not _REFUSED.match(text, each[0] + 1)] or alone
    if not alone:
        return None
    for announcement in (_ANSWER, _CHOICE):
        for said in reversed(list(announcement.finditer(text))):
            for start, letter in alone:
                if not 0 <= start - said.end() <= _REACH:
                    continue
                if not re.search(r"[.\n]\s", text[said.end() : start]):
                    return letter
    first, letter = alone[0]
    return letter if not text[:first].strip(" \n(*[\"'") else alone[-1][1]


def _is_choice(text: str, match: re.Match[str]) -> bool:
    if _NEGATED.search(text[max(0, match.start() - 12) : match.start()]):
        return False
    return match[1] not in "AI" or _GOES_ON.match(text, match.end()) is None
