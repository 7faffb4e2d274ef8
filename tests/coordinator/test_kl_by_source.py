"""A KL coefficient for each source: from the prompt's route through the batch into the loss."""

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from coordinator.training.batches import prepare
from headrace.config.validation.batch_rules import batch_rules
from headrace.config.validation.rules import RULES
from headrace.protocol.messages.batches import Shard
from headrace.protocol.records.record_types import GroupIssued
from headrace.protocol.token_spans import Coefficient, Streams
from headrace.trajectory.trajectories import Trajectory
from learner.algorithms.penalties import kl_divergence
from learner.batching.batch import PolicyBatch, ValueBatch, policy_batch, value_batch
from learner.device import RankContext
from learner.updates.update import Updater
from tests.coordinator.world import World, make_config

CPU = torch.device("cpu")
SOURCES = {
    "checked": {"kind": "math", "kl_coefficient": 0.0},
    "judged": {"kind": "function", "function": "m:f", "kl_coefficient": 1e-5},
    "other": {"kind": "exact"},
}


def make_world(where: str = "reward") -> World:
    algorithm = {
        "advantages": {"kind": "egae"}, "value": {}, "kl": {"coef": 0.5, "where": where},
    }  # fmt: skip
    schedule = {"mode": "streaming", "window": 4, "batch_windows": 3, "max_staleness": 8}
    return World(
        make_config(
            reward={"sources": SOURCES, "route": {"column": "of"}},
            algorithm=algorithm,
            schedule=schedule,
        )
    )


def issue(world: World, source: str) -> Trajectory:
    """One answer to a prompt of that source."""
    number = world.state.next_trajectory
    world.note(
        GroupIssued(
            at=time.time(), group_id=world.state.next_group, prompt_id=source,
            position=world.state.position, purpose="train", prompt="p", answer="a",
            info=f'{{"of": "{source}"}}', prompt_ids=np.array([1, 2], np.int32),
            trajectory_ids=[number], seeds=[number],
        )
    )  # fmt: skip
    trajectory = world.account.trajectories[number]
    world.scheduler.issued([trajectory])
    world.lease(trajectory)
    return trajectory


def batch(world: World) -> Shard:
    prepared = world.take()
    assert prepared is not None
    ((shard,),) = prepared.parts
    return shard


def halves(shard: Shard) -> tuple[PolicyBatch, ValueBatch]:
    settings: dict[str, Any] = {"shape": lambda r, _: r, "kl_coef": 0.5, "device": CPU}
    windows = policy_batch(shard, version=0, lambdas=lambda n, _: n.double(), **settings)
    return windows, value_batch(shard, **settings)


def test_windows_of_unfinished_answers_have_their_sources_coefficient() -> None:
    world = make_world()
    for source in ("checked", "judged", "other"):
        world.chunk(issue(world, source), 4)
    shard = batch(world)
    assert not any(window.finished for window in shard.windows)
    found = [window.coefficients for window in shard.windows]
    assert found == [[Coefficient("kl", 0.0, 0, 4)], [Coefficient("kl", 1e-5, 0, 4)], []]
    half, _ = halves(shard)
    assert isinstance(half.kl_coef, torch.Tensor)
    expected = [0.0] * 4 + [1e-5] * 4 + [0.5] * 4
    assert half.kl_coef.tolist() == pytest.approx(expected)


def test_what_the_stream_says_of_single_tokens_holds_for_them() -> None:
    world = make_world()
    own = Streams(coefficients=[Coefficient("kl", 0.25, 1, 2)])
    for _ in range(3):
        world.chunk(issue(world, "checked"), 4, streams=own)
    half, _ = halves(batch(world))
    assert isinstance(half.kl_coef, torch.Tensor)
    assert half.kl_coef.tolist() == pytest.approx([0.0, 0.25, 0.0, 0.0] * 3)


def test_without_coefficients_of_their_own_nothing_is_sent() -> None:
    world = World(make_config())
    assert batch_rules(world.config).kl_of_prompt("no JSON at all") is None


