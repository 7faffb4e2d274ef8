"""Interface of environments, which users write, and their look-up by name.

In: a name, options. Out: a function that makes environments. An environment is an object with

    reset(row, seed)    begins an episode: `row` is the prompt's row (`prompt`, `answer`, its other
                        columns), `seed` is that of the whole group; returns the text that the
                        policy reads before its first turn, or None
    step(turn)          answers a turn of the policy: `turn.text`, `turn.tokens`; returns a `Step`,
                        or a dict of its fields
    close()             ends an episode, over or not; may be left out

All may be coroutines. The same row, seed and turns must give the same answers, because an episode
whose process died is built again by them; an environment that cannot promise that says `replayable
= False`, and its episode then ends as failed. One that keeps nothing from turn to turn says
`keeps_state = False`, and no turn is replayed.

A list of functions is an environment, too: see `environments.tools`. So is an agent, a coroutine
`play(row, *, base_url, api_key, **options)` that asks an endpoint for chat completions, each of
which is a turn, and returns the reward of the last one, or a dict of a Step's fields. Its requests
follow from the row (`row["seed"]` is the group's) and the completions alone, unless it has the
attribute `replayable = False`.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from environments.tools import CallFormat, ToolEnvironment
from headrace.errors import UserError
from headrace.host.user_code import describe, thing_of
from headrace.protocol.messages.environments import PolicyTurn, Step

BUILT_IN = {
    "calculator": "environments.built_in:Calculator",
    "guess": "environments.built_in:Guess",
    "pag": "environments.built_in:Pag",
    "command": "agent:environments.built_in:command",
}
ADAPTERS = {
    "search": "environments.tool_sets:search",
    "python": "environments.tool_sets:python",
    "trl": "environments.adapters.trl:episodes",
    "gymnasium": "environments.adapters.games:gymnasium",
    "textarena": "environments.adapters.games:textarena",
    "verifiers": "environments.adapters.verifiers:episodes",
}
"""Names of factories that need the call format: tools, other libraries."""
AGENT = "agent:"
"""Prefix of the name of a coroutine that requests turns."""


class InvalidStepError(UserError):
    """An environment returned something that is no answer; one line."""


class Environment(Protocol):
    """Environment that plays one episode at a time."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Any:
        """Begin an episode."""

    def step(self, turn: PolicyTurn) -> Any:
        """Answer a turn."""


def maker_of(
    name: str, options: Mapping[str, Any], calls: CallFormat = "hermes"
) -> tuple[Callable[[], Environment], Environment]:
    """Return a factory of the environments of this name, and a first one.

    UserError where there is none. `calls`: the policy's format for calls of tools."""
    names = BUILT_IN | ADAPTERS
    target = names.get(name, name)
    if ":" not in target.removeprefix(AGENT):
        known = ", ".join(names)
        raise UserError(f"no environment {name!r}: take {known}, FILE.py:THING or PACKAGE:THING")
    try:
        make = thing_of(target.removeprefix(AGENT))
        if name in ADAPTERS:
            make, options = make(calls=calls, **options), {}
        if isinstance(functions := make, list | tuple):
            make = lambda: ToolEnvironment(functions, calls)  # noqa: E731
        elif target.startswith(AGENT):
            if not inspect.iscoroutinefunction(make):
                raise UserError(f"agent {name} is no coroutine (async def)")
            make = partial(AgentEnvironment, make)
        first = make(**options)
    except (Exception, SystemExit) as error:  # it is somebody else's code
        raise UserError(f"environment {name}: {describe(error)}") from error
    for method in ("reset", "step"):
        if not callable(getattr(first, method, None)):
            raise UserError(f"environment {name} has no method {method}")
    return lambda: make(**options), first


class AgentEnvironment:
    """Environment that a coroutine plays during its reset."""

    def __init__(self, play: Callable[..., Any], **options: Any) -> None:
        inspect.signature(play).bind({}, base_url="", api_key="", **options)
        self._play, self._options = play, options
        self.replayable = getattr(play, "replayable", True)

    async def reset(self, row: Mapping[str, Any], seed: int) -> Any:
        """Play the whole episode."""
        keys = {name: row[name] for name in ("base_url", "api_key")}
        said = await self._play(row["row"], **keys, **self._options)
        if isinstance(said, str):  # As a reset's it would be read, and the episode earn 0.
            raise InvalidStepError(f"the agent returned {said[:40]!r}, which is no reward")
        return {"reward": float(said or 0)} if said is None or hasattr(said, "__float__") else said

    async def step(self, turn: PolicyTurn) -> Any:
        """Raise InvalidStepError: completions answer an agent."""
        raise InvalidStepError("an agent answers no turns")


def waits(environment: Environment) -> bool:
    """Return whether an environment's steps are coroutines, which wait together."""
    known = getattr(environment, "waits", None)
    return inspect.iscoroutinefunction(environment.step) if known is None else bool(known)


async def begin(environment: Environment, row: Mapping[str, Any], seed: int) -> Step:
    """Begin an episode, and return its first messages."""
    said = environment.reset(row, seed)
    said = await said if inspect.isawaitable(said) else said
    if said is None or isinstance(said, str):
        said = {"text": said} if said else {}
    return _step_of(said)


async def answer(environment: Environment, turn: PolicyTurn) -> Step:
    """Return the answer to a turn; InvalidStepError where it is none."""
    said = environment.step(turn)
    return _step_of(await said if inspect.isawaitable(said) else said)


def _step_of(said: Any) -> Step:
    if not isinstance(said, Step | Mapping):
        raise InvalidStepError(f"a {type(said).__name__} is no Step and no dict of its fields")
    try:
        given = said if isinstance(said, Step) else dict(said)
        fields = msgspec.to_builtins(given, builtin_types=(bytes, bytearray), enc_hook=_plain)
        if unknown := fields.keys() - {"text", *Step.__struct_fields__}:
            raise InvalidStepError(f"a Step has no field {min(unknown)!r}")
        fields["messages"] = [
            (one.get("role"), one.get("content")) if isinstance(one, dict) else one
            for one in fields.get("messages", [])
        ]
        if (text := fields.pop("text", None)) is not None:
            fields["messages"].append(("user", text))
        if isinstance(fields.get("reward"), bool):
            fields["reward"] = float(fields["reward"])
        return msgspec.convert(fields, Step)
    except (TypeError, ValueError, RuntimeError, msgspec.ValidationError) as error:
        raise InvalidStepError(str(error)) from error


def _plain(value: Any) -> Any:
    """A scalar of numpy or torch as one of Python's."""
    if isinstance(value, str):
        return str(value)
    if not hasattr(value, "item"):
        raise TypeError(f"a {type(value).__name__} is no value of a Step")
    return value.item()
