"""Answers that consist of several answers, and inequalities of one unknown, which are intervals.

In: an answer in its one way of writing. Out: its items, and whether their order counts. A comma
between digits separates thousands where it can (`58,500`), and items everywhere else (`-2,1`,
`1,22`, `(1,234)`); a decimal comma is never read here.
"""

import re
from dataclasses import dataclass

MOST_ITEMS = 64

_WORD_BETWEEN = re.compile(
    r"\s*,?\s*(?:\\text\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-z])"
    r"|\\(?:lor|vee)(?![a-zA-Z]))\s*,?\s*"
)
_BOTH = re.compile(r"^(?:\\text\{\s*)?(?:either|both)\b\s*\}?\s*", re.IGNORECASE)
_TOKEN = re.compile(
    r"\\(?:langle|lfloor|lceil|begin\{[a-z*]+\})|\\(?:rangle|rfloor|rceil|end\{[a-z*]+\})"
    r"|\\[{}]|\\\\|[()\[\]{},;\x1f]"
)
_OPEN = ("(", "[", "{", "\\{", "\\langle", "\\lfloor", "\\lceil")
_THOUSANDS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9]|,[0-9])")
_CASES = re.compile(r"\\begin\{(?:cases|aligned|gathered)\}(.*)\\end\{(?:cases|aligned|gathered)\}")
_SIGN = re.compile(r"\\pm(?![a-zA-Z])|\\mp(?![a-zA-Z])")
_PLUS_MINUS = {"\\pm": "+-", "\\mp": "-+"}
_NAME = re.compile(
    r"(?:\\text\{[^{}]*\}|\\(?:angle|triangle|overline|widehat|mathbb|vec|operatorname)\b"
    r"|\\(?:alpha|beta|gamma|theta|lambda|mu|phi|rho|sigma|omega|ell|Delta|pi)\b"
    r"|[A-Za-z'|:\s]|_\{[^{}]*\}|_[A-Za-z0-9]|\{[A-Za-z\s]*\}|\([A-Za-z0-9,\s]*\))+"
)
_RELATION = re.compile(r"(?<![<>!\\])=|\\in(?![a-zA-Z])|\\approx(?![a-zA-Z])|\\equiv(?![a-zA-Z])")
_SURE_INTERVAL = re.compile(r"\\infty|\\cup|^\[|\]$")
_INEQUALITY = re.compile(r"\s*(<|>|\\le(?![a-z])|\\ge(?![a-z]))\s*")
_LETTER = re.compile(r"[A-Za-z](?:_\{?\w\}?)?|[a-z]\([a-z]\)")


@dataclass(frozen=True)
class Listing:
    """Items and their brackets: `(`, `[`, `\\{`, `\\langle`, or none.

    Without brackets they read like a set whose items may also be given in order."""

    opening: str
    closing: str
    items: tuple[str, ...]

    @property
    def ordered(self) -> bool:
        """Points and intervals keep their order."""
        return self.opening not in ("", "\\{")


def read_listing(text: str) -> Listing | None:
    """Return the items of an answer; None where it is a single answer."""
    text = strip_braces(text)
    if match := _CASES.fullmatch(text):
        text = match[1].replace("&", "").replace("\\\\", ";")
    opening, closing = brackets(text)
    inner = text[len(opening) : len(text) - len(closing)] if opening else text
    items = _split(_BOTH.sub("", inner), inside=bool(opening))
    items = [variant for item in items for variant in _variants(item)]
    if len(items) < 2 and opening != "\\{":
        return None
    if len(items) > MOST_ITEMS or not all(items):
        return None
    return Listing(opening, closing, tuple(items))


def split_name(text: str) -> tuple[str, str]:
    """Split an answer into its name (empty without one) and its value.

    `x = 5`, `f(2) = 5`, `x \\in [0, 1]`, `\\text{Area} = 6`, `k = 1/3 \\approx 0.33`."""
    places = [] if _separators(text) else [m for m in _RELATION.finditer(text) if _outside(text, m)]
    if not 0 < len(places) <= 5:
        return "", text
    relations = [match[0] for match in places]
    begins, ends = [0, *(m.end() for m in places)], [*(m.start() for m in places), len(text)]
    parts = [text[begin:end] for begin, end in zip(begins, ends, strict=True)]
    name = parts[0].strip()
    if name and _NAME.fullmatch(name) is None:
        # An exact value and what it is about: the exact one counts.
        return "", name if relations[0].startswith("\\approx") else text
    for relation, part in zip(relations[1:], parts[1:], strict=False):
        if relation.startswith("\\approx"):
            return _squeezed(name), part.strip()
    return _squeezed(name), parts[-1].strip()


def names_of(listing: Listing) -> tuple[str, ...]:
    """Names of the items (`AB = 4, CD = 5`), unless they are roots (`x_1 = 4, x_2 = 5`)."""
    names = [split_name(item)[0] for item in listing.items]
    if not all(names) or len(set(names)) < len(names):
        return ()
    roots = {re.sub(r"_\{?[1-9]\}?$", "", name) for name in names}
    return () if len(roots) == 1 else tuple(names)


def without_thousands(text: str) -> str:
    """The text without the commas that separate thousands."""
    return _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)


def _squeezed(name: str) -> str:
    name = re.sub(r"\\text|[{}\s]", "", name)
    # f(x) and f(n) are the same function.
    return re.sub(r"\([a-zA-Z]\)$", "()", name)


