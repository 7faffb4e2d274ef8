"""Golden cases through the Updater: rewards and values in, what the loss sees out.

All of it runs in the packed layout, in one micro-batch or many, on one rank or two. Two ranks are
two threads here; processes are compared in test_ranks.py.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from headrace.config.sections.algorithm import AlgorithmConfig
from headrace.config.sections.learner import LearnerConfig, OptimizerConfig
from learner.algorithms.registry import build_algorithm
from learner.batching.shards import merge_shards
from learner.device import RankContext
from learner.updates.update import UpdateOutcome, Updater
from tests.learner import reference
from tests.learner.plain_engine import PlainEngine
from tests.learner.recorded import batch_of
from tests.learner.recorded import cut as cut_up
from tests.learner.tables import Book, TableCritic, TablePolicy

CPU = torch.device("cpu")
G1 = [0.2, 0.3, 0.25, 0.5, 0.7]
G1_ADVANTAGES = [0.693951875, 0.6252125, 0.71075, 0.485, 0.3]
# Micro-batch budget, optimizer steps, ranks.
CUTS = [(1000, 1, 1), (1, 1, 1), (7, 2, 1), (1000, 1, 2), (7, 2, 2)]
cut = pytest.mark.parametrize(("budget", "parts", "ranks"), CUTS)


class Meeting:
    """Where the threads that play ranks add up."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=30)
        self._brought: list[Tensor] = [torch.zeros(())] * ranks

    def gather(self, rank: int, x: Tensor) -> list[Tensor]:
        """What each has brought."""
        self._brought[rank] = x.clone()
        self._barrier.wait()
        found = list(self._brought)
        self._barrier.wait()
        return found


@dataclass(frozen=True)
class ThreadPlace(RankContext):
    """A rank among threads."""

    meeting: Meeting = field(default_factory=lambda: Meeting(1))

    def total(self, x: Tensor) -> Tensor:
        return torch.stack(self.meeting.gather(self.rank, x)).sum(0)

    def largest(self, x: Tensor) -> Tensor:
        return torch.stack(self.meeting.gather(self.rank, x)).amax(0)

    def gathered(self, x: Tensor) -> Tensor:
        return torch.cat(self.meeting.gather(self.rank, x))


def run(
    book: Book, *, budget: int = 1000, parts: int = 1, ranks: int = 1, **algorithm: object
) -> tuple[dict[int, list[float]], list[UpdateOutcome]]:
    """One update; the advantages of each window, and what each rank says."""
    config = AlgorithmConfig.model_validate(algorithm)
    meeting = Meeting(ranks)
    settings = OptimizerConfig(minibatches=parts)
    batch, shards = batch_of(book.shard, ranks=ranks)

    def rank_of(rank: int) -> UpdateOutcome:
        place = ThreadPlace(
            CPU, rank=rank, world=ranks, dtype=torch.float64, budget=budget, meeting=meeting
        )
        return Updater(
            build_algorithm(config, window=1000),
            PlainEngine(TablePolicy(book.logprobs)),
            None if config.value is None else PlainEngine(TableCritic(book.values)),
            LearnerConfig(policy=settings, value=settings),
            place,
        ).run(batch, merge_shards(cut_up(shards[rank], 2)))

    with ThreadPoolExecutor(ranks) as pool:
        outcomes = list(pool.map(rank_of, range(ranks)))
    seen = {d.window_id: d.columns["advantages"].tolist() for o in outcomes for d in o.diagnostics}
    assert sorted(seen) == [w.window_id for w in book.windows]
    return seen, outcomes


def egae(**changes: object) -> dict[str, object]:
    return {"kind": "egae", "whiten": False, "clamp": None, **changes}


def same(found: Sequence[float], expected: Sequence[float]) -> None:
    """Diagnostics are float32."""
    assert found == pytest.approx(expected, rel=3e-7, abs=1e-7)


def g1_to_g3(reward: float = 1.0) -> Book:
    """G1, G2, and both windows of G3, each as it is trained: step k, then step k + 1."""
    book = Book()
    book.add(G1, reward=1.0)
    book.add(G1[:4], v_end=0.7)
    book.add([*G1[:4], 0.6, 0.4, 0.8], start=4, reward=reward)
    return book


