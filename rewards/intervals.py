"""Inequalities of one unknown as the intervals that they are.

In: an answer in its one way of writing. Out: the interval as a text of brackets and ends, or None
where the answer is no such inequality.
"""

import re

from rewards.answer_lists import Listing

_SURE = re.compile(r"\\infty|\\cup|^\[|\]$")
_SIGN = re.compile(r"\s*(<|>|\\le(?![a-z])|\\ge(?![a-z]))\s*")
_NAME = re.compile(r"[A-Za-z](?:_\{?\w\}?)?|[a-z]\([a-z]\)")


def is_surely_interval(text: str) -> bool:
    """Whether an answer is an interval: `(1,2)` may as well be a point."""
    return _SURE.search(text) is not None


def interval_of(text: str) -> str | None:
    """An inequality of one letter as an interval: `-2 < x \\le 7`, `x > 5`."""
    parts = _SIGN.split(text)
    values, signs = parts[0::2], parts[1::2]
    if len(signs) == 1:
        low, sign, high = values[0], signs[0], values[1]
        if _NAME.fullmatch(high):
            low, high, sign = high, low, _turned(sign)
        if not _NAME.fullmatch(low):
            return None
        if sign in ("<", "\\le"):
            return f"(-\\infty,{high}{')' if sign == '<' else ']'}"
        return f"{'(' if sign == '>' else '['}{high},\\infty)"
    if len(signs) == 2 and _NAME.fullmatch(values[1]):
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
