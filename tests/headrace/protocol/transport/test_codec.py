"""The codec: what goes in comes out, and what was never put in is a ProtocolError."""

import contextlib
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.protocol.messages.batches import (
    BatchSequence,
    GroupScores,
    PolicyWindow,
    Shard,
    ValueTrajectory,
)
from headrace.protocol.messages.control import (
    PROTOCOL_VERSION,
    AnyMessage,
    BatchPart,
    Chunks,
    GeneratorReport,
    Heartbeat,
    Hello,
    Lease,
    Leases,
    Message,
    ScoreItem,
    ScoreRequest,
    TrajectoryChunk,
)
from headrace.protocol.records.record_types import AnyRecord, Record, RewardArrived
from headrace.protocol.token_spans import Coefficient, Mark, Piece, Reward, Span, Streams, Weight
from headrace.protocol.transport.codec import MAGIC, Codec, in_parts, message_codec
from tests.headrace.protocol.strategies import structs

LIMIT = 1 << 20
MESSAGES = get_args(AnyMessage)
RECORDS = get_args(AnyRecord)
TOO_LARGE = HealthCheck.filter_too_much
"""Lists in lists are soon larger than what is drawn, which counts as filtered out."""


def same(left: Any, right: Any) -> bool:
    """Equality of structs that hold arrays (NaN equals NaN, dtypes count)."""
    if isinstance(left, np.ndarray):
        if left.dtype != right.dtype:
            return False
        return np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
    if isinstance(left, msgspec.Struct):
        names = left.__struct_fields__
        return type(left) is type(right) and all(
            same(getattr(left, name), getattr(right, name)) for name in names
        )
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def a_chunk() -> Chunks:
    return Chunks(
        chunks=[
            TrajectoryChunk(
                lease_id=3,
                trajectory_id=7,
                chunk_index=1,
                start=64,
                token_ids=np.array([5, 6, 7], np.int32),
                logprobs=np.array([-0.5, -1.0, -2.0], np.float32),
                spans=[Span(4, 64, 66), Span(5, 66, 67)],
                finish="stop",
            )
        ]
    )


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[TOO_LARGE])
def test_every_message_comes_back_as_it_went(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(structs(kind))
    codec = message_codec(max_bytes=LIMIT)
    assert same(codec.decode(codec.encode(message)), message)


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[TOO_LARGE])
def test_every_record_comes_back_as_it_went(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(structs(kind))
    codec: Codec[Record] = Codec(AnyRecord, max_bytes=LIMIT)
    assert same(codec.decode(codec.encode(record)), record)


def test_a_score_from_before_scores_said_correct_can_be_read() -> None:
    """A journal's record without the field: whether the answer was right is not known."""
    old = {"type": "RewardArrived", "at": 1.0, "trajectory_id": 3, "status": "ok", "reward": 1.0}
    record = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=AnyRecord)
    assert isinstance(record, RewardArrived)
    assert record.reward == 1.0
    assert record.correct is None


def test_bytes_on_the_wire_are_these() -> None:
    """Golden: peers of one PROTOCOL_VERSION agree on these bytes for ever."""
    header, raw = message_codec(max_bytes=LIMIT).encode(a_chunk())
    assert header[:3] == b"HR" + bytes([PROTOCOL_VERSION])
    assert msgspec.msgpack.decode(header[3:]) == {
        "type": "Chunks",
        "chunks": [
            {
                "lease_id": 3,
                "trajectory_id": 7,
                "chunk_index": 1,
                "start": 64,
                "token_ids": ["i", 0, 3],
                "logprobs": ["f", 16, 3],
                "spans": [[4, 64, 66], [5, 66, 67]],
                "finish": "stop",
                "error": None,
                "streams": None,
            }
        ],
    }
    assert raw.hex() == "050000000600000007000000" + "00000000" + "000000bf000080bf000000c0"


