"""Games: Gymnasium's environments of text, and TextArena.

In: the name of a game. Out: a factory of episodes. Promises: a turn of the policy is one action,
word for word; the policy reads only new text. Games of one child may draw from Python's global
random generator: each finds it as it left it.
"""

import random
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from environments.tools import CallFormat
from headrace.errors import UserError
from headrace.host.user_code import thing_of
from headrace.protocol.messages.environments import InsertedMessage, PolicyTurn, Step

SEEDS = 2**32
"""Number of seeds that numpy takes."""


class Gymnasium:
    """An episode of a `gymnasium.Env` whose actions are a Text space."""

    def __init__(self, environment: Any) -> None:
        space = type(environment.action_space).__name__
        if space != "Text":
            raise UserError(f"its actions are of space {space}, and a policy says Text")
        self._environment = environment

    def reset(self, row: Mapping[str, Any], seed: int) -> str:
        """Return the first observation; the row's column `options` is that of the reset."""
        seen, _ = self._environment.reset(seed=seed % SEEDS, options=row.get("options"))
        return str(seen)

    def step(self, turn: PolicyTurn) -> Step:
        """Return the observation after an action, and its reward."""
        seen, reward, terminated, truncated, _ = self._environment.step(turn.text)
        said = [InsertedMessage("user", str(seen))]
        return Step(messages=said, reward=float(reward), done=bool(terminated or truncated))

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()


def gymnasium(*, calls: CallFormat, id: str, **options: Any) -> Callable[[], Any]:
    """Args:
    id: as `gymnasium.make` takes it, or `FILE.py:THING`. options: of either.
    """
    make = thing_of(id) if ".py:" in id else partial(import_module("gymnasium").make, id)
    return lambda: Gymnasium(make(**options))


class TextArena:
    """An episode of a TextArena game for one player, which ends with its reward."""

    def __init__(self, game: Any) -> None:
        self._game = self._bare = game
        while "env" in vars(self._bare):
            self._bare = self._bare.env
        self._dice = random.getstate()

    def reset(self, row: Mapping[str, Any], seed: int) -> str:
        """Return the game's rules."""
        random.seed(seed)
        self._dice = random.getstate()
        self._with_dice(self._game.reset, num_players=1, seed=seed % SEEDS)
        return self._seen()

    def step(self, turn: PolicyTurn) -> Step:
        """Play a turn; the last one has the reward."""
        done, _ = self._with_dice(self._game.step, action=turn.text)
        if done:
            rewards, about = self._game.close()
            metrics = {"invalid_move": float(bool(about[0].get("invalid_move")))}
            return Step(reward=float(rewards[0]), done=True, metrics=metrics)
        return Step(messages=[InsertedMessage("user", self._seen())])

    def _with_dice(self, play: Callable[..., Any], **arguments: Any) -> Any:
        """Play with the game's own state of Python's global random generator."""
        others = random.getstate()
        random.setstate(self._dice)
        try:
            return play(**arguments)
        finally:
            self._dice = random.getstate()
            random.setstate(others)

    def _seen(self) -> str:
        """Return the game's new text; its wrappers would repeat everything at each turn."""
        _, said = self._bare.get_observation()
        if isinstance(said, str):
            return said
        return "\n".join(text for _, text, kind in said if kind.name != "PLAYER_ACTION")


def textarena(*, calls: CallFormat, id: str, **options: Any) -> Callable[[], Any]:
    """Args:
    id: as `textarena.make` takes it. options: of the game.
    """
    make = import_module("textarena").make
    return lambda: TextArena(make(id, **options))