def finished(source: str) -> Shard:
    """Three answers of three tokens that earned 0.8."""
    world = make_world()
    for _ in range(3):
        trajectory = issue(world, source)
        world.chunk(trajectory, 3, finish="stop")
        world.reward(trajectory, 0.8)
    selection = world.scheduler.next_batch()
    assert selection is not None
    rules = batch_rules(world.config)
    made = prepare(selection, world.state, rules, ranks=1, max_bytes=1 << 20)
    return made.parts[0][0]


@pytest.mark.parametrize(("source", "earned"), [("judged", 0.800001), ("checked", 0.8)])
def test_golden_reward_less_the_divergence(source: str, earned: float) -> None:
    """log pi -0.2, -0.5, -1.1, reference -0.3, -0.4, -1.0: a sum of -0.1 times the coefficient."""
    policy, values = halves(finished(source))
    ref = torch.tensor([-0.3, -0.4, -1.0], dtype=torch.float64)
    for half in (policy, values):
        number = half.rewards.numel() // 3
        behaviour = torch.tensor([-0.2, -0.5, -1.1] * number, dtype=torch.float64)
        kl = SimpleNamespace(
            in_reward=True, estimate=lambda new, r: kl_divergence(new, r, estimator="k1")
        )
        updater: Any = SimpleNamespace(
            _algorithm=SimpleNamespace(kl=kl), _place=RankContext(CPU, dtype=torch.float64)
        )
        placed: Any = SimpleNamespace(behaviour=behaviour, kl_coef=half.kl_coef)
        penalty = Updater._penalty(updater, placed, ref.repeat(number))
        total = (half.rewards.double() + penalty).reshape(number, 3).sum(dim=1)
        assert total.tolist() == pytest.approx([earned] * number, abs=1e-7)
        assert source != "checked" or (penalty == 0).all()


def test_a_token_whose_logprob_is_not_finite_has_no_divergence_in_the_reward() -> None:
    """In neither half: the others pay 0.5 times their -0.5 less the reference's -1."""
    world = make_world()
    for _ in range(3):
        trajectory = issue(world, "other")
        world.chunk(trajectory, 3, finish="stop")
        trajectory.logprobs[1] = np.nan
        world.reward(trajectory, 0.8)
    kl = SimpleNamespace(
        in_reward=True, estimate=lambda new, r: kl_divergence(new, r, estimator="k1")
    )
    updater: Any = SimpleNamespace(
        _algorithm=SimpleNamespace(kl=kl), _place=RankContext(CPU, dtype=torch.float64)
    )
    policy, values = halves(batch(world))
    for half in (policy, values):
        penalty = Updater._penalty(updater, half, torch.full((9,), -1.0, dtype=torch.float64))
        assert penalty.tolist() == pytest.approx([-0.25, 0.0, -0.25] * 3)


def test_the_term_of_a_checked_sample_is_exactly_zero_in_the_loss_and_its_gradient() -> None:
    world = make_world("loss")
    for source in ("checked", "judged", "checked"):
        world.chunk(issue(world, source), 4)
    half, _ = halves(batch(world))
    new = torch.full((12,), -2.0, dtype=torch.float64, requires_grad=True)
    ref = torch.linspace(-9.0, -0.1, 12, dtype=torch.float64)
    term = half.kl_coef * kl_divergence(new, ref, estimator="k3+")
    (gradient,) = torch.autograd.grad(term.sum(), new)
    checked = torch.tensor([True] * 4 + [False] * 4 + [True] * 4)
    assert (term[checked] == 0).all()
    assert (gradient[checked] == 0).all()
    assert (gradient[~checked] != 0).all()


def test_a_coefficient_without_a_divergence_is_refused() -> None:
    config = make_config(reward={"sources": SOURCES, "route": {"column": "of"}})
    assert [rule.key for rule in RULES if rule.broken(config)] == ["reward.kl_coefficient"]
