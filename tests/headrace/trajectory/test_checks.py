"""What may be appended to a sequence: every kind of breach, and a slow twin over single tokens."""

import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinator.connections.message_checks import stretch_problem
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
from tests.headrace.trajectory.scripts import script, spans_of, streams_of


def is_good(start: int, size: int, spans: list[Span], streams: Streams | None) -> bool:
    """The same question, asked of one token after the other."""
    streams = streams or Streams()
    here = range(start, start + size)
    everything: list[list[Any]] = [
        streams.pieces, spans, streams.weights, streams.coefficients, streams.marks,
    ]  # fmt: skip
    for run in (run for runs in everything for run in runs):
        if run.start >= run.end or run.start not in here or run.end - 1 not in here:
            return False
    for ordered in everything[:2]:
        if any(one.start > other.start for one, other in pairwise(ordered)):
            return False
    for position in here:
        sources = [p.source for p in streams.pieces if position in range(p.start, p.end)]
        versions = [s.version for s in spans if position in range(s.start, s.end)]
        if not streams.pieces:
            sources = ["policy"]
        if len(sources) != 1 or len(versions) != (sources == ["policy"]):
            return False
    numbers = [x.value for run in (streams.weights, streams.coefficients) for x in run]
    numbers += [reward.value for reward in streams.rewards]
    return (
        all(reward.position in here for reward in streams.rewards)
        and all(map(math.isfinite, numbers))
        and all(weight.value >= 0 for weight in streams.weights)
    )


def spoilt(rng: random.Random, items: list[Any]) -> list[Any]:
    """A list of runs or points with one thing changed."""
    items = list(items)
    kind = rng.choice(["drop", "repeat", "swap", "edge", "edge", "edge", "value"])
    if not items:
        return items
    at = rng.randrange(len(items))
    if kind == "drop":
        del items[at]
    elif kind == "repeat":
        items.insert(at, items[at])
    elif kind == "swap":
        items.insert(rng.randrange(len(items)), items.pop(at))
    elif kind == "edge":
        name = rng.choice([n for n in items[at].__struct_fields__ if n in EDGES])
        moved = getattr(items[at], name) + rng.choice([-2, -1, 1, 2])
        items[at] = replace(items[at], **{name: moved})
    elif "value" in items[at].__struct_fields__:
        items[at] = replace(items[at], value=rng.choice([math.nan, math.inf, -1.0, 0.0]))
    elif isinstance(items[at], Piece):
        items[at] = replace(items[at], source=rng.choice(["policy", "tool"]))
    return items


EDGES = ("start", "end", "position")
LISTS = ("pieces", "weights", "rewards", "coefficients", "marks")


@settings(deadline=None, max_examples=400)
@given(st.integers(0, 10**6), st.integers(0, 3))
def test_a_slow_twin_finds_the_same_breaches(seed: int, changes: int) -> None:
    rng = random.Random(seed)
    tokens = script(rng, turns=rng.randint(1, 3), longest=3)
    start = rng.randint(0, len(tokens) - 1)
    part = tokens[start : rng.randint(start + 1, len(tokens))]
    spans, streams = spans_of(part, start), streams_of(part, start)
    assert stretch_problem(start, len(part), spans, streams) is None
    for _ in range(changes):
        name = rng.choice([*LISTS, "spans", "pieces"])
        if name == "spans":
            spans = spoilt(rng, spans)
        else:
            streams = replace(streams, **{name: spoilt(rng, getattr(streams, name))})
    found = stretch_problem(start, len(part), spans, streams)
    assert (found is None) == is_good(start, len(part), spans, streams), found


def piece(source: Source, start: int, end: int, role: Speaker = "assistant") -> Piece:
    return Piece(source, role, 0, start, end)


TURN = [piece("policy", 4, 6), piece("tool", 6, 9, "tool"), piece("policy", 9, 10)]
SPANS = [Span(3, 4, 6), Span(4, 9, 10)]


@pytest.mark.parametrize(
    ("spans", "streams", "problem"),
    [
        (SPANS, Streams(pieces=TURN), None),
        ([Span(3, 4, 10)], None, None),
        ([Span(3, 4, 7), Span(4, 7, 10)], None, None),
        (SPANS, None, "version spans do not cover the sampled tokens"),
        ([Span(3, 4, 9)], None, "version spans do not cover the sampled tokens"),
        ([Span(3, 4, 11)], None, "version spans do not cover the sampled tokens"),
        ([Span(3, 4, 8), Span(4, 7, 10)], None, "version spans do not cover the sampled tokens"),
        ([Span(3, 4, 4), Span(4, 4, 10)], None, "version spans do not cover the sampled tokens"),
        (
            [Span(3, 4, 10)],
            Streams(pieces=TURN),
            "version spans do not cover the sampled tokens",
        ),
        (SPANS, Streams(pieces=TURN[:2]), "pieces do not cover the tokens"),
        (SPANS, Streams(pieces=TURN[1:]), "pieces do not cover the tokens"),
        (SPANS, Streams(pieces=[TURN[1], TURN[0], TURN[2]]), "pieces do not cover the tokens"),
        (
            SPANS,
            Streams(pieces=[*TURN, piece("tool", 10, 10)]),
            "pieces do not cover the tokens",
        ),
        (
            SPANS,
            Streams(pieces=TURN, weights=[Weight(0.0, 9, 11)]),
            "a run of a stream lies outside the tokens",
        ),
        (
            SPANS,
            Streams(pieces=TURN, coefficients=[Coefficient("kl", 0.1, 3, 5)]),
            "a run of a stream lies outside the tokens",
        ),
        (
            SPANS,
            Streams(pieces=TURN, marks=[Mark("hot", 5, 5)]),
            "a run of a stream lies outside the tokens",
        ),
        (
            SPANS,
            Streams(pieces=TURN, rewards=[Reward(1.0, 10)]),
            "a reward lies outside the tokens",
        ),
        (
            SPANS,
            Streams(pieces=TURN, weights=[Weight(-1.0, 4, 5)]),
            "a loss weight is negative or not finite",
        ),
        (
            SPANS,
            Streams(pieces=TURN, rewards=[Reward(math.nan, 5)]),
            "a reward or coefficient is not finite",
        ),
        (
            SPANS,
            Streams(pieces=TURN, coefficients=[Coefficient("kl", math.inf, 4, 5)]),
            "a reward or coefficient is not finite",
        ),
    ],
)
def test_each_kind_of_breach_is_named(
    spans: list[Span], streams: Streams | None, problem: str | None
) -> None:
    assert stretch_problem(4, 6, spans, streams) == problem


def test_a_stretch_without_tokens_says_nothing() -> None:
    assert stretch_problem(7, 0, [], None) is None
    assert stretch_problem(7, 0, [Span(0, 7, 8)], None) is not None
    assert stretch_problem(7, 0, [], Streams(rewards=[Reward(1.0, 7)])) is not None
