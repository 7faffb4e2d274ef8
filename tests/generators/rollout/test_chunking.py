"""Chunks are the stream: nothing lost, no border crossed, spans exact."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from generators.engine import TokenDelta
from generators.rollout.chunking import ChunkCutter
from headrace.protocol.messages.control import Lease, TrajectoryChunk
from headrace.protocol.token_spans import Mark, Span


def marks_of(chunk: TrajectoryChunk) -> list[Mark]:
    """Its marks."""
    return chunk.streams.marks if chunk.streams else []


def make_lease(**changes: object) -> Lease:
    fields: dict[str, object] = {
        "lease_id": 7,
        "trajectory_id": 3,
        "purpose": "train",
        "prompt_ids": np.array([5, 6], dtype=np.int32),
        "prefix_ids": np.array([], dtype=np.int32),
        "seed": 1,
        "max_total": 1000,
        "stop_at": 1000,
        "window": 8,
        "next_chunk": 0,
        "temperature": 1.0,
        "top_p": 1.0,
    }
    return Lease(**(fields | changes))  # type: ignore[arg-type]


def prefix(length: int) -> np.ndarray:
    return np.arange(length, dtype=np.int32)


@st.composite
def streams(draw: st.DrawFn) -> tuple[Lease, int, list[TokenDelta]]:
    """A lease, chunk_tokens, and deltas with versions that only grow."""
    window = draw(st.integers(1, 20))
    start = draw(st.integers(0, 30))
    lease = make_lease(window=window, prefix_ids=prefix(start), next_chunk=draw(st.integers(0, 5)))
    sizes = draw(st.lists(st.integers(0, 9), max_size=30))
    deltas, version, token = [], 0, 0
    hot = draw(st.booleans())
    for size in sizes:
        version += draw(st.integers(0, 1))
        ids = list(range(token, token + size))
        deltas.append(
            TokenDelta(ids, [-float(i) for i in ids], version, hot=hot and token == 0 and size > 0)
        )
        token += size
    return lease, draw(st.integers(1, 12)), deltas


def check_pieces(lease: Lease, chunk_tokens: int, chunks: list[TrajectoryChunk]) -> None:
    position = len(lease.prefix_ids)
    for index, chunk in enumerate(chunks):
        end = chunk.start + len(chunk.token_ids)
        assert chunk.chunk_index == lease.next_chunk + index
        assert chunk.start == position
        assert len(chunk.token_ids) == len(chunk.logprobs) <= chunk_tokens
        if end > chunk.start:
            assert chunk.start // lease.window == (end - 1) // lease.window
        covered = [p for span in chunk.spans for p in range(span.start, span.end)]
        assert covered == list(range(chunk.start, end))
        assert all(span.start < span.end for span in chunk.spans)
        assert all(chunk.start <= mark.start < mark.end <= end for mark in marks_of(chunk))
        assert (chunk.finish is not None) == (index == len(chunks) - 1)
        position = end


def sent(cutter: ChunkCutter, deltas: list[TokenDelta]) -> list[TrajectoryChunk]:
    """Its chunks where each window is acknowledged at once."""
    chunks: list[TrajectoryChunk] = []
    for delta in deltas:
        chunks += cutter.add(delta)
        while cutter.awaited is not None:
            chunks += cutter.go_on()
    return chunks


Token = tuple[int, float, int, bool]
"""Token id, logprob, version, whether it is hot."""


def tokens_of(chunks: list[TrajectoryChunk]) -> list[Token]:
    out: list[Token] = []
    for chunk in chunks:
        versions = [span.version for span in chunk.spans for _ in range(span.start, span.end)]
        marked = {place for mark in marks_of(chunk) for place in range(mark.start, mark.end)}
        hot = [chunk.start + i in marked for i in range(len(chunk.token_ids))]
        out += zip(chunk.token_ids.tolist(), chunk.logprobs.tolist(), versions, hot, strict=True)
    return out


def stream_of(deltas: list[TokenDelta]) -> list[Token]:
    return [
        (token, logprob, delta.version, delta.hot and i == 0)
        for delta in deltas
        for i, (token, logprob) in enumerate(zip(delta.token_ids, delta.logprobs, strict=True))
    ]


@given(streams(), st.sampled_from(["stop", "length", "aborted"]))
def test_chunks_concatenated_are_the_stream(
    stream: tuple[Lease, int, list[TokenDelta]], finish: str
) -> None:
    lease, chunk_tokens, deltas = stream
    last = TokenDelta([], [], deltas[-1].version if deltas else 0, finish)  # type: ignore[arg-type]
    cutter = ChunkCutter(lease, chunk_tokens)
    chunks = sent(cutter, [*deltas, last])
    check_pieces(lease, chunk_tokens, chunks)
    assert tokens_of(chunks) == stream_of(deltas)
    assert cutter.ended


@given(streams(), st.integers(-1, 120))
def test_hold_keeps_what_is_before_the_border_or_was_sent(
    stream: tuple[Lease, int, list[TokenDelta]], at: int
) -> None:
    lease, chunk_tokens, deltas = stream
    cutter = ChunkCutter(lease, chunk_tokens)
    chunks = sent(cutter, deltas)
    sent_end = cutter.position - (cutter.position - len(lease.prefix_ids) - len(tokens_of(chunks)))
    everything = stream_of(deltas)
    (last,), lost = cutter.hold(at)
    check_pieces(lease, chunk_tokens, [*chunks, last])
    kept = tokens_of([*chunks, last])
    assert kept == everything[: len(kept)]
    assert len(kept) + lost == len(everything)
    end = len(lease.prefix_ids) + len(kept)
    full = len(lease.prefix_ids) + len(everything)
    assert end == (full if at < 0 else min(full, max(at, sent_end)))
    assert last.finish == "held"


def test_cuts_fall_on_window_borders_and_chunk_sizes() -> None:
    cutter = ChunkCutter(make_lease(window=8, prefix_ids=prefix(5)), 4)
    chunks = sent(cutter, [TokenDelta(list(range(10)), [0.0] * 10, 3, "stop")])
    assert [(c.start, len(c.token_ids), c.finish) for c in chunks] == [
        (5, 3, None),
        (8, 4, None),
        (12, 3, "stop"),
    ]


def test_borders_are_counted_from_the_next_one_of_the_lease() -> None:
    """Inserted tokens have moved it: five are known, and the window under way ends at seven."""
    cutter = ChunkCutter(make_lease(window=4, prefix_ids=prefix(5), next_border=7), 256)
    chunks = sent(cutter, [TokenDelta(list(range(8)), [0.0] * 8, 3, "stop")])
    assert [(c.start, len(c.token_ids)) for c in chunks] == [(5, 2), (7, 4), (11, 2)]


def test_what_ends_behind_a_border_waits_and_is_thrown_away_where_that_is_held() -> None:
    """Like what goes on: where a hold spared ends alone, answers would be too short. A hold that
    keeps all keeps the end, too, and its chunks cross no border."""
    ends: dict[int, object] = {}
    for at in (4, -1):
        cutter = ChunkCutter(make_lease(window=4), 256)
        (first,) = cutter.add(TokenDelta(list(range(10)), [0.0] * 10, 0, "stop"))
        assert (len(first.token_ids), cutter.awaited) == (4, (3, 0))
        chunks, lost = cutter.hold(at)
        ends[at] = [(c.start, len(c.token_ids), c.finish) for c in chunks], lost
    assert ends == {4: ([(4, 0, "held")], 6), -1: ([(4, 4, None), (8, 2, "stop")], 0)}


def test_a_version_change_inside_a_chunk_makes_two_spans() -> None:
    cutter = ChunkCutter(make_lease(window=100), 6)
    assert cutter.add(TokenDelta([1, 2], [0.0, 0.0], 4)) == []
    assert cutter.add(TokenDelta([3, 4], [0.0, 0.0], 5)) == []
    first, second = cutter.add(TokenDelta([5, 6, 7], [0.0] * 3, 5, "length"))
    assert first.spans == [Span(4, 0, 2), Span(5, 2, 6)]
    assert second.spans == [Span(5, 6, 7)]


def test_the_hot_token_is_marked_in_its_chunk_and_in_no_other() -> None:
    cutter = ChunkCutter(make_lease(window=100), 2)
    cutter.add(TokenDelta([1], [0.0], 4, hot=True))
    first, second = cutter.add(TokenDelta([2, 3, 4], [0.0] * 3, 4, "length"))
    assert marks_of(first) == [Mark("hot", 0, 1)]
    assert marks_of(second) == []


def test_a_hold_that_throws_the_hot_token_away_takes_its_mark_too() -> None:
    cutter = ChunkCutter(make_lease(), 256)
    cutter.add(TokenDelta([1, 2], [0.0, 0.0], 4, hot=True))
    (chunk,), lost = cutter.hold(0)
    assert (len(chunk.token_ids), marks_of(chunk), lost) == (0, [], 2)


def test_length_at_the_stop_is_a_window_unless_the_response_is_full() -> None:
    def finish_of(**changes: int) -> str | None:
        cutter = ChunkCutter(make_lease(window=4, prefix_ids=prefix(4), **changes), 256)
        return cutter.add(TokenDelta([1, 2, 3, 4], [0.0] * 4, 0, "length"))[-1].finish

    assert finish_of(stop_at=8, max_total=16) == "window"
    assert finish_of(stop_at=8, max_total=8) == "length"
    assert finish_of(stop_at=16, max_total=8) == "length"


def test_a_failure_says_why_and_keeps_the_tokens() -> None:
    cutter = ChunkCutter(make_lease(), 256)
    cutter.add(TokenDelta([1, 2], [0.0, -1.0], 0))
    (chunk,) = cutter.fail("too long")
    assert (chunk.finish, chunk.error, chunk.token_ids.tolist()) == ("failed", "too long", [1, 2])


def test_non_finite_logprobs_are_sent_as_they_are() -> None:
    cutter = ChunkCutter(make_lease(), 256)
    (chunk,) = cutter.add(TokenDelta([1, 2], [float("nan"), float("-inf")], 0, "stop"))
    assert np.isnan(chunk.logprobs[0])
    assert np.isneginf(chunk.logprobs[1])
