"""The final answer of a text.

In: a response, or the right answer as a dataset writes it. Out: the answer, and whether it was
marked as such (a box, `####`, a tag, a text that is nothing else) or only looks like one: the last
sentence with "the answer is", the last bold words, the last formula. Linear in the text's length.
"""

import re
from dataclasses import dataclass
from typing import Literal

from headrace.data.answer_text import answer_after

SHORT = 200
"""Maximum characters of a one-line text that counts as an answer as it is."""
NEAR = 600
"""Characters examined before the last digit or formula when nothing marks the answer."""
_WIDE = 20_000

_BOX = re.compile(r"(?<!\\)\\+(?:boxed|fbox)\s*\{|\\[{}]|[{}]")
_BARE_BOX = re.compile(r"(?<!\\)\\+(?:boxed|fbox)\s*([^\s{}\\$]{1,40})")
_HASHES = re.compile(r"^####[ \t]*(\S.*)$", re.MULTILINE)
_TAG = re.compile(r"<answer>([^<]{1,2000})</answer>", re.IGNORECASE)
_TOLD = re.compile(
    r"\b(?:is|are|was|were|(?:will|would|must|should|has to|have to) be"
    r"|equals|gets?|gives?|gave|has|have)\s+([^.=\n]{1,80}(?:\.[0-9]+)?)\.?\s*$"
)
_LAST_WORD = re.compile(r"final\s+answer\s*(?:is|are|:)", re.IGNORECASE)
_ANNOUNCED = re.compile(
    r"\banswers?\b\**(?:\s+(?:to|for|of)\b[^.:\n]{0,60}?)?"
    r"\s*(?:\b(?:is|are|was|would be|should be|must be|equals)\b|:|=)\s*[:*]*\s*"
    r"|(?:\u7b54\u6848|\u7b54)\s*(?:\u662f|\u4e3a|:|\uff1a)\s*",
    re.IGNORECASE,
)
_FILLER = re.compile(r"^(?:therefore|thus|simply|just|either|both|option|choice)\b[\s,:]*", re.I)
# An exclamation mark may be a factorial.
_SENTENCE_END = re.compile(r"\n|[.?](?=\s|$|\*\*)")
_ALSO = re.compile(r"\s*(?:,\s*(?:and|or)?|and|or)\s*")
_TAIL = re.compile(
    r"[\s,]+(?:because|since|as|so|which|where|when|for which|and so|hence|I hope)\b.*", re.DOTALL
)
_BOLD = re.compile(r"\*\*(?=\S)([^*\n]{1,200}?)(?<=\S)\*\*")
_MATH = re.compile(
    r"\$\$(.{1,2000}?)\$\$|\\\[(.{1,2000}?)\\\]|\\\((.{1,2000}?)\\\)|(?<![\\$])\$([^$\n]{1,2000})\$",
    re.DOTALL,
)
_COMMAND = re.compile(r"\\(?:text|mbox|textbf|mathrm)\s*\{[^{}]*\}|\\[a-zA-Z]+|\$")
_WORD = re.compile(r"[^\W\d_]{2,}")
_BETWEEN = re.compile(r"\\(?:text\w*|mbox|q?quad)|[$\\{}\[\]()*&\s]+")
_JOINED = re.compile(r"(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])|[,;]")
_TURNS = re.compile(
    r"\b(?:but|thus|so|hence|therefore|no|not|wait|instead|actually|wrong|then|is|are|answer|if"
    r"|check|gives?|get|we)\b",
    re.IGNORECASE,
)


Certainty = Literal["marked", "likely", "perhaps"]


@dataclass(frozen=True)
class FinalAnswer:
    """A final answer and its certainty.

    It is marked as the answer, announced or set apart, or merely the end of the text. `around` is
    the part of the text to search further where it is not marked."""

    answer: str
    certainty: Certainty
    around: str = ""

    @property
    def marked(self) -> bool:
        """True if the text marks it as the answer and as nothing else."""
        return self.certainty == "marked"


def find(text: str) -> FinalAnswer:
    """The final answer of a text."""
    boxes, open_box = _boxes(text)
    if boxes:
        after = text[boxes[-1].end :]
        if said := _said_last(after):
            return FinalAnswer(said, "marked")
        return FinalAnswer(", ".join(_joined(text, boxes)), "marked")
    if open_box is not None:
        return FinalAnswer(open_box, "marked")
    text = text[-_WIDE:]
    if marked := _hashed(text) or _TAG.findall(text):
        return FinalAnswer(marked[-1].strip(), "marked")
    bare = text.strip()
    if len(bare) <= SHORT and "\n" not in bare and _stands_alone(bare):
        return FinalAnswer(bare, "likely" if _words(bare) else "marked", bare)
    return FinalAnswer(*_likely(bare), _around(bare))


def _hashed(text: str) -> list[str]:
    """Answers behind `####`, as GSM8K writes answers; headings of Markdown are none."""
    return [
        match[1]
        for match in _HASHES.finditer(text)
        if not _words(match[1]) or not (text[match.end() :].strip() or _ANNOUNCED.search(match[1]))
    ]


def stated_value(text: str) -> str:
    """Return the value stated last; empty without one, or where one is announced."""
    found = None if _ANNOUNCED.search(text) else _TOLD.search(text[-SHORT:])
    return found[1].strip() if found else ""


@dataclass(frozen=True)
class _Box:
    start: int
    end: int
    content: str


