"""Values where they enter: refused, or applied, journaled, replayed and projected to SQL."""

import asyncio
import math
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.connections.message_checks import (
    LARGEST_REWARD,
    LONGEST_TEXT,
    TokenLimits,
    chunk_problem,
    sound_score,
)
from coordinator.connections.versions import Versions
from coordinator.dispatch.leases import GrantedLease
from headrace.protocol.messages import control as m
from headrace.protocol.token_spans import Span
from headrace.protocol.transport.endpoints import identity_of
from headrace.trajectory.trajectories import Trajectory
from tests.coordinator.stage import (
    GENERATOR,
    LEARNER,
    REWARD,
    Stage,
    assert_sound,
    body_of,
    endless,
    places,
    staged,
    with_value,
)

INTEGERS = (-(2**63), -1, 0, 1, 2**31 - 1, 2**31, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
FLOATS = (math.nan, math.inf, -math.inf, 1e308, -1e308, -1.0, 5e-324)
TEXTS = ("", "\0", "two\nlines", "x" * 5000, "x" * (2**20 + 1), "\U0001f40d" * 200, "../../up")


# -- chunks and scores by themselves ---------------------------------------------------------------


LEASE = GrantedLease(7, GENERATOR, training=True)


def growing() -> Trajectory:
    """Four tokens are there; generator-0 has lease 7."""
    trajectory = Trajectory(3, 0, "train", np.zeros(1, np.int32), 0)
    trajectory.length = trajectory.sampled = 4
    trajectory.next_chunk = 1
    return trajectory


def published() -> Versions:
    """Versions 0 to 2 are known."""
    versions = Versions()
    for version in range(3):
        versions.publish(version, version)
    return versions


def a_chunk(**fields: Any) -> m.TrajectoryChunk:
    usual: dict[str, Any] = {
        "lease_id": 7,
        "trajectory_id": 3,
        "chunk_index": 1,
        "start": 4,
        "token_ids": np.array([0, 63], np.int32),
        "logprobs": np.array([-0.5, 0.0], np.float32),
        "spans": [Span(2, 4, 6)],
    }
    return m.TrajectoryChunk(**usual | fields)


def problem(chunk: m.TrajectoryChunk, sender: str = GENERATOR) -> str | None:
    return chunk_problem(chunk, growing(), LEASE, sender, TokenLimits(8, 64), published())


def tokens(*ids: int) -> Any:
    return np.array(ids, np.int32)


def logprobs(*values: float) -> Any:
    return np.array(values, np.float32)


def full_to(end: int) -> dict[str, Any]:
    """A chunk from the four tokens on; the limit is eight."""
    size = end - 4
    return {
        "token_ids": tokens(*[5] * size), "logprobs": logprobs(*[-1.0] * size),
        "spans": [Span(2, 4, end)],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"finish": "stop"}, None),
        ({"token_ids": tokens(), "logprobs": logprobs(), "spans": [], "finish": "stop"}, None),
        ({"token_ids": tokens(), "logprobs": logprobs(), "spans": [], "finish": "held"}, None),
        ({"logprobs": logprobs(math.nan, -1)}, None),
        ({"logprobs": logprobs(math.inf, -math.inf)}, None),
        ({"logprobs": logprobs(0.1, -1)}, None),
        ({"logprobs": logprobs(0.2, -1)}, "a logprob is above 0"),
        ({"logprobs": logprobs(math.nan, 0.2)}, "a logprob is above 0"),
        ({"token_ids": tokens(0, 64)}, "not in the vocabulary"),
        ({"token_ids": tokens(-1, 5)}, "not in the vocabulary"),
        ({"token_ids": tokens(-(2**31), 5)}, "not in the vocabulary"),
        ({"lease_id": 6}, "not in force"),
        ({"chunk_index": 2}, "does not follow"),
        ({"start": 5}, "does not follow"),
        ({"logprobs": logprobs(-1)}, "differ in number"),
        ({"token_ids": tokens(), "logprobs": logprobs(), "spans": []}, "differ in number"),
        ({"spans": []}, "do not cover"),
        ({"spans": [Span(2, 4, 7)]}, "do not cover"),
        ({"spans": [Span(3, 4, 6)]}, "never published"),
        ({"spans": [Span(-1, 4, 6)]}, "never published"),
        (full_to(8), None),
        (full_to(9), "longer than max_response_length"),
    ],
)
def test_what_a_chunk_may_hold(fields: dict[str, Any], reason: str | None) -> None:
    found = problem(a_chunk(**fields))
    assert found is None if reason is None else reason in (found or "")


