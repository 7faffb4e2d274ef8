"""Environments that come with Headrace."""

import re
from collections.abc import Mapping
from random import Random
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


class Guess:
    """A hidden letter, drawn by the seed of the prompt: a turn names one, and reads `<` where the
    hidden letter comes before it, `>` where it comes after. Naming it earns 1. With `fresh` another
    letter is hidden at each turn, so that what was read says nothing.
    """

    def __init__(self, *, letters: str = "abcdefg", tries: int = 3, fresh: bool = False) -> None:
        self._letters, self._left, self._fresh = letters, tries, fresh
        self._draw, self._hidden = Random(), ""

    def reset(self, row: Mapping[str, Any], seed: int) -> None:
        """Hide a letter."""
        self._draw = Random(seed)
        self._hidden = self._draw.choice(self._letters)

    def step(self, turn: PolicyTurn) -> Step:
        """Compare; what is no letter is wrong and says nothing."""
        named, self._left = turn.text.strip(), self._left - 1
        right = named == self._hidden
        if right or not self._left or named not in set(self._letters):
            return Step(reward=float(right), done=True, success=right)
        said = "<" if self._hidden < named else ">"
        if self._fresh:
            self._hidden = self._draw.choice(self._letters)
        return Step(messages=[InsertedMessage("user", said)])
