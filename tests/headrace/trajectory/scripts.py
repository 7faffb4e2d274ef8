"""Scripted sequences of many turns, told token by token.

A script is a list of `Token`: the slow twin of a sequence, in which each token carries everything
that is to be said of it. `chunks` cuts a script anywhere and says the same in runs and points, as a
generator would.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TypeVar

import numpy as np

from headrace.protocol.records.record_types import ChunkArrived
from headrace.protocol.token_spans import (
    Coefficient,
    Mark,
    Piece,
    Reward,
    Source,
    Span,
    Speaker,
    Streams,
    Weight,
)

T = TypeVar("T")
MEDIA = "5e" * 32
_INSERTED: tuple[tuple[Source, Speaker], ...] = (
    ("template", "user"),
    ("tool", "tool"),
    ("environment", "user"),
    ("media", "user"),
)


@dataclass(frozen=True)
class Token:
    """One token and all that is to be said of it; `version` is None where it was inserted."""

    token_id: int
    source: Source
    role: Speaker
    turn: int
    media: str | None
    version: int | None
    logprob: float
    weight: float = 1.0
    reward: float | None = None
    coefficient: float | None = None
    hot: bool = False

    @property
    def sampled(self) -> bool:
        """The policy wrote it."""
        return self.version is not None


def script(rng: random.Random, *, turns: int, longest: int = 6, versions: int = 3) -> list[Token]:
    """Policy, something inserted, policy again, ...; it ends with either. Versions rise."""
    tokens: list[Token] = []
    version = 0
    for turn in range(turns):
        for _ in range(rng.randint(1, longest)):
            version = min(versions - 1, version + (rng.random() < 0.2))
            tokens.append(_token(rng, ("policy", "assistant"), turn, version))
        last = turn == turns - 1
        for _ in range(rng.randint(0, 2) * (not last or rng.random() < 0.5)):
            for _ in range(rng.randint(1, longest)):
                tokens.append(_token(rng, rng.choice(_INSERTED), turn, None))
    return tokens


def _token(rng: random.Random, by: tuple[Source, Speaker], turn: int, version: int | None) -> Token:
    source, role = by
    sampled = version is not None
    return Token(
        token_id=rng.randint(3, 99),
        source=source,
        role=role,
        turn=turn,
        media=MEDIA if source == "media" else None,
        version=version,
        logprob=-rng.randint(1, 8) / 8 if sampled else 0.0,
        weight=rng.choice([1.0, 1.0, 1.0, 0.0, 0.5]),
        reward=rng.randint(-2, 2) / 2 if rng.random() < 0.1 else None,
        coefficient=0.25 if rng.random() < 0.1 else None,
        hot=sampled and rng.random() < 0.1,
    )


def runs(
    tokens: Sequence[Token], start: int, key: Callable[[Token], T]
) -> list[tuple[T, int, int]]:
    """Runs of equal keys: (key, start, end)."""
    found: list[tuple[T, int, int]] = []
    for value, group in groupby(tokens, key):
        end = start + sum(1 for _ in group)
        found.append((value, start, end))
        start = end
    return found


def streams_of(tokens: Sequence[Token], start: int) -> Streams:
    """The sparse streams of tokens that begin at position `start`, pieces included."""
    here = enumerate(tokens, start)
    return Streams(
        pieces=[
            Piece(*key[:3], first, last, key[3])
            for key, first, last in runs(
                tokens, start, lambda t: (t.source, t.role, t.turn, t.media)
            )
        ],
        weights=[
            Weight(value, first, last)
            for value, first, last in runs(tokens, start, lambda t: t.weight)
            if value != 1.0
        ],
        rewards=[Reward(t.reward, p) for p, t in here if t.reward is not None],
        coefficients=[
            Coefficient("kl", value, first, last)
            for value, first, last in runs(tokens, start, lambda t: t.coefficient)
            if value is not None
        ],
        marks=[
            Mark("hot", first, last)
            for hot, first, last in runs(tokens, start, lambda t: t.hot)
            if hot
        ],
    )


def spans_of(tokens: Sequence[Token], start: int) -> list[Span]:
    """Version spans of tokens that begin at position `start`."""
    found = runs(tokens, start, lambda t: t.version)
    return [Span(version, a, b) for version, a, b in found if version is not None]


def chunks(
    rng: random.Random,
    tokens: Sequence[Token],
    *,
    trajectory_id: int = 0,
    cuts: Sequence[int] | None = None,
) -> Iterator[ChunkArrived]:
    """The script as chunks, cut at these positions, or anywhere. A chunk of which nothing out of
    the ordinary is to be said may come without streams, and one that the policy alone goes on with
    without pieces."""
    if cuts is None:
        cuts = rng.sample(range(1, len(tokens)), min(rng.randint(0, 8), len(tokens) - 1))
    inner = sorted(cuts)
    for index, (start, end) in enumerate(pairwise([0, *inner, len(tokens)])):
        part = tokens[start:end]
        streams: Streams | None = streams_of(part, start)
        turn = tokens[start - 1].turn if start else 0
        assert streams is not None
        if all(t.sampled and t.turn == turn for t in part) and rng.random() < 0.7:
            streams = Streams(
                weights=streams.weights,
                rewards=streams.rewards,
                coefficients=streams.coefficients,
                marks=streams.marks,
            )
            streams = None if streams == Streams() else streams
        yield ChunkArrived(
            at=0.0,
            trajectory_id=trajectory_id,
            lease_id=0,
            chunk_index=index,
            generator="g",
            start=start,
            token_ids=np.array([t.token_id for t in part], np.int32),
            logprobs=np.array([t.logprob for t in part], np.float32),
            spans=spans_of(part, start),
            streams=streams,
        )
