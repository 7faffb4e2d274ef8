"""Formulas compared by math-verify, behind a check of what they would cost.

In: two answers that are single formulas. Out: whether they are equal; a sum or a product of numbers
is not equal to a right number, nor a division to a right integer. What sympy could calculate for
ever (towers of powers, factorials of factorials, text without end) is not given to it: it is equal
to nothing but itself. math-verify is loaded at its first use and never sets an alarm.
"""

import logging
import math
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from rewards.answers.units import read_unit

LONGEST = 1000
MAX_TOKENS = 400
MAX_DEPTH = 24
MAX_EXPONENT = 10_000
"""Of a number or of a letter; of a sum in parentheses it is MAX_EXPANDED."""
MAX_EXPANDED = 60
MAX_DIGITS = 30_000
MAX_FACTORIAL = 2_000

_TOKEN = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)|(?P<power>\^|\*\*)|(?P<factorial>!)|(?P<below>_)"
    r"|(?P<open>\\?[{(\[])|(?P<close>\\?[})\]])|(?P<command>\\[a-zA-Z]+)|(?P<letter>[^\W\d_])|\\."
)
_COUNTED = ("\\binom", "\\dbinom", "\\tbinom", "\\choose")
_SUMS = ("\\sum", "\\prod", "\\int", "\\bigcup", "\\bigcap")
# In running text a row of calculations without end costs math-verify's search its cube.
_LONG_ROW = re.compile(r"[0-9.\s+*\u00d7/^()\u00f7-]{120,}")

_DIVISION = re.compile(r"[/:]|\\[cdt]?frac|\\div|\^\s*\{?\s*-\s*[0-9]")
_TASK = re.compile(r"\b(?:gcd|lcm|det|min|max|[bp]?mod)(?![a-z])|\\begin\{vmatrix\}")
_CALLED = re.compile(
    r"\\(?:[dt]?binom|choose|log|ln|lg|[lr]?floor|[lr]?ceil|(?:arc)?(?:sin|cos|tan|cot|sec|csc))"
    r"(?![a-z])"
)
# math-verify takes 43 7 and (43)(7) for 50, as a mixed number; 4(10^3) is a product, and right.
_BESIDE = re.compile(
    r"(?:(?<![0-9.,^_])[0-9]+(?:[\s()]+\{?|\{)|(?<![a-zA-Z^_\]}])\{\s*[0-9]+\s*\}[\s({]*)"
    r"[0-9][0-9.]*+(?!\s*(?:\^\s*\{?\s*-?[0-9]|!))"
)
_TASKS = {"Sum", "Product", "Integral", "Limit", "Derivative", "Mod", "Max", "Min"}
# math-verify drops them as units: 2ab is 2 to it, and a + b + c is no formula.
_LAST_LETTERS = re.compile(r"(?:(?<=[0-9}])|(?<=[^0-9}] ))[cdghlmost]$|(?<=[0-9} ])[a-z]{2}$")
# Of two measures, 3 hours 20 minutes, it drops all but the first number.
_MEASURES = re.compile(r"[0-9]\s*\\text\{[^{}]*\}\s*[0-9][0-9.,]*\s*\\text\{[^{}]*\}$")
_DECIMAL = re.compile(r"[0-9]+(?:\.[0-9]+)?")


class _TooCostlyError(Exception):
    """Evaluating the text might never end."""


@lru_cache(maxsize=1)
def load() -> Any:
    """Import math-verify, called early so that the first answer does not pay for it."""
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return math_verify


def equal(wanted: str, given: str) -> bool:
    """Return whether two formulas are equal, as far as they can be calculated."""
    if _MEASURES.search(wanted):
        return _DECIMAL.findall(wanted) == _DECIMAL.findall(given)
    is_safe = is_cheap(wanted) and is_cheap(given)
    return is_safe and _verify(_dressed(wanted, wanted), _dressed(given, wanted))


def found_in(text: str, wanted: str) -> bool:
    """Return whether math-verify finds the wanted formula in running text."""
    text = _LONG_ROW.sub(lambda row: " " + row[0][-100:], text)
    if len(text) > 2 * LONGEST or _MEASURES.search(wanted) or not is_cheap(wanted):
        return False
    return is_cheap(text, prose=True) and _verify(_dressed(wanted, wanted), text)


