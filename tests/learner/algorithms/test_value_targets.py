"""Value targets: Monte-Carlo and lambda returns, of finished trajectories only."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.algorithms.advantages import gae
from learner.algorithms.policy_losses import squared_error
from learner.algorithms.value_targets import lambda_returns, monte_carlo_returns
from learner.batching.segments import segments_of
from tests.learner import reference
from tests.learner.algorithms.test_advantages import END_REWARD, V5, close, f64, unit_64ths

responses = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.integers(-128, 128), st.integers(-128, 128)), min_size=1, max_size=25
        ),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize(
    ("rewards", "gamma", "expected"),
    [
        (END_REWARD, 1.0, [1.0] * 5),
        (END_REWARD, 0.9, [0.6561, 0.729, 0.81, 0.9, 1.0]),
        ([-0.1, 0.0, 0.2, 0.0, -1.0], 0.9, [-0.5941, -0.549, -0.61, -0.9, -1.0]),
    ],
)
def test_monte_carlo_returns(rewards: list[float], gamma: float, expected: list[float]) -> None:
    one = segments_of([5], finished=[True])
    close(monte_carlo_returns(f64(rewards), one, gamma=gamma).targets, expected, atol=1e-12)


def test_decoupled_lambdas() -> None:
    one = segments_of([5], finished=[True], lam=0.95)
    actor = gae(END_REWARD, V5, gamma=1.0, lam=0.95)
    close(actor, [0.693951875, 0.6252125, 0.71075, 0.485, 0.3], atol=1e-12)
    critic = lambda_returns(f64(END_REWARD), f64(V5), one, gamma=1.0, lam=1.0)
    assert critic.targets.tolist() == [1.0] * 5
    loss = squared_error(f64(V5), critic.targets).mean().item()
    assert loss == pytest.approx(0.20325, abs=1e-12)


@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_two_windows_train_the_critic_once_and_whole(reward: float) -> None:
    first = segments_of([4], finished=[False])
    assert not monte_carlo_returns(torch.zeros(4), first, gamma=1.0).mask.any()
    whole = segments_of([7], finished=[True])
    made = monte_carlo_returns(f64([0.0] * 6 + [reward]), whole, gamma=1.0)
    assert made.mask.all()
    assert made.targets.tolist() == [reward] * 7


@given(responses, unit_64ths, unit_64ths)
@settings(max_examples=60, deadline=None)
def test_packed_targets_equal_the_definition(
    pack: list[tuple[list[tuple[int, int]], bool]], g: int, lam: int
) -> None:
    tokens = [token for part, _ in pack for token in part]
    r, v = f64([x / 64 for x, _ in tokens]), f64([x / 64 for _, x in tokens])
    segments = segments_of([len(part) for part, _ in pack], finished=[end for _, end in pack])
    returns = monte_carlo_returns(r, segments, gamma=g / 64)
    lambdas = lambda_returns(r, v, segments, gamma=g / 64, lam=lam / 64)
    exact_returns, exact_lambdas, finished = [], [], []
    for part, end in pack:
        rewards = [Fraction(x, 64) for x, _ in part]
        values = [Fraction(x, 64) for _, x in part]
        gamma = Fraction(g, 64)
        exact_returns += reference.monte_carlo(rewards, gamma)
        exact_lambdas += reference.lambda_return(rewards, values, gamma, Fraction(lam, 64))
        finished += [end] * len(part)
    assert returns.mask.tolist() == lambdas.mask.tolist() == finished
    close(returns.targets[returns.mask], _kept(exact_returns, finished), atol=1e-11)
    close(lambdas.targets[lambdas.mask], _kept(exact_lambdas, finished), atol=1e-11)


@given(responses, unit_64ths, st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_with_lambda_one_the_target_does_not_depend_on_values(
    pack: list[tuple[list[tuple[int, int]], bool]], g: int, seed: int
) -> None:
    tokens = [token for part, _ in pack for token in part]
    r = f64([x / 192 for x, _ in tokens])
    segments = segments_of([len(part) for part, _ in pack], finished=[end for _, end in pack])
    generator = torch.Generator().manual_seed(seed)
    one = torch.randn(len(tokens), generator=generator, dtype=torch.float64)
    two = torch.randn(len(tokens), generator=generator, dtype=torch.float64)
    first = lambda_returns(r, one, segments, gamma=g / 64, lam=1.0).targets
    assert torch.equal(first, lambda_returns(r, two, segments, gamma=g / 64, lam=1.0).targets)
    assert torch.equal(first, monte_carlo_returns(r, segments, gamma=g / 64).targets)


@given(st.lists(st.integers(-64, 64), min_size=1, max_size=40), unit_64ths)
@settings(max_examples=40, deadline=None)
def test_the_target_is_the_same_however_the_response_was_cut(rewards: list[int], g: int) -> None:
    """The critic sees the response at its end as one segment: windows leave no trace in it."""
    r = f64([x / 192 for x in rewards])
    alone = monte_carlo_returns(r, segments_of([len(rewards)], finished=[True]), gamma=g / 64)
    beside = monte_carlo_returns(
        torch.cat([f64([0.5, 0.25]), r, f64([1.0])]),
        segments_of([2, len(rewards), 1], finished=[False, True, True]),
        gamma=g / 64,
    )
    assert torch.equal(alone.targets, beside.targets[2:-1])
    assert beside.mask.tolist() == [False] * 2 + [True] * (len(rewards) + 1)


def test_types_and_gradients() -> None:
    one = segments_of([2], finished=[True])
    v = torch.tensor([0.5, 0.25], requires_grad=True)
    made = lambda_returns(torch.tensor([0, 1]), v, one, gamma=1.0, lam=0.5)
    assert made.targets.dtype == torch.float32
    assert not made.targets.requires_grad
    assert monte_carlo_returns(torch.tensor([0, 1]), one, gamma=1.0).targets.tolist() == [1.0, 1.0]


def _kept(exact: list[Fraction], mask: list[bool]) -> list[float]:
    return [float(x) for x, m in zip(exact, mask, strict=True) if m]


def test_a_batch_without_windows_has_segments_of_the_usual_types() -> None:
    empty = segments_of([], finished=[])
    assert empty.cu_lengths.tolist() == [0]
    assert (empty.finished.dtype, empty.length_so_far.dtype) == (torch.bool, torch.int64)
