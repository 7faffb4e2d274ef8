"""The size of a part is known before it is made: no estimate is below the wire's own."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.messages.batches import (
    PART_BYTES,
    BatchSequence,
    GroupScores,
    PolicyWindow,
    Shard,
    ValueTrajectory,
    longest_part_bytes,
    part_bytes,
)
from headrace.protocol.messages.control import BatchPart
from headrace.protocol.token_spans import Coefficient, Mark, Reward, Span, TurnRun
from headrace.protocol.transport.codec import message_codec

INDEX = st.integers(0, 2**31 - 1)
NUMBER = st.integers(0, 2**62)
VALUE = st.floats(width=32, allow_nan=False)
RUN = st.tuples(INDEX, INDEX)
SIZE = st.integers(0, 40)


def several(kind: st.SearchStrategy[object]) -> st.SearchStrategy[list[object]]:
    return st.lists(kind, max_size=12)


FLOATS = SIZE.map(lambda n: np.zeros(n, np.float32))
IDS = SIZE.map(lambda n: np.zeros(n, np.int32))
REWARDS = several(st.builds(Reward, VALUE, INDEX))
COEFFICIENTS = several(st.builds(Coefficient, st.text(max_size=40), VALUE, INDEX, INDEX))
SEQUENCES = st.builds(
    BatchSequence, trajectory_id=NUMBER, group_id=NUMBER, token_ids=IDS, opening=INDEX,
    sampled=several(RUN), aside=st.none() | IDS,
)  # fmt: skip
TURNS = several(st.builds(TurnRun, INDEX, INDEX, st.booleans(), st.integers(0, 3)))
WINDOWS = st.builds(
    PolicyWindow, window_id=NUMBER, trajectory_id=NUMBER, sequence=INDEX, start=INDEX, end=INDEX,
    length=INDEX, logprobs=FLOATS, loss_weights=FLOATS,
    spans=several(st.builds(Span, NUMBER, INDEX, INDEX)), rewards=REWARDS,
    coefficients=COEFFICIENTS, marks=several(st.builds(Mark, st.just("hot"), INDEX, INDEX)),
    finished=st.booleans(), correct=st.booleans(), turns=TURNS,
)  # fmt: skip
VALUES = st.builds(
    ValueTrajectory, trajectory_id=NUMBER, sequence=INDEX, length=INDEX, rewards=REWARDS,
    logprobs=FLOATS, coefficients=COEFFICIENTS, turns=TURNS,
)  # fmt: skip
GROUPS = st.builds(
    GroupScores, group_id=NUMBER, trajectory_ids=several(NUMBER), scores=FLOATS, lengths=IDS
)


def bytes_on_the_wire(shard: Shard) -> int:
    part = BatchPart(batch_id=2**62, rank=2**31, index=2**31, shard=shard)
    return sum(map(len, message_codec(max_bytes=1 << 40).encode(part)))


@settings(max_examples=100, deadline=None)
@given(several(SEQUENCES), several(WINDOWS), several(VALUES), several(GROUPS))
def test_no_part_is_larger_than_its_items(
    sequences: list[BatchSequence],
    windows: list[PolicyWindow],
    values: list[ValueTrajectory],
    groups: list[GroupScores],
) -> None:
    shard = Shard(sequences=sequences, windows=windows, values=values, groups=groups)
    items: list[BatchSequence | PolicyWindow | ValueTrajectory | GroupScores]
    items = [*sequences, *windows, *values, *groups]
    estimate = PART_BYTES + sum(map(part_bytes, items))
    assert bytes_on_the_wire(shard) <= estimate


def test_the_estimate_of_a_long_answer_is_close() -> None:
    """What is not in arrays adds little where there are many tokens."""
    length = 8192
    sequence = BatchSequence(
        trajectory_id=1, group_id=1, token_ids=np.zeros(length + 300, np.int32), opening=300,
        sampled=[(0, length)],
    )  # fmt: skip
    window = PolicyWindow(
        window_id=1, trajectory_id=1, sequence=0, start=0, end=length, length=length,
        logprobs=np.zeros(length, np.float32), loss_weights=np.zeros(length, np.float32),
        spans=[Span(1, 0, length)],
    )  # fmt: skip
    shard = Shard(sequences=[sequence], windows=[window], values=[])
    found = bytes_on_the_wire(shard)
    estimate = PART_BYTES + part_bytes(sequence) + part_bytes(window)
    assert found <= estimate <= 1.02 * found
    most = longest_part_bytes(opening=300, length=length, window=length, members=8)
    assert estimate <= most <= 250 * length
