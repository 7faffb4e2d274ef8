"""The environment of a run: what answers when a turn of the policy ends."""

from typing import Any, Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel


class EnvironmentConfig(StrictModel):
    """An environment that plays episodes with the policy. What it pays takes the place of
    `reward`, unless it is `scored`."""

    name: str
    """A built-in name (`calculator`, `guess`, `pag`), `FILE.py:THING` or `PACKAGE:THING`; THING is
    a class, a function that makes an environment, or a list of functions: tools.
    `agent:FILE.py:FUNCTION` is a coroutine that asks for chat completions, and `command` a program
    that does."""

    options: dict[str, Any] = Field(default={})
    """Arguments of the class or the function."""

    python: str | None = None
    """The Python program of the children, from 3.10 on. None: ours. Name another one where the
    environment's packages do not go with ours; it needs msgspec."""

    scored: bool = False
    """`[reward]` scores the policy's last turn, and that adds to what the environment pays. A list
    of tools is always scored."""

    calls: Literal["auto", "hermes", "qwen", "llama"] = "auto"
    """How the policy writes calls of tools. auto: as its chat template says."""

    tools: list[dict[str, Any]] = Field(default=[])
    """JSON schemas of the tools, for the chat template; found when a run starts."""

    template: Literal["extend", "append"] = "extend"
    """How messages get behind a turn in a chat. extend: a chat template that changes earlier turns
    when others follow (drops their reasoning) is refused. append: it is taken, and earlier turns
    stay as they were sampled."""

    workers: int = Field(default=1, ge=1)
    """Processes that answer the coordinator."""

    children: int = Field(default=2, ge=1)
    """Processes of each worker that hold environments. One that hangs is killed, and its other
    episodes are built again elsewhere."""

    max_turns: int = Field(default=8, ge=1)
    """Most turns of the policy; an episode that comes so far is truncated."""

    max_turn_tokens: int | None = Field(default=None, ge=1)
    """Most tokens that the policy samples in a turn; a longer one truncates the episode. None:
    `task.max_response_length`, which bounds all turns together."""

    max_inserted: int = Field(default=1024, ge=1)
    """Most tokens that the environment inserts into an episode, in all turns together. An answer
    is cut to what is left of them; where that is not enough for a chat's frame, the episode is
    truncated."""

    max_context: int | None = Field(default=None, ge=1)
    """Most tokens of a sequence: prompt, turns and what is inserted; a longer one is truncated.
    None: the sum of the other limits."""

    timeout_s: float = Field(default=30.0, gt=0)
    """Deadline of a step, in seconds."""

    reset_timeout_s: float | None = Field(default=None, gt=0)
    """Deadline of a reset. None: that of a step."""

    episode_timeout_s: float | None = Field(default=None, gt=0)
    """What an environment may take for all steps of an episode together; a longer one is
    truncated. None: no bound but `max_turns`."""

    @property
    def is_agent(self) -> bool:
        """Whether it asks for turns of the policy itself, at an endpoint."""
        return self.name == "command" or self.name.startswith("agent:")

    @property
    def call_format(self) -> Literal["hermes", "qwen", "llama"]:
        """How calls are written, where the template does not say."""
        return "hermes" if self.calls == "auto" else self.calls