def test_streams_of_a_chunk_on_the_wire() -> None:
    """Golden: sparse streams are lists, and those without an entry are not sent."""
    streams = Streams(
        pieces=[Piece("policy", "assistant", 0, 64, 66), Piece("tool", "tool", 1, 66, 67)],
        weights=[Weight(0.5, 64, 65)],
        marks=[Mark("hot", 64, 65)],
    )
    chunk = msgspec.structs.replace(a_chunk().chunks[0], streams=streams)
    header, _ = message_codec(max_bytes=LIMIT).encode(Chunks(chunks=[chunk]))
    (sent,) = msgspec.msgpack.decode(header[3:])["chunks"]
    assert sent["streams"] == {
        "pieces": [
            ["policy", "assistant", 0, 64, 66, None],
            ["tool", "tool", 1, 66, 67, None],
        ],
        "weights": [[0.5, 64, 65]],
        "marks": [["hot", 64, 65]],
    }


def test_a_part_of_a_batch_on_the_wire() -> None:
    """Golden: a window and a value trajectory stand in one sequence, which is sent once, as are the
    scores and lengths of the whole group."""
    sequence = BatchSequence(
        trajectory_id=1,
        group_id=0,
        token_ids=np.array([4, 5], np.int32),
        opening=1,
        sampled=[(0, 1)],
    )
    window = PolicyWindow(
        window_id=65536,
        trajectory_id=1,
        sequence=0,
        start=0,
        end=1,
        length=1,
        logprobs=np.array([-0.5], np.float32),
        loss_weights=np.array([2.0], np.float32),
        spans=[Span(2, 0, 1)],
        rewards=[Reward(1.0, 0)],
        coefficients=[Coefficient("kl", 0.25, 0, 1)],
        marks=[Mark("hot", 0, 1)],
        finished=True,
        correct=True,
    )
    whole = ValueTrajectory(
        trajectory_id=1,
        sequence=0,
        length=1,
        rewards=[Reward(1.0, 0)],
        logprobs=np.zeros(0, np.float32),
    )
    group = GroupScores(
        group_id=0,
        trajectory_ids=[0, 1],
        scores=np.array([0.0, 1.0], np.float32),
        lengths=np.array([3, 1], np.int32),
    )
    shard = Shard(sequences=[sequence], windows=[window], values=[whole], groups=[group])
    part = BatchPart(batch_id=1, rank=0, index=2, shard=shard)
    header, raw = message_codec(max_bytes=LIMIT).encode(part)
    assert PROTOCOL_VERSION == 17
    assert msgspec.msgpack.decode(header[3:]) == {
        "type": "BatchPart",
        "batch_id": 1,
        "rank": 0,
        "index": 2,
        "shard": {
            "sequences": [
                {
                    "trajectory_id": 1,
                    "group_id": 0,
                    "token_ids": ["i", 0, 2],
                    "opening": 1,
                    "sampled": [[0, 1]],
                }
            ],
            "windows": [
                {
                    "window_id": 65536,
                    "trajectory_id": 1,
                    "sequence": 0,
                    "start": 0,
                    "end": 1,
                    "length": 1,
                    "logprobs": ["f", 8, 1],
                    "loss_weights": ["f", 16, 1],
                    "spans": [[2, 0, 1]],
                    "rewards": [[1.0, 0]],
                    "coefficients": [["kl", 0.25, 0, 1]],
                    "marks": [["hot", 0, 1]],
                    "finished": True,
                    "correct": True,
                    "turns": [],
                    "confidence": [],
                    "outcome": None,
                    "answer_length": 0,
                    "row": "",
                }
            ],
            "values": [
                {
                    "trajectory_id": 1,
                    "sequence": 0,
                    "length": 1,
                    "rewards": [[1.0, 0]],
                    "logprobs": ["f", 24, 0],
                    "coefficients": [],
                    "turns": [],
                    "marks": [],
                }
            ],
            "groups": [
                {
                    "group_id": 0,
                    "trajectory_ids": [0, 1],
                    "scores": ["f", 24, 2],
                    "lengths": ["i", 32, 2],
                }
            ],
        },
    }
    ids, logprob, weight = "0400000005000000", "000000bf" + 4 * "00", "00000040" + 4 * "00"
    assert raw.hex() == ids + logprob + weight + "000000000000803f" + "0300000001000000"