@cut
@pytest.mark.parametrize(
    ("boundary", "gamma", "lam", "finished", "at_cut"),
    [
        ("copy", 1.0, 0.95, G1_ADVANTAGES, [0.278125, 0.1875, 0.25, 0.0]),
        ("terminal", 1.0, 0.95, G1_ADVANTAGES, [-0.1505625, -0.26375, -0.225, -0.5]),
        ("bootstrap", 1.0, 0.95, G1_ADVANTAGES, [0.4496, 0.368, 0.44, 0.2]),
        ("copy", 0.9, 0.8, [0.248823808, 0.2483664, 0.44912, 0.346, 0.3],
         [0.1010176, 0.04308, 0.164, -0.05]),
        ("bootstrap", 0.9, 0.8, [0.248823808, 0.2483664, 0.44912, 0.346, 0.3],
         [0.16820224, 0.136392, 0.2936, 0.13]),
    ],
)  # fmt: skip
def test_g1_and_g2(
    budget: int, parts: int, ranks: int, boundary: str, gamma: float, lam: float,
    finished: list[float], at_cut: list[float],
) -> None:  # fmt: skip
    seen, _ = run(
        g1_to_g3(), budget=budget, parts=parts, ranks=ranks, value={},
        advantages=egae(boundary=boundary, gamma=gamma, gae_lambda_policy=lam),
    )  # fmt: skip
    same(seen[0], finished)
    same(seen[1], at_cut)


@cut
@pytest.mark.parametrize(
    ("reward", "second"), [(1.0, [0.3605, 0.59, 0.2]), (-1.0, [-1.4445, -1.31, -1.8])]
)
def test_g3_two_windows(
    budget: int, parts: int, ranks: int, reward: float, second: list[float]
) -> None:
    """Step k: window 1 trains the policy, nothing the critic. Step k + 1: window 2 trains 3 policy
    tokens, and all 7 the critic, towards the reward (twice, so that a cut has something)."""
    cuts = {"budget": budget, "parts": parts, "ranks": ranks}
    book = Book()
    book.add(G1[:4], v_end=0.6)
    seen, outcomes = run(book, **cuts, value={}, advantages=egae())
    same(seen[0], [0.278125, 0.1875, 0.25, 0.0])
    assert outcomes[0].metrics["perf/loss_tokens"] == 4
    assert outcomes[0].metrics["critic/steps"] == 0
    book = Book()
    for _ in range(2):
        book.add([*G1[:4], 0.6, 0.4, 0.8], start=4, reward=reward)
    seen, outcomes = run(book, **cuts, value={}, advantages=egae())
    same(seen[0], second)
    same(seen[1], second)
    errors = [(v - reward) ** 2 / 2 for v in book.values[:7]]
    for outcome in outcomes:
        metrics = outcome.metrics
        assert metrics["perf/loss_tokens"] == 2 * 3
        assert (metrics["critic/returns/min"], metrics["critic/returns/max"]) == (reward, reward)
        assert metrics["critic/vf_loss"] == pytest.approx(sum(errors) / 7)


@cut
def test_g4_the_critics_loss(budget: int, parts: int, ranks: int) -> None:
    """Decoupled lambdas: the actor at 0.95, the critic at 1. Twice, so that a cut has something."""
    book = Book()
    book.add(G1, reward=1.0)
    book.add(G1, reward=1.0)
    _, outcomes = run(
        book, budget=budget, parts=parts, ranks=ranks, advantages=egae(),
        value={"aggregate": "token_mean"},
    )  # fmt: skip
    for outcome in outcomes:
        assert outcome.metrics["critic/vf_loss"] == pytest.approx(0.20325, rel=1e-6)


