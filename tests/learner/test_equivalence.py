"""With windows longer than every response, T-PPO is PPO with GAE: to the bit in float64.

Both sides run one step of plain torch on the same responses: a linear policy and critic,
forward, advantages, losses, gradients. The windowed side packs, cuts by window, masks the
boundary and asks for EGAE; the PPO side goes response by response and knows no windows.
"""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from learner.algorithms.advantages import Boundary, egae, gae, packed_egae
from learner.algorithms.aggregation import sample_mean_weights, token_mean_weights, weighted_sum
from learner.algorithms.policy_losses import clipped_surrogate, squared_error
from learner.algorithms.ratios import behaviour_ratio
from learner.algorithms.value_targets import monte_carlo_returns
from learner.batching.segments import segment_ids, segments_of, tokens_left

VOCABULARY, HIDDEN = 11, 6


class Responses(NamedTuple):
    lengths: list[int]
    states: Tensor
    actions: Tensor
    rewards: Tensor
    behaviour: Tensor


class Step(NamedTuple):
    advantages: Tensor
    targets: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    gradients: list[Tensor]


def recorded(lengths: list[int]) -> Responses:
    generator = torch.Generator().manual_seed(7)
    total = sum(lengths)
    rewards = torch.zeros(total, dtype=torch.float64)
    ends = torch.tensor(lengths).cumsum(0) - 1
    rewards[ends] = torch.randn(len(lengths), generator=generator, dtype=torch.float64)
    return Responses(
        lengths,
        torch.randn(total, HIDDEN, generator=generator, dtype=torch.float64),
        torch.randint(VOCABULARY, (total,), generator=generator),
        rewards,
        -2.4 + 0.3 * torch.randn(total, generator=generator, dtype=torch.float64),
    )


def models() -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(3)
    return nn.Linear(HIDDEN, VOCABULARY).double(), nn.Linear(HIDDEN, 1).double()


def windowed_step(
    data: Responses, window: int, *, gamma: float, lam: float, boundary: Boundary
) -> Step:
    assert window >= max(data.lengths)
    policy, critic = models()
    segments = segments_of(data.lengths, finished=[n <= window for n in data.lengths], lam=lam)
    ids = segment_ids(segments)
    mask = segments.finished[ids] | (tokens_left(segments) >= 8)
    values = critic(data.states).squeeze(-1)
    advantages = packed_egae(data.rewards, values, segments, gamma=gamma, boundary=boundary)
    target = monte_carlo_returns(data.rewards, segments, gamma=gamma)
    new = policy(data.states).log_softmax(-1).gather(-1, data.actions[:, None]).squeeze(-1)
    ratio = behaviour_ratio(new, data.behaviour, mask)
    surrogate = clipped_surrogate(
        ratio.log_ratio, advantages, clip_low=0.2, clip_high=0.28, dual_clip=10.0
    )
    policy_loss = weighted_sum(
        ratio.weight * surrogate.loss, token_mean_weights(mask, global_tokens=int(mask.sum()))
    )
    value_loss = weighted_sum(
        squared_error(values, target.targets),
        sample_mean_weights(
            target.mask,
            ids,
            global_samples=len(data.lengths),
            sample_tokens=segments.cu_lengths.diff(),
        ),
    )
    torch.autograd.backward(policy_loss + value_loss)
    return Step(advantages, target.targets, policy_loss, value_loss, _gradients(policy, critic))


def ppo_step(data: Responses, *, gamma: float, lam: float) -> Step:
    policy, critic = models()
    values = critic(data.states).squeeze(-1)
    advantages, targets, shares = [], [], []
    for r, v in zip(
        data.rewards.split(data.lengths), values.detach().split(data.lengths), strict=True
    ):
        advantages.append(gae(r, v, gamma=gamma, lam=lam))
        one = segments_of([r.numel()], finished=[True])
        targets.append(monte_carlo_returns(r, one, gamma=gamma).targets)
        shares.append(torch.full_like(r, 1.0 / (r.numel() * len(data.lengths))))
    a, target = torch.cat(advantages), torch.cat(targets)
    new = policy(data.states).log_softmax(-1).gather(-1, data.actions[:, None]).squeeze(-1)
    r = (new - data.behaviour).exp()
    loss = torch.maximum(-a * r, -a * r.clamp(0.8, 1.28)).minimum(10.0 * a.abs())
    policy_loss = (loss * (1.0 / loss.numel())).sum()
    value_loss = (0.5 * (values - target).square() * torch.cat(shares)).sum()
    torch.autograd.backward(policy_loss + value_loss)
    return Step(a, target, policy_loss, value_loss, _gradients(policy, critic))


@pytest.mark.parametrize("boundary", ["copy", "bootstrap", "terminal"])
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.97, 0.9)])
def test_windows_longer_than_every_response_are_ppo_to_the_bit(
    boundary: Boundary, gamma: float, lam: float
) -> None:
    data = recorded([5, 1, 12, 32, 3])
    windowed = windowed_step(data, 32, gamma=gamma, lam=lam, boundary=boundary)
    ppo = ppo_step(data, gamma=gamma, lam=lam)
    assert torch.equal(windowed.advantages, ppo.advantages)
    assert torch.equal(windowed.targets, ppo.targets)
    assert torch.equal(windowed.policy_loss, ppo.policy_loss)
    assert torch.equal(windowed.value_loss, ppo.value_loss)
    assert all(map(torch.equal, windowed.gradients, ppo.gradients))
    assert any(gradient.abs().max() > 0 for gradient in ppo.gradients)


@pytest.mark.parametrize("window", [1, 4, 7])
def test_cut_windows_differ_from_ppo_in_the_policy_only(window: int) -> None:
    """The last window of a response is GAE to the bit; the critic's target knows no windows."""
    data = recorded([12])
    values = torch.linspace(-0.5, 0.5, 12, dtype=torch.float64)
    starts = list(range(0, 12, window))
    pieces = [min(window, 12 - start) for start in starts]
    segments = segments_of(
        pieces,
        finished=[start + window >= 12 for start in starts],
        lam=0.95,
        length_so_far=[min(start + window, 12) for start in starts],
    )
    packed = packed_egae(data.rewards, values, segments, gamma=1.0)
    last = slice(starts[-1], 12)
    assert torch.equal(packed[last], gae(data.rewards[last], values[last], gamma=1.0, lam=0.95))
    first = slice(0, window)
    assert torch.equal(
        packed[first],
        egae(data.rewards[first], values[first], gamma=1.0, lam=0.95, finished=False),
    )


def _gradients(policy: nn.Linear, critic: nn.Linear) -> list[Tensor]:
    parameters = [*policy.parameters(), *critic.parameters()]
    return [p.grad for p in parameters if p.grad is not None]
