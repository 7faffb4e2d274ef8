"""The written lines of an answer of the task `shift_register`, for tests."""

import re
from dataclasses import dataclass

from tasks.procedural.shift_register import next_digit

_LINE = re.compile(r"\d{3}:(\d{4})=(\d)([;?])")


@dataclass(frozen=True, slots=True)
class RegisterLine:
    """A written line. `wrong`: its digit does not follow from its state."""

    wrong: bool
    accepted: bool


def read_lines(prompt: str, response: str) -> list[RegisterLine]:
    """The written lines in order, each judged by the state that it shows."""
    return [
        RegisterLine(wrong=digit != next_digit(state), accepted=mark == ";")
        for state, digit, mark in _LINE.findall(prompt + response)
    ]
