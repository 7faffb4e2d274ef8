"""Trajectories of many turns: however they are cut, any stretch says what its chunks said."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.connections.message_checks import stretch_problem
from headrace.protocol.records.record_types import ChunkArrived
from headrace.protocol.token_spans import EnvironmentStep, Piece, Span, Streams, TurnRun
from headrace.trajectory.trajectories import Trajectory
from tests.headrace.trajectory.scripts import Token, chunks, runs, script

SEEDS = st.integers(0, 10**6)
TURNS = st.integers(1, 6)


def empty() -> Trajectory:
    return Trajectory(0, 0, "train", np.array([1, 2], np.int32), 0)


def built(tokens: list[Token], rng: random.Random) -> Trajectory:
    trajectory = empty()
    sampled = 0
    for chunk in chunks(rng, tokens):
        size = chunk.token_ids.size
        assert stretch_problem(chunk.start, size, chunk.spans, chunk.streams) is None
        sampled += trajectory.append(chunk)
        assert trajectory.sampled == sampled
    return trajectory


@settings(deadline=None, max_examples=150)
@given(SEEDS, TURNS)
def test_each_token_is_what_its_chunk_said(seed: int, turns: int) -> None:
    rng = random.Random(seed)
    tokens = script(rng, turns=turns)
    trajectory = built(tokens, rng)
    assert trajectory.length == len(tokens)
    assert trajectory.tokens.tolist() == [t.token_id for t in tokens]
    assert trajectory.logprobs.tolist() == [t.logprob for t in tokens]
    assert trajectory.sampled_tokens().tolist() == [t.token_id for t in tokens if t.sampled]
    if trajectory.pieces:
        said = [
            (p.source, p.role, p.turn, p.media)
            for p in trajectory.pieces
            for _ in range(p.start, p.end)
        ]
        assert said == [(t.source, t.role, t.turn, t.media) for t in tokens]
        assert trajectory.pieces[0].start == 0
    else:
        assert all(t.sampled and t.turn == 0 for t in tokens)
    weights, coefficients, hot = [1.0] * len(tokens), [None] * len(tokens), [False] * len(tokens)
    for weight in trajectory.weights:
        weights[weight.start : weight.end] = [weight.value] * (weight.end - weight.start)
    for run in trajectory.coefficients:
        coefficients[run.start : run.end] = [run.value] * (run.end - run.start)  # type: ignore[list-item]
    for mark in trajectory.marks:
        hot[mark.start : mark.end] = [True] * (mark.end - mark.start)
    assert weights == [t.weight for t in tokens]
    assert coefficients == [t.coefficient for t in tokens]
    assert hot == [t.hot for t in tokens]
    rewards = {r.position: r.value for r in trajectory.rewards}
    assert rewards == {p: t.reward for p, t in enumerate(tokens) if t.reward is not None}


@settings(deadline=None, max_examples=150)
@given(SEEDS, TURNS)
def test_any_stretch_has_the_versions_and_samples_of_its_tokens(seed: int, turns: int) -> None:
    rng = random.Random(seed)
    tokens = script(rng, turns=turns)
    trajectory = built(tokens, rng)
    start = rng.randint(0, len(tokens))
    end = rng.randint(start, len(tokens))
    versions: list[int | None] = [None] * (end - start)
    for span in trajectory.spans_between(start, end):
        assert start <= span.start < span.end <= end
        versions[span.start - start : span.end - start] = [span.version] * (span.end - span.start)
    assert versions == [t.version for t in tokens[start:end]]
    expected = [(a, b) for sampled, a, b in runs(tokens[start:end], start, _sampled) if sampled]
    assert trajectory.sampled_between(start, end) == expected
    left = [p for p in range(start, len(tokens)) if tokens[p].sampled]
    if left and start <= left[0]:
        count = rng.randint(1, len(left))
        begin = start if trajectory.pieces else left[0]
        assert trajectory.position_after(begin, count) == left[count - 1] + 1


def _sampled(token: Token) -> bool:
    return token.sampled


@settings(deadline=None, max_examples=60)
@given(SEEDS, TURNS)
def test_the_cuts_leave_no_trace(seed: int, turns: int) -> None:
    """Runs are joined where the policy or another source goes on across a cut."""
    tokens = script(random.Random(seed), turns=turns)
    one, other = (built(tokens, random.Random(seed + n)) for n in (1, 2))
    assert one.spans == other.spans
    assert one.tokens.tolist() == other.tokens.tolist()
    if one.pieces and other.pieces:
        assert one.pieces == other.pieces


def test_turns_of_a_stretch_and_which_of_them_have_ended() -> None:
    """The reset (act 1), a turn at 0 to 2, its answer at 3 and 4 (act 2), and a turn at 5 to 7."""
    trajectory = empty()
    answer = [Piece("environment", "tool", 1, 3, 5)]
    for start, end, streams in (
        (0, 0, Streams(step=EnvironmentStep(turn=0, digest="", act=1))),
        (0, 3, None),
        (3, 5, Streams(pieces=answer, step=EnvironmentStep(turn=1, digest="", act=2))),
        (5, 8, None),
    ):
        trajectory.append(
            ChunkArrived(
                trajectory_id=0, lease_id=0, chunk_index=trajectory.next_chunk, generator="g",
                start=start, token_ids=np.arange(start, end, dtype=np.int32),
                logprobs=np.zeros(end - start, np.float32),
                spans=[] if streams else [Span(0, start, end)], streams=streams,
            )
        )  # fmt: skip
    first = TurnRun(0, 3, True, 1)
    assert trajectory.turns_between(0, 8) == [first, TurnRun(5, 8, False, 2)]
    assert trajectory.turns_between(2, 6) == [first, TurnRun(5, 6, False, 2)]
    assert trajectory.turns_between(0, 2) == [TurnRun(0, 2, False, 1)]
    assert trajectory.turns_between(3, 5) == []
    assert [trajectory.turn(number).tolist() for number in (0, 1, -1)] == [
        [0, 1, 2], [5, 6, 7], [5, 6, 7],
    ]  # fmt: skip
    trajectory.status = "finished"
    assert trajectory.turns_between(5, 8) == [TurnRun(5, 8, True, 2)]
    assert trajectory.turns_between(5, 7) == [TurnRun(5, 7, False, 2)], "cut in the middle"
