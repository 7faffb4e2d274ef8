"""Units of measurement, as answers write them.

In: the text behind a number (`cm`, `m/s^2`, `\\text{square feet}`, `%`). Out: a Unit, which knows
its dimension and size, or None where the table has none. Exact: factors are fractions of SI units.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

Dimension = tuple[tuple[str, int], ...]
"""Base quantities of a unit and their exponents, in the order of their names."""


@dataclass(frozen=True)
class Unit:
    """A unit: one is `factor` SI units, zero is `offset` of them (temperatures only)."""

    dimension: Dimension
    factor: Fraction
    offset: Fraction = Fraction(0)

    def si(self, value: Fraction) -> Fraction:
        """`value` of this unit in SI units."""
        return value * self.factor + self.offset


_PREFIXES = {
    "T": 12, "G": 9, "M": 6, "k": 3, "h": 2, "d": -1, "c": -2, "m": -3, "\u00b5": -6, "u": -6,
    "n": -9, "p": -12,
}  # fmt: skip
_PREFIX_WORDS = {
    "tera": 12, "giga": 9, "mega": 6, "kilo": 3, "hecto": 2, "deci": -1, "centi": -2, "milli": -3,
    "micro": -6, "nano": -9, "pico": -12,
}  # fmt: skip
# Symbol, words, base quantities, factor: these take prefixes.
_SI: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("m", ("meter", "metre"), "L", "1"),
    ("g", ("gram", "gramme"), "M", "0.001"),
    ("s", ("second",), "T", "1"),
    ("A", ("ampere", "amp"), "I", "1"),
    ("K", ("kelvin",), "H", "1"),
    ("mol", ("mole",), "N", "1"),
    ("Hz", ("hertz",), "T-1", "1"),
    ("N", ("newton",), "M L T-2", "1"),
    ("Pa", ("pascal",), "M L-1 T-2", "1"),
    ("J", ("joule",), "M L2 T-2", "1"),
    ("W", ("watt",), "M L2 T-3", "1"),
    ("Wh", (), "M L2 T-2", "3600"),
    ("C", ("coulomb",), "I T", "1"),
    ("V", ("volt",), "M L2 T-3 I-1", "1"),
    ("F", ("farad",), "M-1 L-2 T4 I2", "1"),
    ("T", ("tesla",), "M T-2 I-1", "1"),
    ("Wb", ("weber",), "M L2 T-2 I-1", "1"),
    ("\u03a9", ("ohm",), "M L2 T-3 I-2", "1"),
    ("L", ("liter", "litre"), "L3", "0.001"),
    ("l", (), "L3", "0.001"),
    ("eV", ("electronvolt",), "M L2 T-2", "1.602176634e-19"),
    ("cal", ("calorie",), "M L2 T-2", "4.184"),
    ("bar", (), "M L-1 T-2", "100000"),
    ("bit", ("bit",), "B", "1"),
    ("B", ("byte",), "B", "8"),
)
_OTHER: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("min", ("minute",), "T", "60"),
    ("h", ("hour", "hr"), "T", "3600"),
    ("d", ("day",), "T", "86400"),
    ("wk", ("week",), "T", "604800"),
    ("sec", (), "T", "1"),
    ("in", ("inch", "inches"), "L", "0.0254"),
    ("ft", ("foot", "feet"), "L", "0.3048"),
    ("yd", ("yard",), "L", "0.9144"),
    ("mi", ("mile",), "L", "1609.344"),
    ("lb", ("pound", "lbs"), "M", "0.45359237"),
    ("oz", ("ounce",), "M", "0.028349523125"),
    ("t", ("tonne",), "M", "1000"),
    ("acre", ("acre",), "L2", "4046.8564224"),
    ("ha", ("hectare",), "L2", "10000"),
    ("gal", ("gallon",), "L3", "0.003785411784"),
    ("atm", ("atmosphere",), "M L-1 T-2", "101325"),
    ("mph", (), "L T-1", "0.44704"),
    ("kph", ("kmh", "kmph"), "L T-1", "5/18"),
    ("rpm", (), "T-1", "1/60"),
    ("cc", (), "L3", "0.000001"),
    ("%", ("percent", "pct", "percentage"), "", "1/100"),
    ("\u00b0", ("degree", "deg"), "angle", "1"),
)
_POWER_WORDS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_TEMPERATURES = {
    "\u00b0C": Unit((("H", 1),), Fraction(1), Fraction("273.15")),
    "\u00b0F": Unit((("H", 1),), Fraction(5, 9), Fraction(229835, 900)),
}
_CHINESE = {
    "\u5343\u7c73": "km", "\u516c\u91cc": "km", "\u7c73": "m", "\u5206\u7c73": "dm",
    "\u5398\u7c73": "cm", "\u6beb\u7c73": "mm", "\u5343\u514b": "kg", "\u516c\u65a4": "kg",
    "\u514b": "g", "\u5428": "t", "\u5347": "L", "\u6beb\u5347": "mL", "\u5c0f\u65f6": "h",
    "\u65f6": "h", "\u5206\u949f": "min", "\u79d2": "s", "\u5929": "d", "\u5ea6": "\u00b0",
}  # fmt: skip
_CHINESE_POWERS = {"\u5e73\u65b9": "^2", "\u7acb\u65b9": "^3"}
_CHINESE_UNIT = re.compile(
    rf"({'|'.join(_CHINESE_POWERS)})?({'|'.join(sorted(_CHINESE, key=len, reverse=True))})(?=/|$)"
)
_DECORATION = re.compile(r"\\text|[{}$\\]")
_FACTOR = re.compile(r"([a-zA-Z\u00b5\u03a9\u00b0%]+)(?:\^?\(?([-+]?[0-9])\)?)?")


@lru_cache(maxsize=1024)
def read_unit(text: str) -> Unit | None:
    """The unit that a text names; None where it is not one of the table."""
    bare = _DECORATION.sub(" ", text.replace("\\cdot", "*")).strip(" .,")
    if not bare or len(bare) > 60:
        return None
    bare = _CHINESE_UNIT.sub(
        lambda match: _CHINESE[match[2]] + _CHINESE_POWERS.get(match[1], ""), bare
    )
    words = bare.replace("degrees ", "\u00b0").replace("degree ", "\u00b0")
    words = words.replace("Celsius", "C").replace("Fahrenheit", "F").replace("celsius", "C")
    if found := _TEMPERATURES.get(words.replace(" ", "")):
        return found
    bare = re.sub(r"\bper\s+(?!cent)", "/", bare)
    bare = re.sub(r"([a-zA-Z]+) squared\b", r"\1^2", re.sub(r"([a-zA-Z]+) cubed\b", r"\1^3", bare))
    exponents: dict[str, int] = {}
    factor = Fraction(1)
    for place, part in enumerate(bare.split("/")):
        product = _product(part.strip(" ()"))
        if product is None:
            return None
        sign = -1 if place else 1
        factor *= product.factor**sign
        for name, exponent in product.dimension:
            exponents[name] = exponents.get(name, 0) + sign * exponent
    return Unit(_dimension(exponents), factor)


def _product(text: str) -> Unit | None:
    if text == "per cent":
        return _single("%")
    exponents: dict[str, int] = {}
    factor, raised = Fraction(1), 1
    tokens = re.split(r"[\s*\u00b7-]+(?![0-9])", text)
    for token in tokens:
        if token.lower() in _POWER_WORDS:
            raised = _POWER_WORDS[token.lower()]
            continue
        match = _FACTOR.fullmatch(token)
        unit = _single(match[1]) if match else None
        if match is None or unit is None:
            return None
        power, raised = int(match[2] or 1) * raised, 1
        factor *= unit.factor**power
        for name, exponent in unit.dimension:
            exponents[name] = exponents.get(name, 0) + power * exponent
    return Unit(_dimension(exponents), factor) if raised == 1 else None


def _single(name: str) -> Unit | None:
    table = _table()
    low = name.lower()
    for form in (name, low, low.removesuffix("s"), low.removesuffix("es")):
        # A short name means what its case says: mW and MW, m and M.
        if form in table and (len(name) > 3 or form == name or form == name.removesuffix("s")):
            return table[form]
    return None


@lru_cache(maxsize=1)
def _table() -> dict[str, Unit]:
    table: dict[str, Unit] = {}
    for symbol, words, base, number in _SI:
        unit = Unit(_read_dimension(base), Fraction(number))
        for prefix, power in (*_PREFIXES.items(), ("", 0)):
            table.setdefault(prefix + symbol, _scaled(unit, power))
        for prefix, power in (*_PREFIX_WORDS.items(), ("", 0)):
            for word in words:
                table.setdefault(prefix + word, _scaled(unit, power))
    for symbol, words, base, number in _OTHER:
        unit = Unit(_read_dimension(base), Fraction(number))
        for name in (symbol, *words):
            table[name] = unit
    return table


def _scaled(unit: Unit, power: int) -> Unit:
    return Unit(unit.dimension, unit.factor * Fraction(10) ** power)


def _read_dimension(text: str) -> Dimension:
    exponents: dict[str, int] = {}
    for part in text.split():
        name = part.rstrip("-0123456789")
        exponents[name] = int(part[len(name) :] or 1)
    return _dimension(exponents)


def _dimension(exponents: dict[str, int]) -> Dimension:
    return tuple(sorted((name, power) for name, power in exponents.items() if power))
