"""Environments that come with Headrace."""

import re
from collections.abc import Mapping
from typing import Any

from headrace.protocol.messages.environments import InsertedMessage, PolicyTurn, Step


class Calculator:
    """A product of two numbers, and a calculator that can be asked for it.

    The row's `answer` is the product. A turn that is `[A*B]` is a call: the policy reads `>RESULT>`
    and goes on. Any other turn is its answer, which earns 1 where it is right. `blank` answers
    calls with `>>`, to see whether a policy needs the result.
    """

    def __init__(self, *, blank: bool = False) -> None:
        self._blank = blank
        self._answer = ""

    def reset(self, row: Mapping[str, Any], seed: int) -> None:
        """Begin with a problem."""
        self._answer = str(row["answer"])

    def step(self, turn: PolicyTurn) -> Step:
        """Calculate, or judge the answer."""
        text = turn.text.strip()
        if call := re.fullmatch(r"\[(\d{1,9})\*(\d{1,9})\]", text):
            result = "" if self._blank else str(int(call[1]) * int(call[2]))
            said = InsertedMessage("tool", f">{result}>")
            return Step(messages=[said], metrics={"calls": 1.0})
        right = text == self._answer
        return Step(reward=float(right), done=True, success=right)