def test_arrays_are_read_only_views_of_the_frame() -> None:
    codec = message_codec(max_bytes=LIMIT)
    header, raw = codec.encode(a_chunk())
    decoded = codec.decode([header, raw])
    assert isinstance(decoded, Chunks)
    tokens = decoded.chunks[0].token_ids
    assert not tokens.flags.writeable
    assert np.shares_memory(tokens, np.frombuffer(raw, np.uint8))


def test_a_strided_array_is_sent_by_value() -> None:
    codec = message_codec(max_bytes=LIMIT)
    chunk = msgspec.structs.replace(
        a_chunk().chunks[0], token_ids=np.arange(8, dtype=np.int32)[::-2]
    )
    decoded = codec.decode(codec.encode(Chunks(chunks=[chunk])))
    assert isinstance(decoded, Chunks)
    assert decoded.chunks[0].token_ids.tolist() == [7, 5, 3, 1]


@pytest.mark.parametrize(
    "array",
    [np.zeros(2, np.int64), np.zeros(2, np.float64), np.zeros((2, 2), np.int32)],
    ids=["int64", "float64", "two-dimensional"],
)
def test_the_sender_is_told_of_an_array_that_does_not_fit(array: np.ndarray) -> None:
    chunk = msgspec.structs.replace(a_chunk().chunks[0], token_ids=array)
    with pytest.raises(TypeError, match="cannot put"):
        message_codec(max_bytes=LIMIT).encode(Chunks(chunks=[chunk]))


def test_a_message_over_the_limit_is_refused_on_both_sides() -> None:
    lease = Lease(
        lease_id=1, trajectory_id=1, purpose="train", prompt_ids=np.zeros(1000, np.int32),
        prefix_ids=np.zeros(0, np.int32), seed=0, max_total=8, stop_at=8, window=8, next_chunk=0,
        temperature=1.0, top_p=1.0,
    )  # fmt: skip
    message = Leases(leases=[lease])
    frames = message_codec(max_bytes=LIMIT).encode(message)
    small = message_codec(max_bytes=4000)
    with pytest.raises(ProtocolError, match="over the limit"):
        small.encode(message)
    with pytest.raises(ProtocolError, match="over the limit"):
        small.decode(frames)


def rejected(*frames: bytes) -> str:
    """The reason why these frames are no message."""
    with pytest.raises(ProtocolError) as caught:
        message_codec(max_bytes=LIMIT).decode(frames)
    return str(caught.value)


def test_another_version_is_named() -> None:
    header, raw = message_codec(max_bytes=LIMIT).encode(Heartbeat())
    other = b"HR" + bytes([PROTOCOL_VERSION + 1]) + header[3:]
    assert rejected(other, raw) == "protocol version 18, this is 17"


def test_frames_that_are_no_message() -> None:
    header, raw = message_codec(max_bytes=LIMIT).encode(Heartbeat())
    assert "2 frames" in rejected(header)
    assert "2 frames" in rejected(header, raw, b"")
    assert "not a Headrace message" in rejected(b"", b"")
    assert "not a Headrace message" in rejected(b"GET / HTTP/1.1", b"")
    assert "not a Headrace message" in rejected(MAGIC, b"")
    assert "malformed" in rejected(header + b"\0", raw)


@pytest.mark.parametrize(
    "body",
    [
        {"type": "Hello"},
        {"type": "NoSuchMessage"},
        {"type": ["Hello"]},
        {"name": "without a tag"},
        {"type": "CheckpointRequest", "update": "much"},
        {"type": "Command", "action": "format the disk"},
        ["Heartbeat"],
        "Heartbeat",
        None,
    ],
    ids=str,
)
def test_wrong_fields_and_tags(body: object) -> None:
    assert "malformed" in rejected(MAGIC + msgspec.msgpack.encode(body), b"")