def is_cheap(text: str, *, prose: bool = False) -> bool:
    """Return whether the numbers in a formula stay small enough to be calculated."""
    if len(text) > (2 * LONGEST if prose else LONGEST):
        return False
    tokens = [(match.lastgroup or "", match[0]) for match in _TOKEN.finditer(text)]
    if len(tokens) > (2 * LONGEST if prose else MAX_TOKENS):
        return False
    try:
        _SizeBounds(tokens).check()
    except _TooCostlyError:
        return False
    return True


class _SizeBounds:
    """Bounds the size of every number in a row of tokens.

    The size of a text is the decimal logarithm of an upper bound of its value. Sums are bounded by
    products (everything counts as 2 at least), letters count as 2.
    """

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0

    def check(self) -> None:
        """Raise _TooCostlyError where something is too large."""
        while self._at < len(self._tokens):
            self._row(0)
            self._at += 1

    def _row(self, depth: int) -> tuple[float, bool]:
        """The size up to the closing bracket, and whether there are letters in it."""
        if depth > MAX_DEPTH:
            raise _TooCostlyError
        size, letters = 0.0, False
        while self._at < len(self._tokens) and self._tokens[self._at][0] != "close":
            one, letter = self._factor(depth)
            size, letters = size + one, letters or letter
        return size, letters

    def _factor(self, depth: int) -> tuple[float, bool]:
        """One atom with its factorials, subscripts and power."""
        size, letters, group, command = self._atom(depth)
        while self._at < len(self._tokens):
            kind = self._tokens[self._at][0]
            if kind == "factorial":
                self._at += 1
                if not letters and size > math.log10(MAX_FACTORIAL):
                    raise _TooCostlyError
                if not letters:
                    value = 10**size
                    size = math.lgamma(value + 1) / math.log(10)
            elif kind == "below":
                self._at += 1
                self._atom(depth)
            elif kind == "power":
                self._at += 1
                exponent, _ = self._factor(depth + 1)
                limit = MAX_EXPANDED if group and letters else MAX_EXPONENT
                if exponent > math.log10(limit):
                    raise _TooCostlyError
                if command not in _SUMS:
                    size *= 10**exponent
            else:
                break
        if size > MAX_DIGITS:
            raise _TooCostlyError
        return size, letters

    def _atom(self, depth: int) -> tuple[float, bool, bool, str]:
        """Size, whether there are letters in it, whether it is a group, and its command."""
        if depth > MAX_DEPTH:
            raise _TooCostlyError
        if self._at >= len(self._tokens):
            return 0.0, False, False, ""
        kind, text = self._tokens[self._at]
        if kind == "close":
            return 0.0, False, False, ""
        self._at += 1
        if kind == "open":
            size, letters = self._row(depth + 1)
            self._at += 1
            return size, letters, True, ""
        if kind == "number":
            if len(text) > MAX_EXPONENT // 10:
                raise _TooCostlyError
            return _size_of(text), False, False, ""
        if text in _COUNTED and any(
            kind == "number" and float(number) > MAX_EXPONENT for kind, number in self._tokens
        ):
            raise _TooCostlyError
        named = kind in ("letter", "command")
        return math.log10(2), named and text not in ("\\frac", "\\pi"), False, text


def _size_of(number: str) -> float:
    """Of a number or of its reciprocal, whichever is larger."""
    whole, _, places = number.partition(".")
    digits = whole.lstrip("0")
    size = float(len(digits)) if len(digits) > 15 else math.log10(max(float(number), 1e-300))
    return max(math.log10(2), size, float(len(places)))


def _dressed(text: str, wanted: str = "") -> str:
    """The formula as math-verify likes it best; it keeps the last letters if `wanted` has them."""
    last = _LAST_LETTERS.search(text)
    if last and set(last[0]) <= set(wanted) and (len(last[0]) == 1 or not read_unit(last[0])):
        text = f"{text[: last.start()]}{{{last[0]}}}"
    text = text.replace("\u00b0", "^\\circ").replace("%", "\\%")
    return f"$\\boxed{{{text}}}$"


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    return load().parse(text, parsing_timeout=None)


