"""A value model that is fitted in closed form: what it reads, when it learns, how it is cut."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from transformers import AutoModelForCausalLM

from headrace.config.sections.algorithm import AlgorithmConfig
from headrace.config.sections.learner import LearnerConfig
from headrace.config.sections.model import ModelConfig
from headrace.protocol.messages.batches import Shard
from headrace.protocol.token_spans import Float32
from headrace.trajectory.logprob_statistics import START, before_each, state_after
from learner.algorithms.least_squares import LeastSquaresHead
from learner.algorithms.registry import build_algorithm
from learner.device import RankContext
from learner.models.feature_network import FeatureEngine, FeatureNetwork
from learner.models.forward import PolicyNetwork
from learner.models.loading import load_critic, load_policy
from learner.updates.update import UpdateOutcome, Updater
from tests.learner.plain_engine import PlainEngine
from tests.learner.recorded import batch_of, record, save_tiny_model, with_value_logprobs
from tests.learner.test_golden import Meeting, ThreadPlace

CPU = torch.device("cpu")
DOUBLE = {"dtype": torch.float64, "device": CPU}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return ModelConfig(path=str(save_tiny_model(tmp_path_factory.mktemp("model"))))


def sampled_logprobs(shard: Shard, trajectory: int) -> Float32:
    """Of an answer's sampled tokens, a hot one as certain."""
    windows = [w for w in shard.windows if w.trajectory_id == trajectory]
    logprobs = np.concatenate([w.logprobs for w in windows])
    for mark in (m for w in windows for m in w.marks):
        logprobs[mark.start : mark.end] = 0.0
    runs = shard.sequences[windows[0].sequence].sampled
    return np.concatenate([logprobs[:0], *(logprobs[a:b] for a, b in runs)])


def with_statistics(shard: Shard) -> Shard:
    """What the coordinator adds for such a value model."""
    shard = with_value_logprobs(shard)
    windows = []
    for window in shard.windows:
        own = sampled_logprobs(shard, window.trajectory_id)
        earlier = [n for a, b in shard.sequences[window.sequence].sampled for n in range(a, b)]
        before = sum(position < window.start for position in earlier)
        windows.append(replace(window, confidence=state_after(own[:before])))
    marks = {w.trajectory_id: w.marks for w in reversed(shard.windows)}
    values = [replace(v, marks=marks[v.trajectory_id]) for v in shard.values]
    return replace(shard, windows=windows, values=values)


class Learner:
    """A policy that steps and a critic that is fitted, both in float64."""

    def __init__(
        self, model: ModelConfig, *, place: RankContext | None = None, most: int = 512,
        boundary: str = "copy", layers: int | None = None,
    ) -> None:  # fmt: skip
        frozen = load_critic(model, **DOUBLE, layers=layers)  # type: ignore[arg-type]
        self.critic = FeatureEngine(FeatureNetwork(frozen, most=most), memory=1e12)
        config = {"advantages": {"kind": "egae", "boundary": boundary},
                  "value": {"fit": "least_squares"}}  # fmt: skip
        self.updater = Updater(
            build_algorithm(AlgorithmConfig.model_validate(config), window=16),
            PlainEngine(PolicyNetwork(load_policy(model, **DOUBLE))),  # type: ignore[arg-type]
            self.critic,
            LearnerConfig(),
            place or RankContext(device=CPU, dtype=torch.float64, budget=4096),
        )

    def run(self, shard: Shard, update: int = 1) -> UpdateOutcome:
        sent = batch_of(shard, update=update)
        return self.updater.run(sent.batch, sent.shards[0])


def values_of(outcome: UpdateOutcome) -> dict[int, list[float]]:
    return {d.window_id: d.columns["values"].tolist() for d in outcome.diagnostics}


