"""TRL's `tools=` and `environment_factory=`.

In: functions, factories or classes by name. Out: a factory of episodes. Promises, as TRL's trainer
(1.16): a turn without a call ends the episode, a tool that raises does not; `reset` gets the row's
columns; every public method but `reset` and `get_reward` is a tool; `get_reward` is called once, at
the end, and is the reward; environments are made once and reset often. Needs msgspec alone.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from environments.tools import CallFormat, ToolEnvironment
from headrace.errors import UserError
from headrace.host.user_code import thing_of
from headrace.protocol.messages.environments import PolicyTurn, Step

NOT_TOOLS = ("reset", "get_reward")


@dataclass(frozen=True)
class TrlInstance:
    """An environment of TRL, and its methods as tools."""

    environment: Any
    tools: ToolEnvironment


class TrlFactories:
    """TRL's factories by name, and the environments that wait for another episode."""

    def __init__(
        self, factories: Mapping[str, Callable[[], Any]], functions: list[Any], calls: CallFormat
    ) -> None:
        self._factories, self._functions, self._calls = factories, functions, calls
        self._free: dict[str, list[TrlInstance]] = defaultdict(list)
        self.first = {name: self._made(name) for name in factories}
        for name, instance in self.first.items():
            self._free[name].append(instance)

    def take(self, name: str) -> TrlInstance:
        """Take a free environment, or make one; KeyError where there is none of this name."""
        return self._free[name].pop() if self._free.get(name) else self._made(name)

    def give(self, name: str, instance: TrlInstance) -> None:
        """Give an environment back whose episode is over."""
        self._free[name].append(instance)

    def _made(self, name: str) -> TrlInstance:
        made = self._factories[name]()
        methods = inspect.getmembers(type(made), predicate=inspect.isfunction)
        if "reset" not in dict(methods):
            raise UserError(f"{type(made).__name__} has no method reset")
        names = [key for key, _ in methods if key not in NOT_TOOLS and not key.startswith("_")]
        tools = [*self._functions, *(getattr(made, key) for key in names)]
        return TrlInstance(made, ToolEnvironment(tools, self._calls))


class TrlEpisode:
    """One rollout of TRL's loop."""

    def __init__(self, factories: TrlFactories, *, by_row: bool, most_calls: int | None) -> None:
        self._factories, self._by_row, self._left = factories, by_row, most_calls
        self._name = ""
        self._instance: TrlInstance | None = None
        first = list(factories.first.values())
        tools = {key: tool for each in first for key, tool in each.tools.tools.items()}
        self.schemas = [tool.schema for tool in tools.values()]
        rewards = [getattr(each.environment, "get_reward", None) for each in first]
        self.pays = any(rewards)
        self.waits = any(each.tools.waits for each in first) or any(
            map(inspect.iscoroutinefunction, rewards)
        )

    def reset(self, row: Mapping[str, Any], seed: int) -> str | None:
        """Call TRL's reset with the row's columns, or those of them that it takes."""
        given = dict(row)
        given["prompt"] = given.pop("messages", row["prompt"])
        if self._by_row:
            self._name = str(given.pop("environment", None))
        if self._name not in self._factories.first:
            known = ", ".join(self._factories.first)
            raise ValueError(f"the row's column environment is {self._name!r}, and not of {known}")
        self._instance = self._factories.take(self._name)
        reset = self._instance.environment.reset
        takes = inspect.signature(reset).parameters
        if not any(each.kind is each.VAR_KEYWORD for each in takes.values()):
            given = {key: value for key, value in given.items() if key in takes}
        said = reset(**given)
        if isinstance(said, list):
            said = "".join(part["text"] for part in said if part["type"] == "text")
        return said

    async def step(self, turn: PolicyTurn) -> Step:
        """Answer the turn's calls, or return the rollout's reward."""
        assert self._instance is not None
        step = Step(done=True)
        if self._left != 0:
            step = await self._instance.tools.step(turn)
        self._left = None if self._left is None else self._left - 1
        get_reward = getattr(self._instance.environment, "get_reward", None)
        if not step.done or get_reward is None:
            return step
        reward = get_reward()
        return Step(
            reward=float(await reward if inspect.isawaitable(reward) else reward), done=True
        )

    def close(self) -> None:
        """Give the environment back for another episode."""
        if self._instance is not None:
            self._factories.give(self._name, self._instance)


def episodes(
    *, calls: CallFormat, tools: str | None = None,
    environment_factory: str | dict[str, str] | None = None,
    max_tool_calling_iterations: int | None = None,
) -> Callable[[], Any]:  # fmt: skip
    """Take GRPOTrainer's arguments of these names, with `FILE.py:THING` for a thing.

    With a dict of factories a row's column `environment` names the one it plays with, and a prompt
    shows the tools of all."""
    functions = [] if tools is None else list(thing_of(tools))
    if environment_factory is None:
        return lambda: ToolEnvironment(functions, calls)
    by_row = isinstance(environment_factory, dict)
    named = (
        {"": environment_factory} if isinstance(environment_factory, str) else environment_factory
    )
    made = TrlFactories({key: thing_of(value) for key, value in named.items()}, functions, calls)
    return lambda: TrlEpisode(made, by_row=by_row, most_calls=max_tool_calling_iterations)
