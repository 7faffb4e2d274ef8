"""Credit that ends with a turn: golden numbers, and a slow twin over random episodes."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from headrace.config.sections.algorithm import AlgorithmConfig
from headrace.protocol.messages.batches import BatchSequence, PolicyWindow, Shard, ValueTrajectory
from headrace.protocol.token_spans import Reward, Span, TurnRun
from learner.algorithms.registry import Algorithm, build_algorithm
from learner.algorithms.segment_advantages import window_advantages
from learner.algorithms.value_targets import monte_carlo_returns
from learner.batching.batch import loss_counts, policy_batch, value_batch
from learner.device import RankContext
from tests.learner.test_golden import Meeting, ThreadPlace

CPU = torch.device("cpu")
PLACE = RankContext(device=CPU, dtype=torch.float64)
INSERTED = 2
"""Tokens between two turns."""
VALUES = [0.4, 0.5, 0.6, 0.7, 0.5, 0.8]
REWARDS = [0.0, 1.0, 2.0]


def algorithm(boundary: str = "copy", gamma: float = 1.0, lam: float = 1.0) -> Algorithm:
    config = {
        "advantages": {
            "kind": "egae", "boundary": boundary, "gae_lambda_policy": lam, "gamma": gamma,
            "whiten": False, "clamp": None,
        },
        "value": {},
    }  # fmt: skip
    return build_algorithm(AlgorithmConfig.model_validate(config), window=100)


class Episode:
    """Turns of some sampled tokens each, a stretch of inserted ones behind each but the last."""

    def __init__(self, sizes: list[int], rewards: list[float]) -> None:
        starts = np.cumsum([0, *(size + INSERTED for size in sizes)])[:-1].tolist()
        self.runs = [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        self.length = self.runs[-1][1]
        self.rewards = [Reward(r, end - 1) for r, (_, end) in zip(rewards, self.runs, strict=True)]
        self.places = [p for start, end in self.runs for p in range(start, end)]

    def shard(self, window: int, *, by_turn: bool) -> Shard:
        """Windows of so many sampled tokens; the value model has all."""
        ends = [self.places[i] + 1 for i in range(window - 1, len(self.places) - 1, window)]
        borders = [0, *ends, self.length]
        sequence = BatchSequence(
            trajectory_id=0, group_id=0, token_ids=np.arange(3 + self.length, dtype=np.int32),
            opening=3, sampled=self.runs,
        )  # fmt: skip
        return Shard(
            sequences=[sequence],
            windows=[self.window(a, b, by_turn=by_turn) for a, b in pairwise(borders)],
            values=[
                ValueTrajectory(
                    trajectory_id=0, sequence=0, length=len(self.places), rewards=self.rewards,
                    logprobs=np.zeros(0, np.float32),
                    turns=[TurnRun(*run, True) for run in self.runs] if by_turn else [],
                )
            ],
        )  # fmt: skip

    def window(self, start: int, end: int, *, by_turn: bool) -> PolicyWindow:
        turns = [
            TurnRun(first, min(last, end), last <= end)
            for first, last in self.runs
            if first < end and last > start
        ]
        spans = [
            Span(0, max(first, start), min(last, end))
            for first, last in self.runs
            if max(first, start) < min(last, end)
        ]
        size = end - start
        return PolicyWindow(
            window_id=start, trajectory_id=0, sequence=0, start=start, end=end,
            length=sum(place < end for place in self.places),
            logprobs=np.full(size, -1.0, np.float32), loss_weights=np.ones(size, np.float32),
            spans=spans, rewards=[r for r in self.rewards if start <= r.position < end],
            finished=end == self.length, turns=turns if by_turn else [],
        )  # fmt: skip


def advantages(
    episode: Episode, values: list[float], window: int, made: Algorithm, *, by_turn: bool,
    at_cut: float = 0.0,
) -> list[float]:  # fmt: skip
    shard = episode.shard(window, by_turn=by_turn)
    half = policy_batch(
        shard, version=0, lambdas=made.lambdas, shape=made.shape_rewards, kl_coef=0.0, device=CPU
    )
    found = window_advantages(
        made, PLACE, half,
        values=torch.tensor(values, dtype=torch.float64),
        at_cuts=torch.full((len(shard.windows),), at_cut, dtype=torch.float64),
        penalty=torch.zeros(len(values), dtype=torch.float64),
    )  # fmt: skip
    return [float(x) for x in found.raw]


def test_windows_of_several_turns_have_one_lambda_and_tokens_one_number() -> None:
    made, shard = algorithm(), Episode([2, 2, 2], REWARDS).shard(4, by_turn=True)
    half = policy_batch(
        shard, version=0, lambdas=made.lambdas, shape=made.shape_rewards, kl_coef=0.0, device=CPU
    )
    assert half.windows_of.tolist() == [0, 0, 1]
    assert half.window_lams() == [1.0, 1.0]
    whole = value_batch(shard, shape=made.shape_rewards, kl_coef=0.0, device=CPU)
    assert whole.numbers.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("window", "by_turn", "boundary", "gamma", "lam", "expected"),
    [
        (6, True, "copy", 1.0, 1.0, [-0.4, -0.5, 0.4, 0.3, 1.5, 1.2]),
        (3, True, "copy", 1.0, 1.0, [-0.4, -0.5, 0.0, 0.3, 1.5, 1.2]),
        (3, True, "bootstrap", 1.0, 1.0, [-0.4, -0.5, 0.1, 0.3, 1.5, 1.2]),
        (3, True, "terminal", 1.0, 1.0, [-0.4, -0.5, -0.6, 0.3, 1.5, 1.2]),
        (3, False, "copy", 1.0, 1.0, [0.2, 0.1, 0.0, 2.3, 1.5, 1.2]),
        (4, True, "copy", 1.0, 1.0, [-0.4, -0.5, 0.4, 0.3, 1.5, 1.2]),
        (4, False, "copy", 1.0, 1.0, [1.3, 1.2, 1.1, 1.0, 1.5, 1.2]),
        (3, True, "copy", 0.9, 0.8, [-0.31, -0.5, -0.06, 0.3, 1.084, 1.2]),
    ],
)
def test_golden_numbers(
    window: int, by_turn: bool, boundary: str, gamma: float, lam: float, expected: list[float]
) -> None:
    """Three turns of two tokens that earn 0, 1 and 2, whole and cut."""
    found = advantages(
        Episode([2, 2, 2], REWARDS), VALUES, window, algorithm(boundary, gamma, lam),
        by_turn=by_turn, at_cut=0.7,
    )  # fmt: skip
    assert found == pytest.approx(expected, abs=1e-7)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(0, 10**6),
    st.sampled_from(["copy", "bootstrap", "terminal"]),
    st.booleans(),
)
def test_a_slow_twin(
    sizes: list[int], window: int, seed: int, boundary: str, by_turn: bool
) -> None:
    """Token by token from the end of each window: what follows a turn's last token is 0 where
    credit ends with the turn, else what the next sampled token of the window is worth."""
    rng = np.random.default_rng(seed)
    gamma, lam, at_cut = 0.9, 0.8, float(rng.normal())
    values = rng.normal(size=sum(sizes)).tolist()
    episode = Episode(sizes, rng.normal(size=len(sizes)).round(3).tolist())
    made = algorithm(boundary, gamma, lam)
    found = advantages(episode, values, window, made, by_turn=by_turn, at_cut=at_cut)
    paid = {r.position: np.float32(r.value) for r in episode.rewards}
    ends = {end - 1 for _, end in episode.runs}
    expected = [0.0] * len(values)
    for i in reversed(range(len(values))):
        place, v = episode.places[i], values[i]
        last_of_window = (i + 1) % window == 0 or i + 1 == len(values)
        over = i + 1 == len(values) or (by_turn and place in ends)
        if over:
            after, carried = 0.0, 0.0
        elif last_of_window:
            after, carried = {"copy": v, "bootstrap": at_cut, "terminal": 0.0}[boundary], 0.0
        else:
            after, carried = values[i + 1], expected[i + 1]
        delta = float(paid.get(place, 0.0)) + gamma * after - v
        expected[i] = delta + gamma * lam * carried
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_targets_and_counts_are_those_of_turns() -> None:
    episode, made = Episode([2, 3, 1], REWARDS), algorithm()
    for by_turn, samples, returns in (
        (True, (4, 3), [0, 0, 1, 1, 1, 2]),
        (False, (2, 1), [3, 3, 3, 3, 3, 2]),
    ):
        shard = episode.shard(4, by_turn=by_turn)
        shape = made.shape_rewards
        half = policy_batch(
            shard, version=0, lambdas=made.lambdas, shape=shape, kl_coef=0.0, device=CPU
        )
        finished = value_batch(shard, shape=shape, kl_coef=0.0, device=CPU)
        totals = loss_counts(half, finished, PLACE)
        assert (totals.policy_tokens, totals.value_tokens) == (6, 6)
        assert (totals.policy_samples, totals.value_samples) == samples
        found = monte_carlo_returns(finished.rewards, finished.segments, gamma=1.0).targets
        assert found.tolist() == returns
        assert finished.answers == [0, 6]
    assert half.segments.length_so_far.tolist() == [4, 6]
    by_turns = policy_batch(
        episode.shard(4, by_turn=True), version=0, lambdas=made.lambdas, shape=shape,
        kl_coef=0.0, device=CPU,
    )  # fmt: skip
    assert by_turns.segments.length_so_far.tolist() == [2, 2, 3, 1]
    assert by_turns.segments.finished.tolist() == [True, False, True, True]
    assert by_turns.windows_of.tolist() == [0, 0, 1, 1]


BY_ACT = {
    "advantages": {
        "kind": "egae", "gae_lambda_policy": 1.0, "clamp": None, "whiten_by_act": True
    },
    "value": {},
}  # fmt: skip


def test_each_act_is_whitened_by_itself() -> None:
    """Attempt and revision are one act, the verdict is another: numbers of ours, by n - 1."""
    made = build_algorithm(AlgorithmConfig.model_validate(BY_ACT), window=100)
    shard = Episode([2, 2, 2], REWARDS).shard(6, by_turn=True)
    (window,) = shard.windows
    acts = [structs.replace(turn, act=i % 2) for i, turn in enumerate(window.turns)]
    for flat in (False, True):
        values = [*VALUES[:2], 0.5, 0.5, *VALUES[4:]] if flat else VALUES
        half = policy_batch(
            structs.replace(shard, windows=[structs.replace(window, turns=acts)]),
            version=0, lambdas=made.lambdas, shape=made.shape_rewards, kl_coef=0.0, device=CPU,
        )  # fmt: skip
        found = window_advantages(
            made, PLACE, half, values=torch.tensor(values, dtype=torch.float64), at_cuts=None,
            penalty=torch.zeros(6, dtype=torch.float64),
        ).advantages.tolist()  # fmt: skip
        verdicts = [0.0, 0.0] if flat else [0.7071, -0.7071]
        expected = [-0.8117, -0.9072, *verdicts, 1.0027, 0.7162]
        assert found == pytest.approx(expected, abs=1e-4)


def test_an_act_is_whitened_over_all_ranks() -> None:
    """One rank has verdicts alone, the other one answers and a verdict."""
    made = build_algorithm(AlgorithmConfig.model_validate(BY_ACT), window=100)
    episodes = [Episode([2, 3], [1.0, 0.5]), Episode([4], [2.0])]
    acts = [[0, 1], [1]]
    halves = []
    for episode, numbers in zip(episodes, acts, strict=True):
        shard = episode.shard(100, by_turn=True)
        (window,) = shard.windows
        turns = [structs.replace(t, act=a) for t, a in zip(window.turns, numbers, strict=True)]
        halves.append(
            policy_batch(
                structs.replace(shard, windows=[structs.replace(window, turns=turns)]),
                version=0,
                lambdas=made.lambdas,
                shape=made.shape_rewards,
                kl_coef=0.0,
                device=CPU,
            )
        )
    values = [torch.tensor(v, dtype=torch.float64) for v in ([0.1, 0.3, 0.2, 0.6, 0.4], [0.5] * 4)]
    meeting = Meeting(2)

    def rank_of(rank: int) -> list[float]:
        place = ThreadPlace(CPU, rank=rank, world=2, dtype=torch.float64, meeting=meeting)
        found = window_advantages(
            made, place, halves[rank], values=values[rank], at_cuts=None,
            penalty=torch.zeros_like(values[rank]),
        )  # fmt: skip
        return [float(x) for x in found.advantages]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(rank_of, range(2)))
    raw = [1 - 0.1, 1 - 0.3, 0.5 - 0.2, 0.5 - 0.6, 0.5 - 0.4, *[1.5] * 4]
    answers, verdicts = np.array(raw[:2]), np.array(raw[2:])
    expected = [(x - x.mean()) / x.std(ddof=1) for x in (answers, verdicts)]
    assert [*found[0], *found[1]] == pytest.approx([*expected[0], *expected[1]], abs=1e-5)
