"""For Gymnasium, with Text spaces."""

from typing import Any

import gymnasium
from gymnasium.spaces import Text

LETTERS = "abcdefgh"


class Reverse(gymnasium.Env):
    """Say a word backwards; three words, drawn by the seed."""

    observation_space = action_space = Text(8, min_length=0, charset=LETTERS)

    def _word(self) -> str:
        self.left -= 1
        self.word = "".join(LETTERS[i] for i in self.np_random.integers(8, size=4))
        return self.word

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 3
        return self._word(), {}

    def step(self, action: str) -> Any:
        reward = sum(a == b for a, b in zip(action, reversed(self.word), strict=False)) / 4
        return self._word(), reward, self.left == 0, False, {}


class Ladder(Reverse):
    """Ends by truncation; its reward grows."""

    def __init__(self, rungs: int = 4) -> None:
        self.rungs = rungs

    def step(self, action: str) -> Any:
        self.left -= 1
        high = -self.left
        return f"rung {high}", 0.25 * (action == "up"), action == "jump", high == self.rungs, {}