def strip_braces(text: str) -> str:
    """The text without braces that enclose the whole of it."""
    while brackets(text) == ("{", "}"):
        text = text[1:-1].strip()
    return text


def brackets(text: str) -> tuple[str, str]:
    """The brackets around the whole of a text, empty where there are none."""
    first = _TOKEN.match(text)
    if first is None or first[0] not in ("(", "[", "{", "\\{", "\\langle"):
        return "", ""
    depth = 0
    for match in _TOKEN.finditer(text):
        depth += _step(match[0])
        if depth == 0:
            whole = match.end() == len(text) and match[0] in (")", "]", "}", "\\}", "\\rangle")
            return (first[0], match[0]) if whole else ("", "")
    return "", ""


def _step(token: str) -> int:
    if token in _OPEN or token.startswith("\\begin"):
        return 1
    return 0 if token in (",", ";", "\\\\", "\x1f") else -1


def _split(text: str, *, inside: bool) -> list[str]:
    """The items at the top level of a text."""
    text = _WORD_BETWEEN.sub("\x1f", text)
    places = _separators(text)
    commas = [at for at, token in places if token == ","]
    strong = [at for at, token in places if token != ","]
    if strong and commas:
        groups = _cut(text, strong)
        if _are_rows(groups, semicolons=any(text[at] != "\x1f" for at in strong)):
            return [group.replace("\x1f", ",") for group in groups]
    spaced = [at for at in commas if text[at + 1 : at + 2].isspace()]
    grouped = {
        match.start() + at
        for match in _THOUSANDS.finditer(text)
        for at, char in enumerate(match[0])
        if char == ","
    }
    # Between brackets 1,234 is a pair, unless there is another comma that separates.
    if inside and not spaced and not strong:
        grouped = set()
    kept = [at for at in commas if at not in grouped]
    return [item.strip() for item in _cut(text, sorted(kept + strong)) if item.strip()]


def _separators(text: str) -> list[tuple[int, str]]:
    depth = 0
    found = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        step = _step(token)
        depth = max(0, depth + step)
        if step == 0 and depth == 0:
            found.append((match.start(), token))
    return found


def _outside(text: str, match: re.Match[str]) -> bool:
    """Return whether a sign stands outside all brackets."""
    return sum(_step(token[0]) for token in _TOKEN.finditer(text, 0, match.start())) == 0


def _cut(text: str, places: list[int]) -> list[str]:
    items, begin = [], 0
    for at in places:
        items.append(text[begin:at])
        begin = at + (2 if text[at] == "\\" else 1)
    return [item.strip() for item in [*items, text[begin:]]]


def _are_rows(groups: list[str], *, semicolons: bool) -> bool:
    """Return whether groups are rows, `p=5, q=2; p=7, q=2`, and no list, `1, 2 and 3`."""
    rows = [
        _cut(group, [at for at, token in _separators(group) if token == ","]) for group in groups
    ]
    if len({len(row) for row in rows}) > 1 or len(rows[0]) < 2:
        return False
    names = {tuple(split_name(item)[0] for item in row) for row in rows}
    return semicolons or (len(names) == 1 and all(next(iter(names))))


def _variants(item: str) -> list[str]:
    """Return both answers of a plus-minus sign, or of two opposite ones; else the item."""
    signs = _SIGN.findall(item)
    if not signs or len(signs) > 2 or (len(signs) == 2 and signs[0] == signs[1]):
        return [item]
    upper = _SIGN.sub(lambda sign: _PLUS_MINUS[sign[0]][0], item)
    lower = _SIGN.sub(lambda sign: _PLUS_MINUS[sign[0]][1], item)
    return [re.sub(r"^\+\s*", "", upper.strip()), lower.strip()]


def is_surely_interval(text: str) -> bool:
    """Return whether an answer is an interval: `(1,2)` may as well be a point."""
    return _SURE_INTERVAL.search(text) is not None


def interval_of(text: str) -> str | None:
    """Return an inequality of one letter as an interval: `-2 < x \\le 7`, `x > 5`."""
    parts = _INEQUALITY.split(text)
    values, signs = parts[0::2], parts[1::2]
    if len(signs) == 1:
        low, sign, high = values[0], signs[0], values[1]
        if _LETTER.fullmatch(high):
            low, high, sign = high, low, _turned(sign)
        if not _LETTER.fullmatch(low):
            return None
        if sign in ("<", "\\le"):
            return f"(-\\infty,{high}{')' if sign == '<' else ']'}"
        return f"{'(' if sign == '>' else '['}{high},\\infty)"
    if len(signs) == 2 and _LETTER.fullmatch(values[1]):
        if {sign in (">", "\\ge") for sign in signs} == {True}:
            values, signs = values[::-1], [_turned(sign) for sign in reversed(signs)]
        if {sign in ("<", "\\le") for sign in signs} != {True}:
            return None
        left = "(" if signs[0] == "<" else "["
        right = ")" if signs[1] == "<" else "]"
        return f"{left}{values[0]},{values[2]}{right}"
    return None


def union_of(text: str, listing: Listing) -> str | None:
    """Inequalities joined by "or" as a union of intervals."""
    if listing.opening or not re.search(r"\bor\b", text) or re.search(r"\band\b|[,;]", text):
        return None
    intervals = [interval_of(item) for item in listing.items]
    return " \\cup ".join(filter(None, intervals)) if all(intervals) else None


def _turned(sign: str) -> str:
    return {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}[sign]
