"""Messages of coordinator, environment workers and their children on episodes.

In: turns of the policy as text. Out: what an environment answers. Promise: needs msgspec alone, so
that a child can run in a Python that has nothing else.
"""

import hashlib
from typing import Any, Literal

import msgspec

from headrace.protocol import fields

Role = Literal["system", "user", "tool", "assistant"]


class PolicyTurn(msgspec.Struct, frozen=True, array_like=True):
    """A turn of the policy: its text without silent tokens, and how many tokens it has. For an
    agent also their ids and logprobs, and how many tokens stand before them."""

    text: str
    tokens: fields.Position
    ids: list[int] = []
    logprobs: list[float] = []
    before: fields.Position = 0


class InsertedMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message of an environment to the policy."""

    role: Role
    content: fields.Prose


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """An environment's answer to a turn.

    Attributes:
        messages: what the policy reads next. reward: what the turn earned. done: the episode is
        over. success: whether it was won; None: if it earned anything above 0. metrics: numbers by
        name. act: of the turn that follows, see `algorithm.advantages.whiten_by_act`. tools: JSON
        schemas of what an agent's policy may call, at the reset.
    """

    messages: list[InsertedMessage] = []
    reward: float = 0.0
    done: bool = False
    success: bool | None = None
    metrics: dict[fields.Label, float] = {}
    act: fields.Act = 0
    tools: list[dict[str, Any]] = []

    @property
    def digest(self) -> str:
        """Return a digest of what a replay has to repeat."""
        said = msgspec.msgpack.encode(
            (self.messages, self.reward, self.done, self.success, self.act, self.tools)
        )
        return hashlib.sha256(said).hexdigest()


class StepAsk(msgspec.Struct, frozen=True, kw_only=True):
    """Answer the last of these turns of an episode; without any, begin it.

    Attributes:
        turn: how many turns there are with those that are not here. turns: the last of them; all,
        where the asked worker has not seen the episode. known: digests of the answers before this
        one, the reset's first. row: the prompt's row as a JSON object. seed: of the whole group.
        branch_of: the trajectory whose agent has begun this one by rewriting its history; -1: it is
        no branch. branches: those of this trajectory so far.
    """

    trajectory_id: int
    turn: int
    turns: list[PolicyTurn]
    known: list[str]
    row: str
    seed: int
    branch_of: int = -1
    branches: list[int] = []


class StepReply(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a StepAsk. `diverged`: a rebuilt episode answered otherwise than before; `lost`: it
    cannot be rebuilt; `rewritten`: its agent changed its history. `branched`: no answer, but its
    agent began a branch, to which the coordinator has to give a trajectory before it asks again."""

    trajectory_id: fields.Count
    turn: fields.Position
    status: Literal[
        "ok", "timeout", "crashed", "invalid", "diverged", "lost", "rewritten", "branched"
    ]
    step: Step = Step()
    seconds: fields.Seconds = 0.0
    error: fields.Prose = ""
