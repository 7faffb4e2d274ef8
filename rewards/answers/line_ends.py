"""Lines of an answer: the tokens at which they end, and which of them count.

In: the texts of an answer's tokens, which end to end are the answer. Out: its lines in order, each
with the token that holds its end. Pure. Promises: the lines end to end are the answer; no two of
them end at the same token; how an answer is cut into tokens changes where its lines end and never
what is neutral, but for lines that end at one token.

A line ends at the token that holds its newline; several newlines in one token are one line end.
What follows the last newline is a line that ends at the last token with a text. Blank lines and
comments are neutral: nothing is paid for them, so that nobody learns to write more of them. Where
there is a fenced code block, so is everything outside of it (PSGPO, arXiv 2410.17621).
"""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

COMMENTS = ("#",)
"""Beginnings of a comment."""

_FENCE = "```"
_OPENS = re.compile(r"```[ \t]*\w*\s*")


class AnswerLine(NamedTuple):
    """A line of an answer; lines that end at one token are one.

    `text` has its newlines (the last line may have none), `end` is the index of its last token."""

    text: str
    end: int
    neutral: bool


def split_lines(
    token_texts: Sequence[str], *, comments: Sequence[str] = COMMENTS, fenced: bool | None = None
) -> list[AnswerLine]:
    """The lines of an answer.

    Args:
        token_texts: what each token stands for; empty for one that stands for nothing. comments:
        what a comment begins with, after blanks. fenced: whether only lines inside of a fenced code
        block count. None: where there is one. For an unfinished answer the caller must decide,
        since its block may come later.
    """
    written = _written(token_texts)
    neutral = neutral_lines([text for text, _ in written], comments=comments, fenced=fenced)
    pairs = zip(written, neutral, strict=True)
    lines = []
    for end, ended in groupby(pairs, key=lambda pair: pair[0][1]):
        texts, flags = zip(*((text, flag) for (text, _), flag in ended), strict=True)
        lines.append(AnswerLine("".join(texts), end, all(flags)))
    return lines


def neutral_lines(
    lines: Sequence[str], *, comments: Sequence[str] = COMMENTS, fenced: bool | None = None
) -> list[bool]:
    """For each line return whether it is neutral; arguments as for `split_lines`."""
    inside = _inside_fences(lines)
    if fenced is None:
        fenced = any(inside)
    bare = [line.strip() for line in lines]
    return [
        not line or line.startswith(tuple(comments)) or (fenced and not within)
        for line, within in zip(bare, inside, strict=True)
    ]


def cut_like(lines: Sequence[AnswerLine], text: str) -> list[str]:
    """Cut a text where its tokens' lines end, by newlines; tokens may lack its blanks."""
    found, begin = [], 0
    for line in lines:
        end = begin
        for _ in range(line.text.count("\n")):
            end = text.find("\n", end) + 1 or len(text)
        found.append(text[begin:end])
        begin = end
    if found:
        # The last line may go on behind its last newline.
        found[-1] += text[begin:]
    return found


def neutral_ends(lines: Sequence[AnswerLine], ends: Sequence[int]) -> list[bool]:
    """For each token return whether no line that counts ends there (such as the end token)."""
    known: Mapping[int, bool] = {line.end: line.neutral for line in lines}
    return [known.get(end, True) for end in ends]


def _written(token_texts: Sequence[str]) -> list[tuple[str, int]]:
    """Every line as it is written, with the token at which it ends."""
    lines: list[tuple[str, int]] = []
    begun, last = "", 0
    for place, text in enumerate(token_texts):
        *closed, rest = text.split("\n")
        for piece in closed:
            lines.append((f"{begun}{piece}\n", place))
            begun = ""
        begun, last = begun + rest, place if rest else last
    if begun:
        lines.append((begun, last))
    return lines


def _inside_fences(lines: Sequence[str]) -> list[bool]:
    """For each line return whether it stands behind an open fence."""
    inside, found = False, []
    for line in lines:
        fence = line.startswith(_FENCE)
        opens = not inside and fence and _OPENS.fullmatch(line) is not None
        found.append(inside and not fence)
        inside = opens or (inside and not fence)
    return found