def test_a_chunk_of_another_generators_lease() -> None:
    assert problem(a_chunk(), "generator-1") == "lease 7 is generator-0's"


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_response_without_a_token_cannot_finish(finish: m.Finish) -> None:
    fields = {"start": 0, "chunk_index": 0, "finish": finish}
    empty = a_chunk(token_ids=tokens(), logprobs=logprobs(), spans=[], **fields)
    trajectory = growing()
    trajectory.length = trajectory.sampled = trajectory.next_chunk = 0
    here = (trajectory, LEASE, GENERATOR, TokenLimits(8, 64), published())
    assert "at least one token" in (chunk_problem(empty, *here) or "")
    failed = a_chunk(
        token_ids=tokens(), logprobs=logprobs(), spans=[], start=0, chunk_index=0, finish="failed"
    )
    assert chunk_problem(failed, *here) is None


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 2e9, -1e308])
def test_a_reward_that_is_no_number_of_use_makes_the_score_invalid(reward: float) -> None:
    sound = sound_score(m.Score(trajectory_id=1, status="ok", reward=reward))
    assert (sound.status, sound.reward) == ("invalid", 0.0)
    assert "the reward" in (sound.error or "")


def test_each_sibling_of_a_group_is_judged_by_itself() -> None:
    """A bad number makes the score invalid where it is, and a bad line the whole score."""
    good, bad = (m.Score(trajectory_id=i, status="ok", reward=r) for i, r in ((1, 0.5), (2, -2e9)))
    nested = msgspec.structs.replace(good, siblings=[bad])
    sound = sound_score(m.Score(trajectory_id=1, status="ok", siblings=[nested, bad]))
    assert sound.status == "ok"
    assert [(s.status, s.reward, s.siblings) for s in sound.siblings] == [
        ("ok", 0.5, []), ("invalid", 0.0, []),
    ]  # fmt: skip
    lines = m.Score(trajectory_id=1, status="ok", lines=[0.5, None, math.inf], siblings=[good])
    sound = sound_score(lines)
    assert (sound.status, sound.lines, sound.siblings) == ("invalid", [], [])


def test_a_good_score_stays_as_it_is_and_long_texts_are_cut() -> None:
    good = m.Score(trajectory_id=1, status="ok", reward=LARGEST_REWARD, parts={"a": math.nan})
    assert sound_score(good) == good
    long = m.Score(
        trajectory_id=1,
        status="crashed",
        parts={f"{i}\0" + "p" * 500: 0.0 for i in range(99)},
        error="e" * 10**5,
    )
    sound = sound_score(long)
    assert len(sound.error or "") == LONGEST_TEXT + len(" ...")
    assert len(sound.parts) == 64
    assert all(len(name) <= 128 and "\0" not in name for name in sound.parts)


# -- every field of every message through the coordinator, the journal and SQL ---------------------


def a_hello(_: Stage) -> Callable[[], m.Message]:
    return lambda: m.Hello(
        role="generator", name="generator-7", pid=7, host="there", capacity=1, resumed_from="x"
    )


def a_report(_: Stage) -> Callable[[], m.Message]:
    return lambda: m.GeneratorReport(
        live=1, version=0, tokens=1, discarded_tokens=1, pending_tokens=1,
        prefill_tokens=1, preempted=1, idle_s=1, pause_s=1,
        busy_s=1,
    )  # fmt: skip


def a_checkpoint(stage: Stage) -> Callable[[], m.Message]:
    def asked() -> m.Message:
        stage.training.orders.checkpoints.add(update := stage.hub.state.update)
        return m.CheckpointDone(update=update, path="step")

    return asked


