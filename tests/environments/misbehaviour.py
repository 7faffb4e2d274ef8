"""Environments as users may write them; loaded by file in a child."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any


class Echo:
    """Says back what it hears, with the turn's number; `STOP` ends the episode."""

    def __init__(self, **options: Any) -> None:
        self.options, self.turn = options, 0

    def reset(self, row: dict[str, Any], seed: int) -> str | None:
        return self.options.get("opening")

    def step(self, turn: Any) -> dict[str, Any]:
        self.turn += 1
        if turn.text == "HANG" and _first(self.options):
            time.sleep(60)
        if turn.text == "DIE" and _first(self.options):
            os._exit(3)
        if turn.text == "RAISE":
            raise ValueError("it broke")
        if turn.text == "STOP":
            return {"reward": 1.0, "done": True, "success": True}
        return {"text": f"{self.turn}:{turn.text}", "metrics": {"words": 1.0}}


def _first(options: dict[str, Any]) -> bool:
    """Whether it has not misbehaved before; without a mark it always does."""
    if "mark" not in options:
        return True
    try:
        Path(options["mark"]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Patient(Echo):
    """The same, as coroutines."""

    async def step(self, turn: Any) -> dict[str, Any]:  # type: ignore[override]
        await asyncio.sleep(0.05)
        return super().step(turn)


class Together(Echo):
    """Answers nobody before `steps` steps are under way at once."""

    under_way = 0

    async def step(self, turn: Any) -> dict[str, Any]:  # type: ignore[override]
        Together.under_way += 1
        while Together.under_way < self.options["steps"]:
            await asyncio.sleep(0.01)
        return super().step(turn)


class Forgetful(Echo):
    """Keeps nothing from turn to turn: what it says is another process's, and nobody minds."""

    keeps_state = False

    def step(self, turn: Any) -> dict[str, Any]:
        return {"text": str(os.getpid())}


class Slow(Echo):
    """Takes its time to begin."""

    def reset(self, row: dict[str, Any], seed: int) -> None:
        time.sleep(1.2)


class Lingering(Echo):
    """Takes its time to close."""

    def close(self) -> None:
        time.sleep(0.8)


class Counted(Echo):
    """Opens something when it is made, which its end closes."""

    is_open = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        Counted.is_open += 1

    def reset(self, row: dict[str, Any], seed: int) -> str:
        return f"{Counted.is_open} open"

    def close(self) -> None:
        Counted.is_open -= 1


class Steady(Echo):
    """Takes as long for each turn."""

    def step(self, turn: Any) -> dict[str, Any]:
        time.sleep(0.3)
        return super().step(turn)


class Torn(Echo):
    """Says half a character."""

    def step(self, turn: Any) -> dict[str, Any]:
        return {"text": "\ud800"}


class Long(Echo):
    """Says more than a frame may have."""

    def step(self, turn: Any) -> dict[str, Any]:
        return {"messages": [("tool", "x" * 2**20)] * 17}


def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


def stuck() -> None:
    """Never answers."""
    time.sleep(60)


TOOLS = [double, stuck]


class Fickle(Echo):
    """Answers otherwise in another process."""

    def step(self, turn: Any) -> dict[str, Any]:
        return super().step(turn) | {"text": str(os.getpid())}


class Mortal(Echo):
    """Cannot be built again."""

    replayable = False


class Mindful(Echo):
    """Says all that it has heard, the prompt first. `takes`: seconds to begin."""

    def reset(self, row: dict[str, Any], seed: int) -> str:
        time.sleep(self.options.get("takes", 0.0))
        self.heard = str(row["prompt"])
        return self.heard

    def step(self, turn: Any) -> dict[str, Any]:
        self.heard += turn.text
        return {"text": self.heard}


class Odd(Echo):
    """Returns what the first turn says."""

    def step(self, turn: Any) -> Any:
        return {
            "bytes": b"no",
            "list": [1],
            "field": {"rewards": 1.0},
            "type": {"reward": "much"},
            "none": None,
        }[turn.text]


class Half:
    """Has no step."""

    def reset(self, row: dict[str, Any], seed: int) -> None:
        return None