def _boxes(text: str) -> tuple[list[_Box], str | None]:
    """Return all closed boxes, and the content of the last box if it stays open."""
    boxes: list[_Box] = []
    # What each open brace is: where its box began and its content begins, or None.
    opened: list[tuple[int, int] | None] = []
    for match in _BOX.finditer(text):
        sign = match[0]
        if sign in ("\\{", "\\}"):
            continue
        if sign == "}":
            begun = opened.pop() if opened else None
            if begun is not None:
                boxes.append(_Box(begun[0], match.end(), text[begun[1] : match.start()]))
        else:
            opened.append(None if sign == "{" else (match.start(), match.end()))
    boxes.sort(key=lambda box: box.start)
    # A box inside a box is its content once more.
    outer: list[_Box] = []
    for box in boxes:
        if not outer or box.start >= outer[-1].end:
            outer.append(box)
    left = [begun for begun in opened if begun is not None]
    rest = text[left[-1][1] :].strip() if left else ""
    if not outer and not left and (bare := list(_BARE_BOX.finditer(text))):
        last = bare[-1]
        return [_Box(last.start(), last.end(), last[1])], None
    return outer, rest if 0 < len(rest) <= SHORT else None


def _joined(text: str, boxes: list[_Box]) -> list[str]:
    """The contents of the last boxes that belong together."""
    contents = [boxes[-1].content]
    for left, right in zip(reversed(boxes[:-1]), reversed(boxes), strict=False):
        between = text[left.end : right.start]
        if len(between) > 80:
            break
        words = _BETWEEN.sub(" ", between).strip()
        apart = _WORD.search(words) or re.search(r"[.:=]", words)
        joined = len(words) <= 40 and "." not in words and _JOINED.search(words)
        if _TURNS.search(words) or (apart and not joined):
            break
        if left.content.strip() != right.content.strip():
            contents.insert(0, left.content)
    return contents


def _said_last(after: str) -> str | None:
    """The answer in a sentence "the final answer is ..." that comes after the last box."""
    found = list(_LAST_WORD.finditer(after[:_WIDE]))
    if not found:
        return None
    said = _sentence(after[found[-1].end() :])
    return said if re.search(r"[\w]", said) else None


def _stands_alone(text: str) -> bool:
    """Return whether a short text is an answer (formulas, numbers, few words)."""
    bold = _BOLD.search(text)
    if _ANNOUNCED.search(text) or (bold and text[: bold.start()].strip()):
        return False
    if _MATH.search(text):
        # Between formulas only words that join them, behind them a unit.
        rest = _MATH.sub(" ", text)
        lone = [word for word in _WORD.findall(rest) if word not in ("and", "or")]
        return len(lone) <= 2 and not (lone and rest.lstrip().startswith(lone[0]))
    return len(_words(text)) <= 3


def _words(text: str) -> list[str]:
    return _WORD.findall(_COMMAND.sub(" ", text))


def _likely(text: str) -> tuple[str, Certainty]:
    """Return the likeliest answer in a text that does not mark it; empty without one."""
    if announced := list(_ANNOUNCED.finditer(text)):
        said = _sentence(text[announced[-1].end() :])
        if said:
            return said, "likely"
    last, end = _set_apart(text)
    if last and not re.search(r"[0-9]", text[end:]):
        return last, "likely"
    return last, "perhaps"


def _set_apart(text: str) -> tuple[str, int]:
    """The last formula or bold words, with those that are joined to it, and where they end."""
    found = [*_BOLD.finditer(text), *_MATH.finditer(text)]
    found.sort(key=lambda match: match.end())
    if not found:
        return "", 0
    contents: list[str] = []
    begin = len(text)
    for match in reversed(found):
        if contents and match.end() > begin:
            continue
        if contents and not _ALSO.fullmatch(text, match.end(), begin):
            break
        contents.insert(0, next(part for part in match.groups() if part).strip())
        begin = match.start()
    return ", ".join(contents), found[-1].end()


def _sentence(text: str) -> str:
    """The rest of a sentence, from its start to its end or to a clause that explains it."""
    text = text[:2000].lstrip(" \t\n:*")
    math = _MATH.match(text)
    if math and re.match(r"\s*(?:\.|,?\s*(?:which|because|since|I hope)|\n|$)", text[math.end() :]):
        return next(part for part in math.groups() if part).strip()
    end = len(text)
    for match in _SENTENCE_END.finditer(text):
        inside = text[: match.start()]
        if inside.count("$") % 2 == 0 and inside.count("{") <= inside.count("}"):
            end = match.start()
            break
    said = _TAIL.sub("", text[:end])
    return _FILLER.sub("", said).strip(" *\t")[:SHORT]


def _around(text: str) -> str:
    """The last part of a text in which there is something to calculate."""
    last = max(text.rfind("$"), *(text.rfind(digit) for digit in "0123456789"), text.rfind("\\"))
    if last < 0:
        return text[-NEAR:]
    begin = max(0, last - NEAR)
    # Not in the middle of a formula: from a line's or a sentence's start where there is one.
    if begin:
        cut = re.search(r"\n|\.\s", text[begin : begin + NEAR // 2])
        begin += cut.end() if cut else 0
    return text[begin : last + NEAR // 2]


def wanted_answer(answer: str, marker: str | None) -> str:
    """Return a dataset's right answer; of a worked solution what follows the marker.

    No given answer can hold the marker. Raises ValueError when it is empty."""
    after = None if marker is None else answer_after(answer, marker)
    wanted = answer if after is None else after
    if not wanted.strip():
        raise ValueError("the right answer is empty")
    return wanted