@pytest.mark.parametrize("turns", [False, True], ids=["answers", "turns"])
def test_values_are_those_of_a_head_on_all_layers_and_logprobs(
    model: ModelConfig, turns: bool
) -> None:
    """Sequence by sequence through transformers alone. An update's own answers come too late for
    its values."""
    first, second = (
        with_statistics(record(seed=s, turns=turns, hot=True, trajectories=40)) for s in (1, 2)
    )
    learner = Learner(model)
    before = values_of(learner.run(first))
    assert not np.nan_to_num(np.concatenate(list(before.values()))).any()
    found = values_of(learner.run(second, update=2))

    plain = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float64)

    @torch.no_grad()
    def features(shard: Shard, trajectory: int) -> torch.Tensor:
        """[sampled tokens, F] the states before an answer's sampled tokens."""
        sequence = next(s for s in shard.sequences if s.trajectory_id == trajectory)
        ids = torch.tensor(sequence.token_ids[None].astype(np.int64))
        states = plain(ids, output_hidden_states=True).hidden_states[1:]
        places = [sequence.opening + p - 1 for a, b in sequence.sampled for p in range(a, b)]
        parts = [x[0, places] / x[0, places].square().mean(-1, keepdim=True).sqrt() for x in states]
        told = before_each(sampled_logprobs(shard, trajectory), START)[:-1]
        return torch.cat([*parts, torch.tensor(told, dtype=torch.float64)], dim=1)

    head = LeastSquaresHead(learner.critic.head.weights.numel(), CPU)
    ended = [v.trajectory_id for v in first.values]
    seen = {t: features(first, t) for t in ended}
    returns = []
    for value in first.values:
        sequence = first.sequences[value.sequence]
        every = [p for a, b in sequence.sampled for p in range(a, b)]
        last = every[-1] if every else -1
        earned = {p: 0.0 for p in every}
        for reward in value.rewards:
            at = max((p for p in every if p <= reward.position), default=None)
            if at is not None:
                earned[at] += reward.value
        returns += [sum(earned[q] for q in every if q >= p) for p in every if p <= last]
    numbers = torch.cat([torch.full((x.shape[0],), t) for t, x in seen.items()])
    head.refit(
        head.products(torch.cat(list(seen.values())), torch.tensor(returns).double(), numbers),
        keep=1.0,
    )
    compared = 0
    for window in second.windows:
        sequence = second.sequences[window.sequence]
        every = [p for a, b in sequence.sampled for p in range(a, b)]
        wanted = head.values(features(second, window.trajectory_id)).tolist()
        own = {p: v for p, v in zip(every, wanted, strict=True)}
        places = range(window.start, window.end)
        for position, seen_value in zip(places, found[window.window_id], strict=True):
            if position in own:
                assert seen_value == pytest.approx(own[position], rel=1e-4, abs=1e-5)
                compared += 1
    assert compared > 300


@pytest.mark.parametrize("boundary", ["copy", "bootstrap"])
def test_neither_micro_batches_nor_ranks_change_it(model: ModelConfig, boundary: str) -> None:
    shards = [with_statistics(record(seed=s, trajectories=30)) for s in (1, 2)]
    wide, narrow = (
        Learner(model, most=12, boundary=boundary,
                place=RankContext(device=CPU, dtype=torch.float64, budget=budget))
        for budget in (100_000, 60)
    )  # fmt: skip
    meeting = Meeting(2)
    ranks = [
        Learner(model, most=12, boundary=boundary, place=ThreadPlace(
            CPU, rank=rank, world=2, dtype=torch.float64, meeting=meeting
        ))
        for rank in range(2)
    ]  # fmt: skip
    for update, shard in enumerate(shards, start=1):
        expected = values_of(wide.run(shard, update))
        assert wide.critic.network.width == 12
        for window, values in values_of(narrow.run(shard, update)).items():
            assert values == pytest.approx(expected[window], rel=1e-5, abs=1e-6, nan_ok=True)
        sent = batch_of(shard, update=update, ranks=2)
        with ThreadPoolExecutor(2) as pool:
            jobs = [
                pool.submit(rank.updater.run, sent.batch, share)
                for rank, share in zip(ranks, sent.shards, strict=True)
            ]
            outcomes = [job.result() for job in jobs]
        both = values_of(outcomes[0]) | values_of(outcomes[1])
        for window, values in both.items():
            assert values == pytest.approx(expected[window], rel=1e-5, abs=1e-6, nan_ok=True)
    assert torch.equal(ranks[0].critic.head.weights, ranks[1].critic.head.weights)


def test_a_value_that_is_not_finite_leaves_the_head_alone(model: ModelConfig) -> None:
    learner, shard = Learner(model), with_statistics(record(seed=1))
    learner.run(shard)
    learner.critic.head.weights[0] = torch.nan
    sums = learner.critic.head.sums.clone()
    outcome = learner.run(shard, update=2)
    assert outcome.skipped is not None
    assert "values" in outcome.skipped
    assert torch.equal(learner.critic.head.sums, sums)


def test_features_that_are_not_finite_leave_the_head_alone(model: ModelConfig) -> None:
    """Of a warm-up, too, where no window reads them."""
    learner, shard = Learner(model), with_statistics(record(seed=1))
    learner.run(shard)
    sums = learner.critic.head.sums.clone()
    for parameter in learner.critic.network.parameters():
        parameter.fill_(torch.nan)
    outcome = learner.run(replace(shard, windows=[]), update=2)
    assert "values" in str(outcome.skipped)
    assert torch.equal(learner.critic.head.sums, sums)


def test_the_first_layers_alone(model: ModelConfig) -> None:
    """Fewer features, and those are what all layers begin with."""
    whole, first = Learner(model), Learner(model, layers=1)
    assert first.critic.network.width < whole.critic.network.width
    assert first.run(with_statistics(record(seed=1))).metrics["critic/steps"] == 1
