"""For TRL's trainer: tools, and environments for its factories. Needs nothing."""

import asyncio
import signal
from typing import Any


def multiply(a: int, b: int) -> int:
    """Multiply two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The product.
    """
    return a * b


async def lookup(word: str) -> str:
    """Look a word up.

    Args:
        word: The word.
    """
    await asyncio.sleep(0.01)
    return {"two": "2", "three": "3"}[word]


def evaluate(expression: str) -> str:
    """Evaluate an expression, for at most a second.

    Args:
        expression: The expression.
    """

    def late(*_: Any) -> None:
        raise TimeoutError("too slow")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        return str(eval(expression))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


TOOLS = [multiply, lookup, evaluate]


class Counter:
    """Counts to the row's target."""

    def reset(self, target: int = 0, **kwargs: Any) -> str:
        self.count, self.target = 0, target
        return f" Count to {target}."

    def increment(self, step: int) -> int:
        """Count on.

        Args:
            step: How far.
        """
        if step < 0:
            raise ValueError("never back")
        self.count += step
        return self.count

    def get_reward(self) -> float:
        return 1.0 if self.count == self.target else -abs(self.target - self.count) / 10

    def _private(self) -> None:
        raise AssertionError("no tool")


class Vault:
    """Is dear to make, so that TRL makes it once; its reward is asked for by a coroutine."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1

    def reset(self, **kwargs: Any) -> None:
        self.opened = False
        self.code = kwargs["answer"]

    async def enter(self, code: str) -> str:
        """Enter a code.

        Args:
            code: Four digits.
        """
        self.opened |= code == self.code
        return f"{'open' if self.opened else 'closed'}, one of {self.made}"

    async def get_reward(self) -> float:
        return float(self.opened)
