"""The loss mask of a window by what became of its answer: only a cut has a boundary."""

from typing import Any, Literal

import numpy as np
import pytest

from coordinator.training.batches import PreparedBatch
from coordinator.training.loss_masks import mask_window
from headrace.protocol.records.record_types import ChunkArrived, ClosedWindow, MaskedRun
from headrace.protocol.token_spans import EnvironmentStep, Mark, Piece, Span, Streams, Weight
from headrace.trajectory.trajectories import Trajectory
from headrace.trajectory.windows import Window
from tests.coordinator.test_turns import rules
from tests.coordinator.world import World, counts, make_config, policy_windows

BOUNDARY = 2


def stream() -> tuple[World, Trajectory]:
    """Windows of 4 tokens, batches of one, an answer of at most 12 tokens under way."""
    world = World(
        make_config(
            algorithm={"advantages": {"kind": "egae", "boundary_mask": BOUNDARY}, "value": {}},
            schedule={"mode": "streaming", "window": 4, "batch_windows": 1, "max_staleness": 8},
        )
    )
    (trajectory, *_) = world.fill(1)
    return world, trajectory


def masks(prepared: PreparedBatch | None) -> list[list[float]]:
    assert prepared is not None
    return [window.loss_weights.tolist() for window in policy_windows(prepared)]


def test_a_cut_window_loses_its_last_tokens_and_the_answers_end_none() -> None:
    world, trajectory = stream()
    world.chunk(trajectory, 4)
    cut = world.take()
    assert masks(cut) == [[1, 1, 0, 0]]
    assert cut is not None
    assert [counts(w.masked) for w in cut.taken.windows] == [{"boundary_mask": BOUNDARY}]
    world.commit()
    world.chunk(trajectory, 3, "stop")
    world.reward(trajectory)
    end = world.take()
    assert masks(end) == [[1, 1, 1]]
    assert end is not None
    assert [w.masked for w in end.taken.windows] == [[]]


@pytest.mark.parametrize(
    ("tokens", "finish"),
    [(1, "stop"), (BOUNDARY, "stop"), (3, "stop"), (4, "stop"), (8, "stop"), (12, "length")],
)
def test_the_window_in_which_an_answer_ends_is_trained_whole(
    tokens: int, finish: Literal["stop", "length"]
) -> None:
    """However short it is, full to the border too, and at the length limit."""
    world, trajectory = stream()
    taken: list[list[float]] = []
    for start in range(0, tokens - 4, 4):
        world.chunk(trajectory, 4)
        assert trajectory.length == start + 4
        taken += masks(world.take())
        world.commit()
    rest = tokens - trajectory.length
    world.chunk(trajectory, rest, finish)
    world.reward(trajectory)
    assert taken == [[1, 1, 0, 0]] * len(taken)
    assert masks(world.take()) == [[1] * rest]


def masked(trajectory: Trajectory, **changes: Any) -> list[MaskedRun]:
    """Of its last window, whose tokens are all fresh."""
    window = trajectory.windows[-1]
    ages = np.zeros(window.end - window.start, np.int64)
    chosen = rules(**{"boundary_mask": 0, "skips_truncated": False, **changes})
    return mask_window(trajectory, window, ages, chosen).runs


@pytest.mark.parametrize(("finish", "runs"), [("stop", 0), ("length", 1)])
def test_the_overlong_filter_is_for_truncated_answers(
    finish: Literal["stop", "length"], runs: int
) -> None:
    world, trajectory = stream()
    for _ in range(3):
        world.chunk(trajectory, 4, finish if trajectory.length == 8 else None)
    assert [run.reason for run in masked(trajectory, skips_truncated=True)] == ["overlong"] * runs


def test_a_token_whose_weight_is_nothing_is_masked_and_said_to_be() -> None:
    world, trajectory = stream()
    world.chunk(trajectory, 4)
    trajectory.weights.append(Weight(0.0, 1, 3))
    trajectory.weights.append(Weight(0.5, 3, 4))
    assert masked(trajectory) == [MaskedRun("zero_weight", 1, 3, 2)]


@pytest.mark.parametrize(
    ("end", "turns", "by_turn", "expected"),
    [
        (6, 2, False, [(2, 3), (5, 6)]),
        (6, 2, True, [(5, 6)]),
        (7, 2, True, [(5, 7)]),
        (3, 2, True, []),
        (3, 1, True, [(1, 3)]),
    ],
)
def test_a_border_is_that_of_a_turn_that_goes_on(
    end: int, turns: int, by_turn: bool, expected: list[tuple[int, int]]
) -> None:
    """Tokens 0 to 2 are a turn, 3 and 4 are inserted, 5 to 7 are the next one."""
    trajectory = Trajectory(0, 0, "train", np.array([1], np.int32), 0)
    step = EnvironmentStep(turn=0, digest="")
    for start, size, streams in (
        (0, 0, Streams(step=step)),
        (0, 3, None),
        (3, 2, Streams(pieces=[Piece("environment", "tool", 1, 3, 5)], step=step)),
        (5, 3, None),
    )[: 2 * turns]:
        trajectory.append(
            ChunkArrived(
                at=0.0, trajectory_id=0, lease_id=0, chunk_index=trajectory.next_chunk,
                generator="g", start=start, token_ids=np.zeros(size, np.int32),
                logprobs=np.full(size, -1.0, np.float32),
                spans=[Span(0, start, start + size)] if streams is None else [], streams=streams,
            )
        )  # fmt: skip
    tokens = end - 2 * (end > 3)
    closed = ClosedWindow(
        window_id=0, trajectory_id=0, index=0, start=0, end=end, tokens=tokens,
        min_version=0, max_version=0, final=False,
    )  # fmt: skip
    trajectory.windows.append(Window.closed(closed))
    runs = masked(trajectory, boundary_mask=2, by_turn=by_turn)
    assert [(run.start, run.end) for run in runs] == expected


@pytest.mark.parametrize(
    ("correction", "weights", "left_out"),
    [
        ("mask", [0.0, 1.0, 1.0, 1.0], {"zero_weight": 1}),
        ("ratio", [1.0] * 4, {}),
        ("recompute", [1.0] * 4, {}),
    ],
)
def test_a_hot_token_trains_unless_its_correction_is_the_mask(
    correction: str, weights: list[float], left_out: dict[str, int]
) -> None:
    world = World(
        make_config(
            generator={"fire": {"correction": correction}},
            schedule={"mode": "streaming", "window": 4, "batch_windows": 1, "max_staleness": 8},
        )
    )
    (trajectory, *_) = world.fill(1)
    world.chunk(trajectory, 4, streams=Streams(marks=[Mark("hot", 0, 1)]))
    prepared = world.take()
    assert masks(prepared) == [weights]
    assert prepared is not None
    assert [counts(window.masked) for window in prepared.taken.windows] == [left_out]
