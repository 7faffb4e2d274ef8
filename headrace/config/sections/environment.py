"""The environment of a run: what answers when a turn of the policy ends."""

from typing import Any

from pydantic import Field

from headrace.config.sections.base import StrictModel


class EnvironmentConfig(StrictModel):
    """An environment that plays episodes with the policy. What it pays takes the place of
    `reward`."""

    name: str
    """A built-in name (`calculator`, `guess`, `pag`), `FILE.py:THING` or `PACKAGE:THING`; THING is
    a class, or a function that makes an environment."""

    options: dict[str, Any] = Field(default={})
    """Arguments of the class or the function."""

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

    timeout_s: float = Field(default=30.0, gt=0)
    """Deadline of a reset and of a step."""