@pytest.mark.parametrize(
    "reference",
    [
        ["i", 0, 4],
        ["i", 8, 2],
        ["i", 16, 1],
        ["i", -8, 1],
        ["i", 0, -1],
        ["i", 1, 1],
        ["i", 0, 2**62],
        ["i", 2**63, 1],
        ["i", 0, 1.0],
        ["i", True, 1],
        ["i", None, None],
        ["f", 0, 3],
        ["b", 0, 3],
        ["x", 0, 1],
        [None, 0, 1],
        [["i"], 0, 1],
        ["i", 0],
        ["i", 0, 1, 2],
        [],
        {},
        "i03",
        5,
        None,
    ],
    ids=str,
)
def test_array_references_that_lie(reference: object) -> None:
    codec = message_codec(max_bytes=LIMIT)
    header, _ = codec.encode(a_chunk())
    body = msgspec.msgpack.decode(header[3:])
    chunk = body["chunks"][0]
    chunk["token_ids"], chunk["logprobs"] = ["i", 0, 3], ["f", 0, 3]
    assert isinstance(codec.decode([MAGIC + msgspec.msgpack.encode(body), bytes(12)]), Chunks)
    chunk["token_ids"] = reference
    assert "malformed" in rejected(MAGIC + msgspec.msgpack.encode(body), bytes(12))


@given(st.lists(st.binary(max_size=40), max_size=3))
@settings(max_examples=300, deadline=None)
def test_random_frames_raise_nothing_else(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        message_codec(max_bytes=LIMIT).decode(frames)


@given(st.binary(max_size=60), st.binary(max_size=32))
@settings(max_examples=500, deadline=None)
def test_random_bodies_raise_nothing_else(body: bytes, raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        message_codec(max_bytes=LIMIT).decode([MAGIC + body, raw])


SAMPLES: list[Message] = [
    a_chunk(),
    Hello(role="generator", name="generator-0", pid=1, host="here"),
    GeneratorReport(
        live=1,
        version=2,
        tokens=3,
        discarded_tokens=0,
        pending_tokens=0,
        prefill_tokens=0,
        preempted=0,
        idle_s=0,
        pause_s=0,
        busy_s=1,
    ),
    ScoreRequest(
        items=[
            ScoreItem(
                trajectory_id=1, prompt="1+1", text="2", answer="2", finished=True, num_tokens=1
            )
        ]
    ),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_truncated_message_is_none(message: Message) -> None:
    header, raw = message_codec(max_bytes=LIMIT).encode(message)
    for length in range(len(header)):
        rejected(header[:length], raw)
    if raw:
        for length in range(len(raw)):
            rejected(header, raw[:length])


PLACES = st.floats(0, 1, exclude_max=True)


@given(
    st.sampled_from(SAMPLES),
    st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4
    ),
)
@settings(max_examples=500, deadline=None)
def test_a_message_with_flipped_bytes_is_another_or_none(
    message: Message, flips: list[tuple[float, int]]
) -> None:
    codec = message_codec(max_bytes=LIMIT)
    header, raw = codec.encode(message)
    damaged = bytearray(header)
    for place, byte in flips:
        damaged[int(place * len(damaged))] = byte
    with contextlib.suppress(ProtocolError):
        assert isinstance(codec.decode([bytes(damaged), raw]), Message)
    assert same(codec.decode([header, raw]), message)


def test_parts_are_about_as_large_as_asked_for() -> None:
    (chunk,) = a_chunk().chunks
    one = len(message_codec(max_bytes=LIMIT).encode(a_chunk())[0])
    assert [len(part) for part in in_parts([chunk] * 5, 2 * one)] == [2, 2, 1]
    assert [len(part) for part in in_parts([chunk] * 2, 1)] == [1, 1]
    assert list(in_parts([], 1)) == []