def _verify(wanted: str, given: str) -> bool:
    right, said = _parsed(wanted), _parsed(given)
    if right and said and _is_undone(right, said):
        return False
    return bool(load().verify(right, said, timeout_seconds=None)) and not _is_far(right[0], said[0])


def _is_far(right: Any, said: Any) -> bool:
    """Return whether tiny numbers differ by over 2 %, or integers of many digits at all."""
    if not (getattr(right, "is_number", False) and getattr(said, "is_number", False)):
        return False
    try:
        one, other = right.doit(), said.doit()
        if one.is_Rational and other.is_Rational:
            return one != other
        one, other = complex(one), complex(other)
    except (ArithmeticError, TypeError, ValueError):
        return False
    return 0 < abs(one) < 1e-3 and abs(one - other) > abs(one) / 50


def _is_undone(right: list[Any], said: list[Any]) -> bool:
    """Return whether a number is answered by a calculation: 50 by 43 - 39 + 46, 12 by 84/7.

    Paid, it teaches a policy to repeat the question. A power of ten, a root and a factorial are
    forms of a number, a fraction is one unless the number is an integer."""
    if _tasks_of(said) - _tasks_of(right):
        return True
    number, formula = right[0], said[0]
    if getattr(number, "is_Equality", False) and number.lhs.is_Symbol and number.rhs.is_number:
        # x = 12 is no more said by 2x + 4 = 28 than 50 by 43 - 39 + 46.
        sides = formula.args if getattr(formula, "is_Equality", False) else ()
        return bool(sides) and not (number.lhs in sides and any(x.is_number for x in sides))
    _, equals, last = str(said[-1]).rpartition("=")
    said = (equals and _parsed(_dressed(last))) or said
    formula = said[0]
    is_sum = getattr(formula, "is_Add", False)
    if not getattr(number, "is_Number", False) or getattr(formula, "is_Relational", False):
        # Of 5 \sqrt{3} too, where each part of the sum is a multiple of it.
        is_one = is_sum and getattr(number, "is_number", False) and not number.is_Add
        return is_one and all((x.doit() / number.doit()).is_Rational for x in formula.args)
    text, wanted = str(said[-1]), str(right[-1])
    return bool(
        (_BESIDE.search(text) and str(formula) not in text)  # Prose may end with 42 (7 boxes).
        or (_CALLED.search(text) and not _CALLED.search(wanted))
        or is_sum
        or any(getattr(x, "is_Add", False) and x.is_rational for x in _walk(formula))
        or _multiplies(formula)
        or (number.is_Integer and _DIVISION.search(text) and not _DIVISION.search(wanted))
    )


def _multiplies(formula: Any) -> bool:
    """Return whether numbers are still to be multiplied, in a root, a power or bars, too."""
    held = (x for x in _walk(formula) if type(x).__name__ in ("Abs", "Pow"))
    parts = (formula, *(x.args[0] for x in held if not x.is_Pow or x.exp.is_positive))
    products = (x.args for x in parts if getattr(x, "is_Mul", False))
    return any(sum(map(_counts, p)) > 1 or sum(map(_divides, p)) > 1 for p in products)


def _counts(factor: Any) -> bool:
    """Return whether a factor is a number other than 1, its first power, or a root."""
    if factor.is_Pow and factor.exp != 1:
        return factor.exp.is_integer is False
    number = factor.base if factor.is_Pow else factor
    return (number.is_Rational or number.is_Float) and abs(number) != 1


def _divides(factor: Any) -> bool:
    """Return whether a factor is a fraction, or one over a number; 2.5/4 has one of them."""
    if factor.is_Pow:
        return factor.exp == -1 and _counts(factor.base)
    return factor.is_Rational and not factor.is_Integer


def _tasks_of(parsed: list[Any]) -> set[str]:
    """Names of what a text leaves to be calculated: an integral, a sum, a remainder."""
    formula = getattr(parsed[0], "rhs", parsed[0])
    named = set(_TASK.findall(str(parsed[-1]).rpartition("=")[2]))
    return named | {type(part).__name__ for part in _walk(formula)} & _TASKS


def _walk(formula: Any) -> Iterator[Any]:
    """A formula and all that it is made of."""
    yield formula
    for part in getattr(formula, "args", ()):
        yield from _walk(part)
