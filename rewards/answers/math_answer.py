"""The `math` verifier: is the final answer of a response the right one?

In: a response, the right answer, the task's marker of the final answer, if any. Out: right or
wrong. The form of the right answer decides how the given one is read: a number, a letter, words, a
list, a pair, else a formula, which math-verify compares. Formulas that cannot be calculated are
wrong; the caller ends those that take long, as it runs this in a process that can be killed.
"""

import json
import re
from functools import lru_cache
from typing import Any

from headrace.data.answer_text import marked_part
from rewards.answers import answer_lists, formula
from rewards.answers.answer_lists import (
    Listing,
    brackets,
    interval_of,
    is_surely_interval,
    names_of,
    read_listing,
    split_name,
    strip_braces,
    union_of,
)
from rewards.answers.choices import LETTERS, read_letter, said_letter
from rewards.answers.final_answer import FinalAnswer, find, stated_value, wanted_answer
from rewards.answers.notation import bare_text, squeeze, tidy, unwrap_text
from rewards.answers.quantity import read_quantity, same_quantity

LONGEST = 4000
"""Longer answers are compared as texts."""
_DEEPEST = 6

_WORDS = re.compile(r"[^\W\d_][^\W\d_'\u2019-]+(?:[ -][^\W\d_]['\u2019\w-]*)*")
_IN_BASE = re.compile(r"([0-9A-F]+)\s*_\s*\{?\s*([0-9]+)\s*\}?")
_LONG_WORD = re.compile(r"[^\W\d_]{4,}|(?<![^\W\d_])(?:yes|no|odd)(?![^\W\d_])", re.IGNORECASE)
_OPPOSITES = re.compile(r"(?:yes|no){2}|(?:true|false){2}|(?:odd|even){2}")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_NO_SIGNS = re.compile(r"[^\W\d_](?:[^\W\d_]|['\u2019 ,.-])*")
_CLOSES = {"(": ")", "[": "]", "\\langle": "\\rangle"}
_LED_BY_LETTER = re.compile(r"(?:\\text\{)?\(?[A-J][).:]")
_ARTICLE = re.compile(r"^(?:the|a|an)\s+")
_EQUALS = re.compile(r"(?<![<>!\\])=")


def is_right(text: str, answer: str, *, marker: str | None = None) -> bool:
    """Return whether the final answer in `text` equals `answer`.

    With a marker the final answer is what follows its last occurrence; a response without the
    marker has no answer. Without one it is the last box, what follows `####`, what a sentence calls
    the answer, or the last expression. Raises ValueError when there is no right answer.
    """
    wanted_source = wanted_answer(answer, marker)
    given = marked_part(text, marker)
    if not given.strip():
        return False
    if given.strip() == wanted_source.strip():
        return True
    if accepted := _accepted(wanted_source):
        return any(is_right(given, each) for each in accepted)
    wanted = _wanted(wanted_source)
    found = find(given)
    if found.marked:
        return _same(wanted, tidy(found.answer[: 2 * LONGEST]))
    return _said(wanted, given, found)


def _accepted(source: str) -> list[str]:
    """Return the texts of a JSON list (Skywork-OR1), each of which is right; empty without one."""
    try:
        found: list[Any] = json.loads(source) if source.lstrip().startswith('["') else []
    except ValueError:
        return []
    return found if all(isinstance(each, str) for each in found) else []


@lru_cache(maxsize=256)
def _wanted(source: str) -> str:
    """Return the right answer alone; a text in which nothing looks like it is taken whole."""
    found = find(source)
    sure = found.answer and found.certainty != "perhaps"
    return tidy(found.answer if sure else source.strip())