@cut
def test_g5_length_adaptive_lambda(budget: int, parts: int, ranks: int) -> None:
    book = Book()
    for length in (4, 8):
        book.add([(k + 1) / 10 for k in range(length)], reward=1.0)
    seen, outcomes = run(
        book, budget=budget, parts=parts, ranks=ranks, value={},
        advantages=egae(gae_lambda_policy=0.0, length_adaptive_alpha=0.5),
    )  # fmt: skip
    same(seen[0], [0.25, 0.3, 0.4, 0.6])
    same(
        seen[1],
        [0.3733032227, 0.3644042969, 0.3525390625, 0.33671875, 0.315625, 0.2875, 0.25, 0.2],
    )
    assert {d.window_id: d.lam for o in outcomes for d in o.diagnostics} == {0: 0.5, 1: 0.75}


@cut
@pytest.mark.parametrize(
    ("aggregate", "expected"), [("token_mean", 0.1025), ("sample_mean", -0.3116666667)]
)
def test_g9_token_and_sample_mean(
    budget: int, parts: int, ranks: int, aggregate: str, expected: float
) -> None:
    book = Book()
    book.add([0.0] * 2, reward=1.0, ratios=[1.0, 1.5])
    book.add([0.0] * 6, reward=-0.5, ratios=[1.0, 0.5, 1.1, 1.4, 0.9, 1.0])
    _, outcomes = run(
        book, budget=budget, parts=parts, ranks=ranks, aggregate=aggregate,
        advantages={"kind": "group", "baseline": "none", "scale": "none"},
    )  # fmt: skip
    for outcome in outcomes:
        assert outcome.metrics["actor/pg_loss"] == pytest.approx(expected, rel=1e-6)


@cut
def test_g10_dual_clip(budget: int, parts: int, ranks: int) -> None:
    book = Book()
    book.add([0.0] * 3, reward=-1.0, ratios=[15.0, 1.5, 0.5])
    book.add([0.0], reward=1.0, ratios=[15.0])
    _, outcomes = run(
        book, budget=budget, parts=parts, ranks=ranks,
        advantages={"kind": "group", "baseline": "none", "scale": "none"},
    )  # fmt: skip
    for outcome in outcomes:
        loss = outcome.metrics["actor/pg_loss"]
        assert loss == pytest.approx((10 + 1.5 + 0.8 - 1.28) / 4, rel=1e-6)


@cut
def test_g12_likelihood_of_right_answers(budget: int, parts: int, ranks: int) -> None:
    """A group of one has no advantage: nothing else is in the loss."""
    book = Book()
    for logprobs, reward in (([-0.1, -0.2], 1.0), ([-0.3, -0.4, -0.5], 0.0), ([-1.0], 1.0)):
        book.add([0.0] * len(logprobs), reward=reward, logprobs=logprobs)
    _, outcomes = run(
        book, budget=budget, parts=parts, ranks=ranks, advantages={"kind": "group"},
        penalties={"positive_nll_coef": 0.1},
    )  # fmt: skip
    for outcome in outcomes:
        assert outcome.metrics["actor/pg_loss"] == pytest.approx(0.0433333333, rel=1e-6)


@cut
def test_g13_whitening(budget: int, parts: int, ranks: int) -> None:
    """The cut window alone, its boundary token left out; then among others, where the statistics
    are of the whole batch, whatever the rank holds."""
    cuts = {"budget": budget, "parts": parts, "ranks": ranks}
    book = Book()
    book.add(G1[:4], keep=[1, 1, 1, 0])
    seen, _ = run(book, **cuts, value={}, advantages=egae(whiten=True))
    same(seen[0], [0.8533382843, -1.1003572613, 0.247018977, 0.0])
    book = g1_to_g3()
    book.add(G1[:4], keep=[1, 1, 1, 0])
    seen, _ = run(book, **cuts, value={}, advantages=egae(whiten=True, clamp=1.2))
    raw = [*G1_ADVANTAGES, 0.278125, 0.1875, 0.25, 0.0, 0.3605, 0.59, 0.2, 0.278125, 0.1875, 0.25]
    white = reference.whiten([*raw, 0.0], [True] * 15 + [False], 1e-8)
    expected = [min(max(x, -1.2), 1.2) for x in white]
    assert -1.2 in expected
    same([x for i in range(4) for x in seen[i]], expected)
