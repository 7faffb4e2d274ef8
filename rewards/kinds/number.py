"""`number`: a quantity within a tolerance, in any unit that measures the same.

The right answer is a number with perhaps a unit (`9.81 m/s^2`). The response's number is its final
answer, or the last number of the sentence that looks like it.
"""

import re
from fractions import Fraction
from typing import Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel
from headrace.data.answer_text import marked_part
from headrace.protocol.messages.control import ScoreItem
from rewards.answers.answer_lists import split_name
from rewards.answers.final_answer import find, wanted_answer
from rewards.answers.notation import bare_text, tidy
from rewards.answers.quantity import Quantity, read_quantity
from rewards.answers.row import right_or_wrong
from rewards.answers.units import read_unit
from rewards.functions.results import Verdict
from rewards.verifier import Verifier

_BEGIN = re.compile(
    r"(?<![A-Za-z0-9_.,\\{/^])(?!(?:(?<=times )|(?<=cdot )|(?<=\* )|(?<=\*))10\s*\^)"
    r"[-+]?(?:[0-9]|\.[0-9]|\\frac\{)"
)
_ROUNDED = re.compile(r"(?:(?:rounded|correct) )?\bto \w+ (?:decimal|significant) \w+", re.I)
_MOST_NUMBERS = 50


class Options(StrictModel):
    """Tolerances, and the meaning of units."""

    relative: float = Field(default=0.01, ge=0)
    """Largest difference as a share of the right answer."""

    absolute: float = Field(default=0.0, ge=0)
    """Largest difference in the right answer's unit; either tolerance is enough."""

    units: Literal["convert", "require", "ignore"] = "convert"
    """convert: other units of the same kind are converted, a missing one is taken for the right
    one. require: a missing one is wrong, where the right answer has one. ignore: numbers alone."""

    answer_marker: str | None = Field(default=None, min_length=1)
    """Text right before the final answer. None: it is found in the response."""


def build(options: Options) -> Verifier:
    """Build the verifier. The part `error`: the relative difference, if there is one."""

    def judge(item: ScoreItem) -> Verdict:
        wanted = _quantity(wanted_answer(item.answer, options.answer_marker))
        if wanted is None:
            raise ValueError(f"the right answer {item.answer[:60]!r} is not one number")
        given = _given(marked_part(item.text, options.answer_marker))
        off = None if given is None else _difference(wanted, given, options)
        if off is None:
            return right_or_wrong(False)
        size = abs(wanted.value)
        right = off <= max(Fraction(options.absolute), Fraction(options.relative) * size)
        return right_or_wrong(right, error=float(min(off / size if size else off, Fraction(10**6))))

    return Verifier(judge)


def _quantity(text: str) -> Quantity | None:
    return read_quantity(bare_text(split_name(tidy(text))[1]), decimal_comma=True)


def _given(text: str) -> Quantity | None:
    if not text.strip():
        return None
    found = find(text)
    if (whole := _quantity(found.answer)) is not None:
        return whole
    text = _ROUNDED.sub("", tidy(found.answer or found.around))
    begins = [match.start() for match in _BEGIN.finditer(text)][-_MOST_NUMBERS:]
    for begin in reversed(begins):
        # A number with as much behind it as is still a unit.
        ends = [match.start() for match in re.finditer(r"(?=[\s.,;:)]|$)", text[begin:])][:12]
        for end in reversed(ends):
            if (read := read_quantity(text[begin : begin + end].strip())) is not None:
                return read
    return None


def _difference(wanted: Quantity, given: Quantity, options: Options) -> Fraction | None:
    """Return the difference in the right one's unit; None where there is none."""
    if given.divides > wanted.divides:
        return None
    plain = abs(wanted.value - given.value)
    if options.units == "ignore" or wanted.unit == given.unit:
        return plain
    unit, other = read_unit(wanted.unit), read_unit(given.unit)
    if not given.unit:
        if options.units == "require":
            return None
        # 0.45 for 45 %.
        return min(plain, abs(wanted.value - given.value * 100)) if wanted.unit == "%" else plain
    if not wanted.unit:
        # 0.5 is not 0.5 %.
        share = abs(wanted.value - given.value / 100) if given.unit == "%" else plain
        return min(plain, share) if abs(wanted.value) > 1 else share
    if unit is None or other is None:
        # A unit of things (`apples`) is not compared.
        return plain if unit is other else None
    if unit.dimension != other.dimension:
        return None
    return abs(unit.si(wanted.value) - other.si(given.value)) / unit.factor