def _said(wanted: str, text: str, found: FinalAnswer) -> bool:
    """Return whether a text that does not mark its answer says the right one."""
    choice = read_letter(wanted)
    if choice is not None and choice[0] in LETTERS and (chosen := said_letter(text)):
        return chosen == choice[0]
    likely, end = tidy(found.answer), tidy(stated_value(found.around))
    # One answer alone: what is stated last if it may be one, else what is set apart.
    is_number = _is_numeric(likely) and _is_numeric(wanted)
    is_plain = likely and not is_number and not _LONG_WORD.search(_COMMAND.sub("", end))
    is_last = end and found.certainty == "perhaps" and (is_plain or _is_numeric(end))
    if is_last:
        return _same(wanted, end)
    words = "".join(_plain_words(unwrap_text(each)) for each in (likely, end))
    if is_number or _OPPOSITES.fullmatch(words):
        return _same(wanted, likely)
    said = (likely, likely.rstrip("!"), end)
    return any(_same(wanted, each) for each in said) or formula.found_in(found.around, wanted)


def _is_numeric(text: str) -> bool:
    """Return whether an answer is a number, or numbers in a row."""
    listing = read_listing(text)
    items = (text,) if listing is None or listing.ordered else listing.items
    return all(
        _IN_BASE.fullmatch(value) or read_quantity(value, decimal_comma=True) is not None
        for value in (split_name(item)[1] for item in items)
    )


def _same(wanted: str, given: str, depth: int = 0) -> bool:
    """Return whether two answers in normal form are the same."""
    if not given or not wanted:
        return False
    if squeeze(wanted) == squeeze(given):
        return True
    if max(len(wanted), len(given)) > LONGEST or depth > _DEEPEST:
        return False
    wanted, given = bare_text(strip_braces(wanted)), bare_text(strip_braces(given))
    return _same_names(wanted, given, depth)


def _same_names(wanted: str, given: str, depth: int) -> bool:
    wanted_list = read_listing(wanted)
    given_list = read_listing(given)
    if wanted_list is None:
        name, value = split_name(wanted)
        # A name before several answers belongs to the first of them.
        called, said = split_name(given) if given_list is None else ("", given)
        if name and called and name != called:
            return formula.equal(wanted, given)
        if (value, said) != (wanted, given):
            if (not called and _EQUALS.search(said)) or (not name and _EQUALS.search(value)):
                return formula.equal(wanted, given)
            return _same(value, said, depth + 1)
        return _same_single(wanted, given, given_list, depth)
    if given_list is None:
        called, said = split_name(given)
        if called and said != given:
            return _same(wanted, said, depth + 1)
    return _same_lists(wanted, given, wanted_list, given_list, depth)


def _same_single(wanted: str, given: str, given_list: Listing | None, depth: int) -> bool:
    number = read_quantity(wanted)
    if number is not None:
        other = read_quantity(given, decimal_comma=True)
        if other is not None:
            return same_quantity(number, other)
    if given_list is not None and given_list.opening in ("", "\\{"):
        # One answer may be written in several ways.
        items = _distinct(given_list.items)
        if len(items) <= 3 and all(_same(wanted, item, depth + 1) for item in items):
            return True
        if is_surely_interval(wanted) and (union := union_of(given, given_list)):
            return formula.equal(wanted, union)
        return number is None and formula.equal(wanted, given)
    bare, said = _without_parentheses(wanted), _without_parentheses(given)
    if (bare, said) != (wanted, given):
        return _same(bare, said, depth + 1)
    base, other_base = _IN_BASE.fullmatch(wanted), _IN_BASE.fullmatch(given)
    if base and other_base:
        return base.groups() == other_base.groups()
    in_letters = _same_letters(wanted, given, depth)
    if in_letters is not None:
        return in_letters
    in_words = _same_words(wanted, given)
    if in_words is not None:
        return in_words
    if is_surely_interval(wanted) and (interval := interval_of(given)):
        given = interval
    return formula.equal(
        answer_lists.without_thousands(wanted), answer_lists.without_thousands(given)
    )


