"""Numbers with what stands around them: a sign of money, a unit, per cent, degrees.

In: an answer in its one way of writing (`notation.tidy`). Out: a Quantity, or None when the text is
anything but one number with perhaps a unit. Whether two quantities are the same answer is decided
here too. Exact: no rounding but that of decimals which stand for a number without a finite decimal.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from rewards.answers.units import read_unit

LONGEST = 1000
"""Longer texts are not read: the time to read an integer grows with the square of its digits."""

PLACES = 6
"""Least decimal places that may stand for a fraction without a finite decimal.

All its digits have to be right (the last one rounded or not)."""

_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_DECIMAL = re.compile(rf"(?P<whole>{_INTEGER})?(?:\.(?P<places>[0-9]*))?")
_RATIO = re.compile(rf"({_INTEGER})/({_INTEGER})|\\frac\{{([-+]?[0-9]+)\}}\{{([0-9]+)\}}")
_POWER = re.compile(r"([0-9.,]+)(?:[eE]|(?:\*|\\times|\\cdot)10\^)\{?([-+]?[0-9]{1,3})\}?")


def same_number(wanted: Fraction, given: Fraction) -> bool:
    """Return whether `given` equals `wanted`, or is a part of its endless decimal.

    That takes at least PLACES right places and four right digits."""
    if wanted == given:
        return True
    places = _places(given)
    if _places(wanted) is not None or places is None or places < PLACES:
        return False
    unit = Fraction(1, 10**places)
    return abs(wanted - given) < unit and abs(given) >= 1000 * unit


def _places(number: Fraction) -> int | None:
    """Number of decimal places; None where they have no end."""
    rest, powers = number.denominator, []
    for prime in (2, 5):
        power = 0
        while rest % prime == 0:
            rest //= prime
            power += 1
        powers.append(power)
    return max(powers) if rest == 1 else None


def _number(text: str) -> Fraction | None:
    """The value of a decimal or fraction in `_NUMBER`; None over zero, or by misplaced commas."""
    bare = "".join(text.split())
    if match := _POWER.fullmatch(bare):
        number = _number(match[1])
        return None if number is None else number * Fraction(10) ** int(match[2])
    if match := _DECIMAL.fullmatch(bare):
        whole, places = match["whole"] or "", match["places"] or ""
        return Fraction(int(whole.replace(",", "") + places), 10 ** len(places))
    if (match := _RATIO.fullmatch(bare)) is None:
        return None
    above, below = (int(part.replace(",", "")) for part in match.groups() if part)
    return Fraction(above, below) if below else None


_DIGITS = r"[0-9]+(?:,[0-9]{3})*"
_FRACTION = r"\\frac\{\s*[-+]?[0-9]+\s*\}\{\s*[0-9]+\s*\}"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?P<whole>[0-9]+)\s*(?P<mixed>{_FRACTION})"
    rf"|(?P<whole2>[0-9]+)\s+(?:and\s+)?(?P<mixed2>[0-9]+/[0-9]+)"
    rf"|(?P<fraction>{_FRACTION}|{_DIGITS}\s*/\s*{_DIGITS})"
    r"|(?P<spaced>[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]+)?)(?![0-9])"
    r"|(?P<power>10\s*\^\s*(?:\{\s*[-+]?[0-9]{1,3}\s*\}|[-+]?[0-9]))"
    rf"|(?P<decimal>(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:[eE][-+]?[0-9]{1,3}(?![0-9])"
    r"|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*[-+]?[0-9]{1,3}\s*\}|[-+]?[0-9]))?))"
)
_MONEY = re.compile(
    r"^(?:[\u20ac\u00a3\u00a5\u20b9]|(?:US|A|C)(?=\s?[0-9])|USD|EUR|GBP|Rs\.?|INR)\s*", re.ASCII
)
_MONEY_AFTER = re.compile(r"^[\u20ac\u00a3\u00a5\u20b9]$")
_UNIT_TEXT = re.compile(
    r"(?:\\text\{([^{}]*)\}|([A-Za-z\u00b0\u00b5\u03a9%][A-Za-z\u00b0\u00b5\u03a9%. /*-]*))"
    r"(?:\s*(?:\^\s*\{?\s*(-?[0-9])\s*\}?))?"
)
_CHINESE = re.compile(
    r"(?!.*(?:[\u4e07\u4ebf\u767e\u51e0\u591a\u4f59\u534a\u6210\u6298\u53c8\u4e0d\u6216\u548c\u81f3\u5230]|\u5206\u4e4b"
    r"|\u5343(?![\u7c73\u514b\u74e6])))[\u4e00-\u9fff]{1,8}(?:/[\u4e00-\u9fff]{1,4})?"
)
"""A unit or things counted; what makes another number of it (10,000, half, more) is none."""
_SCALES = re.compile(
    r"\b(?:hundred|thousand|million|billion|trillion|dozen|half|halves|thirds?|quarters?|pi|squared"
    r"|cubed|factorial|times|plus|minus|over|root|mod|th|nd|rd|or|and|to|of|more|less|if|when|for"
    r"|otherwise|is|are|was|not|but|so|than|the|sqrt|sin|cos|tan|log|ln|exp|base|choose)\b",
    re.IGNORECASE,
)
_LARGE = dict(dozen=12, hundred=100, thousand=1000, million=10**6, billion=10**9, trillion=10**12)
_LARGE_WORD = re.compile(rf"^(?:\\text\{{\s*)?({'|'.join(_LARGE)})s?\b\s*", re.I | re.ASCII)
_DECIMAL_COMMA = re.compile(r"([-+]?[0-9]+),([0-9]+)")


@dataclass(frozen=True)
class Quantity:
    """A value and the text of its unit, empty without one. `%` and `\u00b0` are units."""

    value: Fraction
    unit: str = ""
    divides: bool = False
    """Whether it is an integer as a division: 84/7."""


def read_quantity(text: str, *, decimal_comma: bool = False) -> Quantity | None:
    """Read a quantity. `decimal_comma`: a comma without thousands is a decimal point."""
    if len(text) > LONGEST:
        return None
    text = _MONEY.sub("", text)
    if decimal_comma:
        text = _point(text)
    match = _NUMBER.match(text)
    if match is None:
        return None
    value = _value(match)
    rest = text[match.end() :].strip()
    if value is None:
        return None
    while large := _LARGE_WORD.match(rest):
        value *= _LARGE[large[1].lower()]
        rest = rest[large.end() :].strip(" }")
    divides = bool(match["fraction"]) and value.denominator == 1
    if not rest or _MONEY_AFTER.fullmatch(rest):
        return Quantity(value, divides=divides)
    unit = _unit(rest, spaced=text[match.end() : match.end() + 1].isspace())
    return None if unit is None else Quantity(value, unit, divides)


def same_quantity(wanted: Quantity, given: Quantity) -> bool:
    """Return whether both are the same quantity.

    A unit that one lacks, or that is unknown, does not matter; per cent may be hundredths or a
    value. A division that is still to be done is none."""
    if given.divides > wanted.divides:
        return False
    if wanted.unit != given.unit and "%" in (wanted.unit, given.unit):
        return _same_percent(wanted, given)
    if wanted.unit != given.unit and wanted.unit and given.unit:
        first, second = read_unit(wanted.unit), read_unit(given.unit)
        if first is not None and second is not None and first != second:
            return False
    return same_number(wanted.value, given.value)


def _same_percent(wanted: Quantity, given: Quantity) -> bool:
    if wanted.unit == "%":
        return not given.unit and (
            same_number(wanted.value, given.value) or same_number(wanted.value / 100, given.value)
        )
    if wanted.unit:
        return False
    # 0.5 is not 0.5 %, but a question for per cent may have 50 as its answer.
    return same_number(wanted.value, given.value / 100) or (
        abs(wanted.value) > 1 and same_number(wanted.value, given.value)
    )


def _value(match: re.Match[str]) -> Fraction | None:
    whole = match["whole"] or match["whole2"]
    part = match["mixed"] or match["mixed2"]
    if whole:
        fraction = _number(part)
        if fraction is None or not 0 <= fraction < 1:
            return None
        number: Fraction | None = int(whole) + fraction
    else:
        power = f"1*{match['power']}" if match["power"] else match["decimal"]
        text = match["fraction"] or power or match["spaced"].replace(" ", "")
        number = _number(text)
    if number is None:
        return None
    return -number if match["sign"] == "-" else number


def _unit(text: str, *, spaced: bool) -> str | None:
    """The unit that the text behind a number is, None when it is something else."""
    if text in ("%", "\u00b0"):
        return text
    plain = _one_text(text)
    if _CHINESE.fullmatch(plain):
        return plain
    # `2m` is a product.
    sure = "\\text" in text or "\u00b0" in text or spaced or sum(map(str.isalpha, plain)) > 1
    if sure and read_unit(plain) not in (None, read_unit("%"), read_unit("\u00b0")):
        return plain
    match = _UNIT_TEXT.fullmatch(text)
    if match is None:
        return None
    word = (match[1] or match[2] or "").strip(" .,")
    if not word or len(word) > 60 or len(word.split()) > 5 or _SCALES.search(word):
        return None
    known = read_unit(f"{word}^{match[3]}" if match[3] else word)
    if known is not None and (known == read_unit("%") or known == read_unit("\u00b0")):
        return "%" if known == read_unit("%") else "\u00b0"
    # `2k` and `5 abc` are products; `5 cm` and `5 apples` are not.
    letters = sum(char.isalpha() for char in word)
    sure = known is not None and (letters > 1 or spaced)
    if match[1] is None and not sure and not (spaced and letters > 3):
        return None
    return f"{word}^{match[3]}" if match[3] else word


def _one_text(text: str) -> str:
    """A unit as `read_unit` reads it: `\\text{m}/\\text{s}^{2}`, `kg\\cdot m`, `\\mu\\text{m}`."""
    text = re.sub(r"(?:\\mu(?![a-zA-Z])|\u03bc)\s*", "\u00b5", text)
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\s*\\cdot\s*", "*", text)
    text = re.sub(r"\\Omega(?![a-zA-Z])|\u2126", "\u03a9", text)
    text = re.sub(r"\s*\^\s*\{?\s*(-?[0-9])\s*\}?", r"^\1", text)
    return re.sub(r"\u00b0\s+(?=[CF]$)", "\u00b0", text).strip(" .,")


def _point(text: str) -> str:
    """The text with its first number's decimal comma as a point, where it is one."""
    match = _DECIMAL_COMMA.match(text)
    if match is None:
        return text
    whole, places = match[1].lstrip("+-"), match[2]
    thousands = len(places) == 3 and len(whole) <= 3 and not whole.startswith("0")
    return text if thousands else f"{match[1]}.{places}{text[match.end() :]}"
