"""The environment of a run: what answers when a turn of the policy ends."""

from typing import Any, Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel


class EnvironmentConfig(StrictModel):
    """An environment that plays episodes with the policy; it pays unless `scored`."""

    name: str
    """A built-in name (`calculator`, `guess`, `pag`, `search`, `python`), `FILE.py:THING` or
    `PACKAGE:THING`: a class, a function that makes an environment, or a list of functions (tools).
    `agent:FILE.py:FUNCTION`: a coroutine that asks for chat completions; `command`: a program that
    does."""

    options: dict[str, Any] = Field(default={})
    """Arguments of the class or the function."""

    python: str | None = None
    """Python of the children, 3.10 or newer, with msgspec. None: ours."""

    scored: bool = False
    """`[reward]` scores the last turn besides. Lists of tools are always scored."""

    calls: Literal["auto", "hermes", "qwen", "llama"] = "auto"
    """Format of tool calls. auto: by the chat template."""

    tools: list[dict[str, Any]] = Field(default=[])
    """JSON schemas for the chat template; found at a run's start."""

    template: Literal["extend", "append"] = "extend"
    """extend: refuse a chat template that changes earlier turns. append: keep them as sampled."""

    rewritten: Literal["fail", "branch"] = "fail"
    """An agent's request whose messages differ from what was said. fail: it is refused. branch: it
    begins a trajectory of its own, which gets the same reward."""

    workers: int = Field(default=1, ge=1)
    """Processes that answer the coordinator."""

    children: int = Field(default=2, ge=1)
    """Environment processes per worker. A hanging one is killed, its other episodes rebuilt."""

    max_turns: int = Field(default=8, ge=1)
    """Maximum number of turns; then the episode is truncated."""

    max_turn_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of sampled tokens per turn; then the episode is truncated. None:
    `task.max_response_length`, the bound of all turns."""

    max_inserted: int = Field(default=1024, ge=1)
    """Maximum number of inserted tokens per episode; an answer is cut, or the episode truncated."""

    max_context: int | None = Field(default=None, ge=1)
    """Maximum tokens of a sequence; then it is truncated. None: the sum of the other limits."""

    timeout_s: float = Field(default=30.0, gt=0)
    """Deadline of a step in seconds."""

    reset_timeout_s: float | None = Field(default=None, gt=0)
    """Deadline of a reset. None: a step's."""

    episode_timeout_s: float | None = Field(default=None, gt=0)
    """Maximum time of an episode's steps together; then it is truncated. None: no bound."""

    @property
    def is_agent(self) -> bool:
        """Return whether it requests turns of the policy itself, at an endpoint."""
        return self.name == "command" or self.name.startswith("agent:")

    @property
    def call_format(self) -> Literal["hermes", "qwen", "llama"]:
        """Format of tool calls where the template does not say it."""
        return "hermes" if self.calls == "auto" else self.calls
