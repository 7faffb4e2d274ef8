"""Streams of data on single tokens of a sequence, beside their ids.

A *sequence* is everything a policy read and wrote for one answer: pieces in order, each with a
source, a role and a turn. Positions count tokens from the end of the opening (the pieces that the
whole group shares): 0 is the first token after it, whether the policy or the environment wrote it.
Dense streams (logprobs) are arrays beside the ids; the streams here are runs [start, end) or single
points, because most tokens have no entry in them. An absent stream means the plain case: one
answer, sampled by the policy as the assistant, every token in the loss, one reward at the end.
"""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.protocol import fields

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Source = Literal["prompt", "policy", "template", "tool", "environment", "media"]
"""Writer of a token. Only `policy` tokens were sampled, have a weight version and can be trained;
`template`, `tool` and `environment` tokens were inserted; `media` are placeholders of a media
object."""
Speaker = Literal["system", "user", "assistant", "tool"]
"""The role in a conversation."""
MarkName = Literal["hot"]
"""hot: drawn by FIRE's high temperature instead of the regular sampler."""
KL = "kl"
"""The coefficient that stands in the place of `algorithm.kl.coef` for a run of tokens."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """The policy sampled tokens [start, end) under weights `version`."""

    version: fields.Count
    start: fields.Position
    end: fields.Position


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Tokens [start, end) have one source, one role and one turn (the first turn is 0). `media` is
    the SHA-256 of the object that placeholder tokens stand for; the object itself is stored once
    and never travels with the tokens."""

    source: Source
    role: Speaker
    turn: fields.Position
    start: fields.Position
    end: fields.Position
    media: fields.Digest | None = None


class MediaRun(msgspec.Struct, frozen=True, array_like=True):
    """Tokens [start, end) of an opening, counted from its first token, are placeholders of the
    image with that SHA-256. The image is stored once and never travels with the tokens. `grid` by
    the processor: frames and rows and columns of patches (Qwen's families), or frames and height
    and width in pixels; 0, 0, 0: unknown."""

    digest: fields.Digest
    start: fields.Position
    end: fields.Position
    grid: tuple[fields.Position, fields.Position, fields.Position] = (0, 0, 0)


class TurnRun(msgspec.Struct, frozen=True, array_like=True):
    """A turn of the policy: what it sampled from position `start` on, up to `end`; `ended`: no more
    of it follows. `act`: what kind of turn its environment says it is."""

    start: fields.Position
    end: fields.Position
    ended: bool
    act: fields.Act = 0


class Weight(msgspec.Struct, frozen=True, array_like=True):
    """Tokens [start, end) count `value` times in the policy's loss; without a run, once."""

    value: float
    start: fields.Position
    end: fields.Position


class Reward(msgspec.Struct, frozen=True, array_like=True):
    """The token at `position` earned `value`: a line, a turn or the whole answer ends there."""

    value: float
    position: fields.Position


class Coefficient(msgspec.Struct, frozen=True, array_like=True):
    """A number that a loss term reads for tokens [start, end), such as a KL coefficient of this
    sample's source. `name` is the term's."""

    name: fields.Label
    value: float
    start: fields.Position
    end: fields.Position


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """Tokens [start, end) are special in the way that `name` says."""

    name: MarkName
    start: fields.Position
    end: fields.Position


class EnvironmentStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of an environment's step, besides tokens. `turn`: number of the policy's turns so far.
    `digest` names its answer, which a rebuilt one has to repeat. `tools`: as in a Step."""

    turn: fields.Position
    digest: fields.Digest
    reward: float = 0.0
    done: bool = False
    success: bool | None = None
    metrics: dict[fields.Label, float] = {}
    act: fields.Act = 0
    seconds: fields.Seconds = 0.0
    tools: list[dict[str, Any]] = []


class Streams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sparse streams of a stretch of tokens; positions as in the module's docstring. `pieces`
    cover the stretch without gaps, or are empty: then the policy sampled all of it. `step`: of a
    stretch that an environment has written, which may be empty."""

    pieces: list[Piece] = []
    weights: list[Weight] = []
    rewards: list[Reward] = []
    coefficients: list[Coefficient] = []
    marks: list[Mark] = []
    step: EnvironmentStep | None = None


PLAIN = Streams()
"""Nothing out of the ordinary."""


def joined_runs(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]] | None:
    """Join runs where they touch; None where one is empty or begins before the last one ended."""
    joined: list[tuple[int, int]] = []
    for first, last in runs:
        if last <= first or (joined and first < joined[-1][1]):
            return None
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined
