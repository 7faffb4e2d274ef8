"""Line ends on tokens."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coordinator.line_rewards.line_ends import LineEnds, LineTokens, pieces_up_to, sampled_index
from headrace.protocol.records.record_types import ChunkArrived
from headrace.protocol.token_spans import Piece, Span, Streams
from headrace.trajectory.trajectories import Trajectory

TOKENS = LineTokens.of(["a", "\n", "b\n\nc", "", " "], 8)
"""A letter, a newline, two newlines inside a token, an end token, a space; others are unknown."""


def trajectory(ids: list[int], status: str = "running", cuts: tuple[int, ...] = ()) -> Trajectory:
    """The tokens in chunks that end at `cuts`."""
    made = Trajectory(0, 0, "train", np.zeros(2, np.int32), 0)
    borders = [0, *(cut for cut in cuts if 0 < cut < len(ids)), len(ids)]
    for index, (start, end) in enumerate(pairwise(borders) if ids else ()):
        made.append(
            ChunkArrived(
                at=0.0, trajectory_id=0, lease_id=0, chunk_index=index, generator="g", start=start,
                token_ids=np.array(ids[start:end], np.int32),
                logprobs=np.zeros(end - start, np.float32),
                spans=[Span(0, start, end)] if end > start else [],
            )
        )  # fmt: skip
    made.status = status  # type: ignore[assignment]
    return made


def test_a_line_ends_at_the_token_with_its_newline_however_many_it_holds() -> None:
    assert LineEnds(TOKENS).read(trajectory([0, 1, 2, 0])) == [1, 2]


def test_the_last_line_counts_once_the_answer_has_ended() -> None:
    """It ends at its last token with a text."""
    for status in ("finished", "truncated"):
        assert LineEnds(TOKENS).read(trajectory([0, 1, 0, 0, 3], status)) == [1, 3]
    assert LineEnds(TOKENS).read(trajectory([0, 1, 3], "finished")) == [1]
    assert LineEnds(TOKENS).read(trajectory([0, 1], "finished")) == [1]
    assert LineEnds(TOKENS).read(trajectory([3], "finished")) == []
    assert LineEnds(TOKENS).read(trajectory([0, 1, 0], "failed")) == [1]


def test_ids_beyond_the_tokenizers_end_no_line() -> None:
    assert LineEnds(TOKENS).read(trajectory([6, 7, 1])) == [2]


@given(st.lists(st.integers(0, 7), min_size=1, max_size=40), st.sets(st.integers(1, 39)))
def test_chunks_make_no_difference(ids: list[int], cuts: set[int]) -> None:
    whole = LineEnds(TOKENS).read(trajectory(ids, "finished"))
    parts, ends = trajectory([]), LineEnds(TOKENS)
    borders = [0, *sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
    for index, (start, end) in enumerate(pairwise(borders)):
        parts.append(
            ChunkArrived(
                at=0.0, trajectory_id=0, lease_id=0, chunk_index=parts.next_chunk, generator="g",
                start=start, token_ids=np.array(ids[start:end], np.int32),
                logprobs=np.zeros(end - start, np.float32), spans=[Span(index, start, end)],
            )
        )  # fmt: skip
        seen = list(ends.read(parts))
        assert seen == [at for at in range(end) if TOKENS.ends[ids[at]]]
    parts.status = "finished"
    assert ends.read(parts) == whole


def test_what_a_tool_inserted_has_no_lines_of_the_policy() -> None:
    """A tool's newline ends nothing, and the index counts sampled tokens alone."""
    made = trajectory([])
    pieces = [
        Piece("policy", "assistant", 0, 0, 2), Piece("tool", "tool", 1, 2, 4),
        Piece("policy", "assistant", 2, 4, 6),
    ]  # fmt: skip
    made.append(
        ChunkArrived(
            at=0.0, trajectory_id=0, lease_id=0, chunk_index=0, generator="g", start=0,
            token_ids=np.array([0, 1, 1, 1, 0, 1], np.int32), logprobs=np.zeros(6, np.float32),
            spans=[Span(0, 0, 2), Span(0, 4, 6)], streams=Streams(pieces=pieces),
        )
    )  # fmt: skip
    assert LineEnds(TOKENS).read(made) == [1, 5]
    assert sampled_index(made, [1, 5]) == [1, 3]


def test_the_tokens_of_lines() -> None:
    ids = np.arange(6, dtype=np.int32)
    parts = pieces_up_to(ids, [2, 4], 1)
    assert [part.tolist() for part in parts] == [[1, 2], [3, 4]]