def _same_letters(wanted: str, given: str, depth: int) -> bool | None:
    """Letters of multiple choice; None where the right answer is none."""
    choice, chosen = read_letter(wanted), read_letter(given)
    if choice is None:
        # The right answer is what the letter stands for.
        if chosen is not None and chosen[1] and _LED_BY_LETTER.match(given):
            return _same(wanted, tidy(chosen[1]), depth + 1)
        return None
    letter, meaning = choice
    if meaning:
        if chosen is not None:
            return chosen[0] == letter
        return _same(tidy(meaning), given, depth + 1)
    if chosen is None:
        if letter in LETTERS and re.search(r"[^\W\d_]{2,}", unwrap_text(given)):
            return said_letter(given) == letter
        return None if wanted == letter else False
    if wanted == letter and letter not in LETTERS:
        return None if not chosen[1] else False
    return letter == chosen[0]


def _same_words(wanted: str, given: str) -> bool | None:
    """Words by their letters; None where the right answer is not certainly words."""
    if "\\text" not in wanted and not _LONG_WORD.search(_COMMAND.sub("", wanted)):
        return None
    first, second = unwrap_text(wanted), unwrap_text(given)
    if _WORDS.fullmatch(first) is None:
        return None
    if _NO_SIGNS.fullmatch(second.strip(" .!?'\"()")) is None:
        return False
    return _plain_words(first) == _plain_words(second)


def _plain_words(text: str) -> str:
    text = " ".join(re.sub(r"[^\w\s]", " ", text).casefold().split())
    return _ARTICLE.sub("", text).replace(" ", "")


def _same_lists(
    wanted: str, given: str, first: Listing, second: Listing | None, depth: int
) -> bool:
    if second is None:
        if first.opening == "\\{" and len(first.items) == 1:
            return _same(first.items[0], given, depth + 1)
        if is_surely_interval(given) and (union := union_of(wanted, first)):
            return formula.equal(union, given)
        interval = interval_of(given) if is_surely_interval(wanted) else None
        if interval is not None:
            return _same(wanted, interval, depth + 1)
        return bool(first.opening) and formula.equal(wanted, given)
    if first.ordered and second.ordered:
        # Two items between brackets may be an interval; more are a point, however it is written.
        point = len(first.items) > 2 and second.closing == _CLOSES[second.opening]
        one, other = ((each.opening == "[", each.closing == "]") for each in (first, second))
        if not point and one != other:
            return False
        return _in_order(first.items, second.items, depth)
    if first.ordered or second.ordered:
        # A point may be given without its parentheses, and stand for items without any.
        fits = "" in (first.opening, second.opening) and (first.ordered or second.opening == "(")
        return fits and _in_order(first.items, second.items, depth)
    if names_of(first) and not names_of(second):
        return _in_order(first.items, second.items, depth)
    return _in_any_order(first.items, second.items, depth)


def _in_order(first: tuple[str, ...], second: tuple[str, ...], depth: int) -> bool:
    return len(first) == len(second) and all(
        _same(one, other, depth + 1) for one, other in zip(first, second, strict=True)
    )


def _in_any_order(first: tuple[str, ...], second: tuple[str, ...], depth: int) -> bool:
    """Return whether both have the same items, as often as the right answer has them.

    `a = 4, -8` names its first item alone."""
    first, second = _distinct(_unnamed(first)), _distinct(_unnamed(second))
    left = list(second)
    if len(first) != len(second):
        return False
    for one in first:
        # What is easily seen to be the same is not left to a calculation.
        same = [item for item in left if squeeze(item) == squeeze(one)]
        same = same or [item for item in left if _same(one, item, depth + 1)][:1]
        if not same:
            return False
        left.remove(same[0])
    return True


def _unnamed(items: tuple[str, ...]) -> tuple[str, ...]:
    named = [split_name(item) for item in items]
    if named[0][0] and not any(name for name, _ in named[1:]):
        return (named[0][1], *items[1:])
    if len({name for name, _ in named}) == 1:
        return tuple(value for _, value in named)
    return items


def _distinct(items: tuple[str, ...]) -> tuple[str, ...]:
    return tuple({squeeze(item): item for item in items}.values())


def _without_parentheses(text: str) -> str:
    inner = text[1:-1].strip()
    # A letter between them is a choice.
    return inner if brackets(text) == ("(", ")") and len(inner) > 1 else text
