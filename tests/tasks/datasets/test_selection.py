"""Which prompts Pre-PPO keeps: golden numbers, and what was measured of z-scores and the guard."""

import numpy as np
import pytest

from headrace.errors import UserError
from tasks.datasets.selection import Norm, PromptScore, select_prompts

GOLDEN = {"maths": [0.30, 0.50, 0.70, 0.90], "chat": [0.60, 0.80, 0.85, 0.95]}


def scores_of(domains: dict[str, list[float]], samples: int = 16) -> list[PromptScore]:
    return [
        PromptScore(f"{name}-{mean:.2f}", name, samples, mean, 0.0, 1.0)
        for name, means in domains.items()
        for mean in means
    ]


@pytest.mark.parametrize(
    ("norm", "kept"),
    [
        ("raw", ["maths-0.30", "maths-0.50"]),
        ("zscore", ["chat-0.60", "maths-0.30"]),
        ("quantile", ["chat-0.60", "maths-0.30"]),
    ],
)
def test_two_lowest_of_two_domains(norm: Norm, kept: list[str]) -> None:
    found = select_prompts(scores_of(GOLDEN), 2, norm=norm, guard=False)
    assert sorted(found.kept) == sorted(kept)
    assert select_prompts(scores_of(GOLDEN), 0.25, norm=norm, guard=False) == found


def offset_scores(seed: int) -> tuple[list[PromptScore], set[str]]:
    """Five reward models with offsets of their own; a tenth of the prompts is truly hard: 2
    lower, where prompts and noise spread by 0.5 each, in units of the domain."""
    draw = np.random.default_rng(seed)
    found, hard = [], set()
    for domain, (offset, std) in enumerate(zip(range(5), (1, 0.5, 2, 0.7, 1), strict=True)):
        for number in range(400):
            name = f"{domain}-{number}"
            is_hard = number < 40
            hard |= {name} if is_hard else set()
            latent = draw.normal(-2.0 * is_hard, 0.5)
            mean = offset + std * (latent + draw.normal(0, 0.5))
            found.append(PromptScore(name, str(domain), 4, mean, mean - 1, mean + 1))
    return found, hard


@pytest.mark.parametrize("seed", range(5))
def test_z_scores_find_hard_prompts_below_different_offsets(seed: int) -> None:
    scores, hard = offset_scores(seed)
    recall = {
        norm: len(hard & set(select_prompts(scores, 0.1, norm=norm, guard=False).kept)) / len(hard)
        for norm in ("raw", "quantile", "zscore")
    }
    assert recall["zscore"] >= 0.75
    assert recall["quantile"] >= 0.75
    assert recall["raw"] <= 0.55


def pass_rates(seed: int, samples: int) -> list[PromptScore]:
    """A verifier's 0 and 1: 1,700 easy prompts in a domain, 270 hard and 30 broken in another."""
    draw = np.random.default_rng(seed)
    found = []
    for kind, count, low, high in (("E", 1700, 0.93, 0.99), ("H", 270, 0.15, 0.5), ("B", 30, 0, 0)):
        for number in range(count):
            right = draw.random(samples) < draw.uniform(low, high)
            domain = "easy" if kind == "E" else "sums"
            found.append(
                PromptScore(
                    f"{kind}{number}", domain, samples, float(right.mean()), float(right.min()),
                    float(right.max()),
                )
            )  # fmt: skip
    return found


@pytest.mark.parametrize("seed", range(3))
def test_raw_pass_rates_with_a_guard_keep_hard_prompts(seed: int) -> None:
    scores = pass_rates(seed, 16)

    def share(kind: str, kept: list[str]) -> float:
        return sum(key.startswith(kind) for key in kept) / len(kept)

    guarded = select_prompts(scores, 0.1, norm="raw", guard=True)
    assert share("H", guarded.kept) >= 0.93
    assert share("B", guarded.kept) <= 0.07
    assert {key for key in guarded.broken if key.startswith("B")} == {f"B{n}" for n in range(30)}
    bare = select_prompts(scores, 0.1, norm="raw", guard=False)
    assert share("B", bare.kept) >= 0.1
    # The unlucky tail of prompts that nearly always pass lies further from its mean.
    assert share("E", select_prompts(scores, 0.1, norm="zscore", guard=False).kept) > 0.4


def test_prompts_that_every_answer_solves_are_not_broken() -> None:
    """Of a domain that is solved altogether the lowest reward is that of right answers."""
    easy = [PromptScore(f"E{n}", "easy", 16, 1.0, 1.0, 1.0, solved=1.0) for n in range(4)]
    shares = {"H0": 0.0, "H1": 0.25, "H2": 0.5}
    hard = [PromptScore(k, "hard", 16, s, 0.0, float(s > 0), solved=s) for k, s in shares.items()]
    found = select_prompts([*easy, *hard], 7, norm="quantile", guard=True)
    assert found.broken == ["H0"]
    assert sorted(found.kept) == ["E0", "E1", "E2", "E3", "H1", "H2"]


def test_ties_are_broken_by_a_hash_and_not_by_order() -> None:
    scores = [PromptScore(str(n), "d", 16, 0.5, 0.0, 1.0) for n in range(200)]
    kept = select_prompts(scores, 20, norm="raw", guard=True).kept
    assert kept == select_prompts(scores[::-1], 20, norm="raw", guard=True).kept
    assert max(map(int, kept)) > 100


@pytest.mark.parametrize("keep", [0.0, -1.0, 9.0, 1.5])
def test_a_share_that_does_not_fit_is_one_line(keep: float) -> None:
    with pytest.raises(UserError, match="a share between 0 and 1, or up to 8 prompts"):
        select_prompts(scores_of(GOLDEN), keep, norm="raw", guard=False)


def test_the_guard_refuses_fewer_than_sixteen_answers() -> None:
    with pytest.raises(UserError, match="has 4 scored answers, and whether a reference is broken"):
        select_prompts(scores_of(GOLDEN, samples=4), 2, norm="raw", guard=True)


@pytest.mark.parametrize(("keep", "kept"), [(0.07, 7), (0.071, 8), (0.14, 14), (0.01, 1)])
def test_a_share_of_a_whole_number_of_prompts_is_not_rounded_up(keep: float, kept: int) -> None:
    """In floating point 0.07 * 100 and 0.14 * 100 lie just above 7 and 14; 7.1 is 8."""
    scores = [PromptScore(str(n), "d", 16, n / 100, 0.0, 1.0) for n in range(100)]
    assert len(select_prompts(scores, keep, norm="raw", guard=False).kept) == kept


def test_a_failed_score_of_a_solved_prompt_is_no_reason_to_refuse() -> None:
    """A judge that fails once in a thousand answers would leave no table to select from."""
    solved = [PromptScore(f"S{n}", "d", 16, 0.5, 0.0, 1.0, solved=0.5) for n in range(3)]
    late = PromptScore("late", "d", 15, 0.25, 0.0, 1.0, solved=0.25)
    broken = PromptScore("B", "d", 16, 0.0, 0.0, 0.0)
    found = select_prompts([*solved, late, broken], 2, norm="raw", guard=True)
    assert (found.kept[0], found.broken) == ("late", ["B"])
    unsure = broken._replace(samples=15)
    with pytest.raises(UserError, match="prompt B has 15 scored answers"):
        select_prompts([*solved, late, unsure], 2, norm="raw", guard=True)
