"""Numbers as people and models write them, read exactly.

In: a short text such as `1,234`, `-3.50`, `7/8`, `$\\frac{7}{8}$`. Out: a Fraction, or None when
the text is anything but one plain number. No rounding: 3.14 is not 3.1416.
"""

import re
from fractions import Fraction

LONGEST = 1000
"""Longer texts are not read: the time to read an integer grows with the square of its digits."""

PLACES = 6
"""A decimal with at least this many places may stand for a fraction without a finite decimal, if
all its digits are right (the last one rounded or not)."""

_LAYOUT = re.compile(r"\\[!,;: $]|\\left|\\right|\\displaystyle|\\[()\[\]]|[$\s]")
_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_DECIMAL = re.compile(rf"(?P<sign>[-+]?)(?P<whole>{_INTEGER})?(?:\.(?P<places>[0-9]*))?")
_SLASH = re.compile(rf"([-+]?)({_INTEGER})/({_INTEGER})")
_FRAC = re.compile(rf"([-+]?)\\[cdt]?frac(?:\{{({_INTEGER})\}}\{{({_INTEGER})\}}|([0-9])([0-9]))")
_POWER = re.compile(
    r"(?P<number>[-+]?[0-9.,]+)(?:[eE]|(?:\*|\\times|\\cdot)10\^)\{?(?P<power>[-+]?[0-9]{1,3})\}?"
)
_SPACED_DIGITS = re.compile(r"[0-9]\s+[0-9]")


def same_number(wanted: Fraction, given: Fraction) -> bool:
    """Equality; where `wanted` has no finite decimal, a decimal of at least PLACES right places and
    four right digits will do."""
    if wanted == given:
        return True
    places = _places(given)
    if _places(wanted) is not None or places is None or places < PLACES:
        return False
    unit = Fraction(1, 10**places)
    return abs(wanted - given) < unit and abs(given) >= 1000 * unit


def _places(number: Fraction) -> int | None:
    """How many decimal places a number has; None where they have no end."""
    rest, powers = number.denominator, []
    for prime in (2, 5):
        power = 0
        while rest % prime == 0:
            rest //= prime
            power += 1
        powers.append(power)
    return max(powers) if rest == 1 else None


def read_number(text: str) -> Fraction | None:
    """The value of an integer, decimal or fraction, with or without thousands separators."""
    if len(text) > LONGEST or _SPACED_DIGITS.search(text):
        return None
    bare = _LAYOUT.sub("", text.replace("\u2212", "-")).rstrip(".")
    if bare.startswith("{") and bare.endswith("}"):
        bare = bare[1:-1]
    if match := _POWER.fullmatch(bare):
        number = read_number(match["number"])
        return None if number is None else number * Fraction(10) ** int(match["power"])
    if match := _DECIMAL.fullmatch(bare):
        whole, places = match["whole"] or "", match["places"] or ""
        if not whole and not places:
            return None
        value = Fraction(int(whole.replace(",", "") + places or "0"), 10 ** len(places))
        return -value if match["sign"] == "-" else value
    if match := _SLASH.fullmatch(bare) or _FRAC.fullmatch(bare):
        sign, above, below = (part for part in match.groups() if part is not None)
        divisor = int(below.replace(",", ""))
        if divisor == 0:
            return None
        value = Fraction(int(above.replace(",", "")), divisor)
        return -value if sign == "-" else value
    return None