MESSAGES: dict[str, tuple[str, Callable[[Stage], Callable[[], m.Message | None]]]] = {
    "Hello": ("generator-7", a_hello),
    "Heartbeat": (GENERATOR, lambda _: m.Heartbeat),
    "GeneratorReport": (GENERATOR, a_report),
    "Chunks": (GENERATOR, lambda stage: stage.chunks),
    "WeightsLoaded": (GENERATOR, lambda stage: stage.loaded),
    "Scores": (REWARD, lambda stage: stage.scores),
    "WeightNotice": (LEARNER, lambda stage: stage.notice),
    "UpdateDone": (LEARNER, lambda stage: stage.update),
    "CheckpointDone": (LEARNER, a_checkpoint),
    "Trouble": (LEARNER, lambda _: lambda: m.Trouble(kind="disk", text="is full", waits=True)),
}


async def say_changed(stage: Stage, kind: str, place: int, value: Any) -> None:
    """The message that a peer would say now, with another value at one of its places."""
    name, wanted = MESSAGES[kind]
    frames = stage.codec.encode(await stage.reach(wanted(stage)))
    body, raw = body_of(frames)
    where = places(body, (str,) if isinstance(value, str) else (int, float))
    if not where:
        return
    (header,) = with_value(body, where[place % len(where)], value)
    identity = stage.identities.get(name) or identity_of(name)
    await stage.send(identity, [header, raw])
    if stage.hub.peers.of("generator-7", identity):
        await stage.send(identity, stage.codec.encode(m.Goodbye()))


@pytest.mark.parametrize("kind", MESSAGES)
async def test_extreme_values_harm_nothing(kind: str, tmp_path: Path) -> None:
    async with staged(endless(), tmp_path / "run-1") as stage:
        _, wanted = MESSAGES[kind]
        body, _ = body_of(stage.codec.encode(await stage.reach(wanted(stage))))
        for number in range(len(places(body, (int, float)))):
            for value in (*INTEGERS, *FLOATS):
                await say_changed(stage, kind, number, value)
        for number in range(len(places(body, (str,)))):
            for text in TEXTS:
                await say_changed(stage, kind, number, text)
        for _ in range(5):
            await stage.work()
        assert stage.hub.failed is None
    assert_sound(stage)


async def test_extreme_tokens_and_logprobs_harm_nothing(tmp_path: Path) -> None:
    async with staged(endless(), tmp_path / "run-1") as stage:
        for number in (-1, -(2**31), 2**31 - 1, 64, 63):
            frames = stage.codec.encode(await stage.reach(stage.chunks))
            raw = struct.pack("<i", number) + frames[1][4:]
            await stage.send(stage.identities[GENERATOR], [frames[0], raw])
        for value in (math.nan, math.inf, -math.inf, 3e38, -3e38):
            frames = stage.codec.encode(await stage.reach(stage.chunks))
            raw = frames[1][:8] + struct.pack("<f", value) + frames[1][12:]
            await stage.send(stage.identities[GENERATOR], [frames[0], raw])
        for _ in range(20):
            await stage.work()
        assert stage.hub.rejections.counts["chunk_rejected"] == 5
    assert_sound(stage)


VALUES = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-2, 70),
    st.floats(),
    st.text(max_size=70),
)


@given(
    st.lists(st.tuples(st.sampled_from(sorted(MESSAGES)), st.integers(0, 40), VALUES), max_size=25)
)
@settings(max_examples=15, deadline=None)
def test_any_values_in_any_order_harm_nothing(changes: list[tuple[str, int, Any]]) -> None:
    async def play(run_dir: Path) -> Stage:
        async with staged(endless(), run_dir) as stage:
            for kind, place, value in changes:
                await say_changed(stage, kind, place, value)
            assert stage.hub.failed is None
        return stage

    with tempfile.TemporaryDirectory() as folder:
        assert_sound(asyncio.run(play(Path(folder) / "run-1")))
