"""Lines that a user sees, as `docs/operations.md` has them.

In: a line as a program prints it. Out: whether the table of lines has one of that form, in which
NAME, RUN, PATH, WHY and TEXT stand for any words and N for a number.
"""

import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "operations.md"
_TITLE = "## What a user sees, and what to do"
_ANY = {"NAME": r"\S+", "RUN": r"\S+", "PATH": r".+", "WHY": r".+", "TEXT": r".+", "N": r"[\d.,]+"}


@cache
def lines() -> tuple[str, ...]:
    """The first cell of each row of the table."""
    section = PAGE.read_text(encoding="utf-8").split(_TITLE, 1)[1].split("\n## ", 1)[0]
    return tuple(re.findall(r"^\| `(.+?)` \|", section, re.MULTILINE))


def is_documented(line: str) -> bool:
    """Whether the page has such a line."""
    return any(re.fullmatch(_form(each), line, re.DOTALL) for each in lines())


def _form(line: str) -> str:
    words = re.split(rf"\b({'|'.join(_ANY)})\b", line)
    return "".join(_ANY[word] if word in _ANY else re.escape(word) for word in words)
