"""Every algorithm's recipe becomes an Algorithm, and its slots do what the recipe says."""

from pathlib import Path

import pytest
import torch

from headrace.config.loading.recipe import load_recipe
from learner.algorithms.registry import Algorithm, algorithm_of, build_algorithm
from learner.batching.group_statistics import Groups
from learner.batching.segments import segments_of
from tests.learner.algorithms.test_advantages import f64

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "algorithms"
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))
CRITICS = ("ppo", "tppo", "vcppo", "vapo")


def build(name: str, *overrides: str) -> Algorithm:
    config = load_recipe(FOLDER / f"{name}.toml", overrides)
    return build_algorithm(
        config.algorithm, window=config.window, max_length=config.task.max_response_length
    )


@pytest.mark.parametrize("name", NAMES)
def test_it_builds_with_or_without_a_critic(name: str) -> None:
    algorithm = build(name)
    assert algorithm.uses_critic == (algorithm.value is not None) == (name in CRITICS)
    assert not algorithm.uses_proximal
    assert (algorithm.kl is not None) == (name in ("grpo", "rloo", "reinforcepp"))
    assert algorithm.window == (60 if name == "tppo" else 240)


def test_windows_that_end_with_turns_have_no_known_cuts() -> None:
    """Their borders are no multiples of the window, and only the coordinator has them."""
    for across_turns, expected in ((True, 2), (False, 6)):
        overrides = ["schedule.window=2", f"schedule.across_turns={str(across_turns).lower()}"]
        config = load_recipe(FOLDER.parent / "pag.toml", overrides)
        assert algorithm_of(config).window == expected


@pytest.mark.parametrize(
    ("name", "finished", "length", "expected"),
    [
        ("ppo", True, 240, 0.95),
        ("vcppo", True, 8, 0.95),
        ("vapo", True, 1, 0.0),
        ("vapo", True, 40, 0.95),
        ("vapo", True, 200, 0.99),
        ("tppo", True, 20, 0.95),
        ("tppo", True, 200, 0.99),
        ("tppo", False, 120, 1 - 1 / 75),
    ],
)
def test_lambda_of_critic_recipes(name: str, finished: bool, length: int, expected: float) -> None:
    """T-PPO's unfinished windows count half a window (30 tokens) longer."""
    lam = build(name).lambdas(torch.tensor([length]), torch.tensor([finished]))
    assert lam.item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dapo", 0.5 / (1 / 3) ** 0.5),
        ("grpo", 0.5 / (1 / 3) ** 0.5),
        ("rloo", 2 / 3),
        ("reinforcepp", 1.0),
    ],
)
def test_advantage_of_a_right_answer_among_two_wrong_and_two_right(
    name: str, expected: float
) -> None:
    """Scores 1, 1, 0, 0; lengths far from the limit."""
    algorithm = build(name)
    rewards = algorithm.shape_rewards(f64([1, 1, 0, 0]), torch.tensor([9, 9, 9, 9]))
    groups = Groups(rewards, torch.zeros(4, dtype=torch.int64), torch.tensor([0]))
    made = algorithm.advantages(
        f64([0, 0, 1]), f64([0, 0, 0]), None, segments_of([3], finished=[True]), groups
    )
    assert made.tolist() == pytest.approx([expected] * 3, rel=1e-5)


def test_dapo_shapes_what_is_long() -> None:
    """Half a point at the limit, growing over the last 48 of 240 tokens."""
    made = build("dapo").shape_rewards(f64([1, 1, 1, 0]), torch.tensor([192, 216, 240, 240]))
    assert made.tolist() == [1.0, 0.75, 0.5, -0.5]


def test_a_divergence_in_the_reward_is_a_sum_over_what_follows() -> None:
    """REINFORCE++: A_t = R - sum of the penalties from t on."""
    groups = Groups(f64([1.0]), torch.zeros(1, dtype=torch.int64), torch.tensor([0]))
    made = build("reinforcepp").advantages(
        f64([0, 0, 1]), f64([-0.1, -0.2, -0.3]), None, segments_of([3], finished=[True]), groups
    )
    assert made.tolist() == pytest.approx([0.4, 0.5, 0.7])


def test_windows_without_their_group_are_refused() -> None:
    none = Groups(f64([]), torch.zeros(0, dtype=torch.int64), torch.tensor([-1]))
    with pytest.raises(ValueError, match="need the rewards of each window's group"):
        build("grpo").advantages(f64([1]), f64([0]), None, segments_of([1], finished=[True]), none)
