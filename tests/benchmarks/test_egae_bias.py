"""Bias and variance of EGAE: the statistics are unbiased, the estimates are EGAE's definition."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForTokenClassification

from benchmarks.egae_bias import (
    COLD,
    CRITICS,
    POLICIES,
    RECIPE,
    Size,
    key,
    pretraining,
    values_of,
)
from benchmarks.egae_bias_evidence import bias_table, draw_egae_bias
from benchmarks.egae_estimates import (
    ESTIMATORS,
    Estimator,
    Sampled,
    estimates,
    is_near,
    state_terms,
    window_end,
)
from benchmarks.estimator_error import FIGURES, Continuations, Terms, figures, summary, terms
from benchmarks.frozen_policy import (
    MAX_TOKENS,
    Critic,
    FrozenPolicy,
    Rollouts,
    State,
    stratified_positions,
)
from headrace.config.load import load_recipe
from headrace.install import ROOT
from tasks.rows import Row

HELD = [(0.5, 1.0), (-0.25, 0.0), (0.125, 0.0)]
"""(estimate, return) of the equally likely continuations after (s, a)."""
FREE = [(0.25, 1.0), (-0.5, 0.0)]


def samples(count: int) -> Iterator[Continuations]:
    """Every equally likely outcome of drawing `count` continuations of either kind."""
    for held in product(HELD, repeat=count):
        for free in product(FREE, repeat=count):
            (e, g), (e_state, g_state) = np.array(held).T, np.array(free).T
            yield Continuations(e, g, e_state, g_state, g > 0.0)


@pytest.mark.parametrize("count", [2, 3])
def test_terms_of_a_state_are_unbiased_whatever_the_number_of_continuations(count: int) -> None:
    e, g = np.array(HELD).T
    e_state, g_state = np.array(FREE).T
    advantage = g.mean() - g_state.mean()
    bias = e.mean() - advantage
    gradient_bias = bias - e_state.mean()
    expected = Terms(
        bias=bias,
        squared_bias=bias**2,
        squared_gradient_bias=gradient_bias**2,
        variance=e.var(),
        estimate=e.mean(),
        advantage=advantage,
        squared_estimate=e.mean() ** 2,
        squared_advantage=advantage**2,
        product=e.mean() * advantage,
        cut=1 / 3,
    )
    mean = np.mean([terms(sample) for sample in samples(count)], axis=0)
    np.testing.assert_allclose(mean, expected, atol=1e-12)


def without_noise(estimate: float, advantage: float, baseline: float = 0.0) -> Terms:
    """A state whose continuations are all alike."""
    e, g = np.full(2, estimate), np.full(2, advantage)
    return terms(Continuations(e, g, np.full(2, baseline), np.zeros(2), np.array([True, False])))


def test_figures_over_states_are_those_of_the_made_case() -> None:
    states = [without_noise(0.5, 0.25), without_noise(-0.25, 0.5, baseline=-0.75)]
    found = summary(states, resamples=50)
    value = {name: one[0] for name, one in found.items()}
    assert value == {
        "bias": (0.25 - 0.75) / 2,
        "rms_bias": round(((0.25**2 + 0.75**2) / 2) ** 0.5, 5),
        "rms_gradient_bias": round((0.25**2 / 2) ** 0.5, 5),
        "spread": 0.0,
        "rms_advantage": round(((0.25**2 + 0.5**2) / 2) ** 0.5, 5),
        "correlation": -1.0,
        "cut_share": 0.5,
    }
    assert found["bias"][1:] == [-0.75, 0.25]


def test_a_square_below_zero_counts_as_zero_and_a_correlation_without_variance_is_none() -> None:
    means = np.zeros(len(Terms._fields))
    means[Terms._fields.index("squared_bias")] = -0.01
    assert figures(means)[1] == 0.0
    assert summary([without_noise(0.5, 0.25)] * 3)["correlation"] == [None, None, None]


def slow_estimate(
    position: int, length: int, reward: float, values: list[float], estimator: Estimator
) -> float:
    """A_t = sum_k lam^k delta_{t+k} up to the window's end, straight from the definition."""
    end = (position // estimator.window + 1) * estimator.window
    stop = min(position + length, end)
    total = 0.0
    for t in range(position, stop):
        last_of_all = t == position + length - 1
        if last_of_all:
            after = 0.0
        elif t == end - 1:
            after = {
                "copy": values[t - position],
                "bootstrap": values[t + 1 - position],
                "terminal": 0.0,
            }[estimator.boundary]
        else:
            after = values[t + 1 - position]
        delta = (reward if last_of_all else 0.0) + after - values[t - position]
        total += estimator.lam ** (t - position) * delta
    return total


@pytest.mark.parametrize("position", [0, 13, 14, 15, 118, 239])
def test_estimates_are_those_of_the_definition(position: int) -> None:
    rng = Random(position)
    lengths = [rng.randint(1, MAX_TOKENS - position) for _ in range(12)]
    lengths += [1, MAX_TOKENS - position]
    returns = [float(rng.random() < 0.5) for _ in lengths]
    values = torch.rand(len(lengths), max(lengths), dtype=torch.float64)
    for estimator in ESTIMATORS:
        found = estimates(position, lengths, torch.tensor(returns).double(), values, estimator)
        expected = [
            slow_estimate(position, length, reward, row, estimator)
            for length, reward, row in zip(lengths, returns, values.tolist(), strict=True)
        ]
        torch.testing.assert_close(found, torch.tensor(expected).double())


class ConstantCritic:
    """V = 0.25 in every state."""

    def values(self, known: list[int], tokens: list[list[int]]) -> torch.Tensor:
        return torch.full((len(tokens), max(map(len, tokens))), 0.25, dtype=torch.float64)


def test_plain_gae_with_lambda_one_is_off_by_the_values_error_alone() -> None:
    state = State(Row("0", "", ""), prompt=[1], prefix=[2] * 13, action=3)
    held = Rollouts([[3], [3, 4], [3, 4, 5]], torch.tensor([1.0, 0.0, 1.0]).double())
    free = Rollouts([[3, 4], [4], [5] * 9], torch.tensor([1.0, 0.0, 0.0]).double())
    found = state_terms(Sampled(state, held, free), ConstantCritic())  # type: ignore[arg-type]
    plain = found[Estimator(MAX_TOKENS, "copy", 1.0)]
    assert plain.bias == pytest.approx(1 / 3 - 0.25)
    assert plain.squared_gradient_bias == pytest.approx(0.0)
    assert plain.cut == 0.0
    # Two tokens are left in a window of 15, and a constant value that is copied says nothing more.
    cut = found[Estimator(15, "copy", 1.0)]
    assert cut.cut == pytest.approx(1 / 3)
    assert cut.estimate == pytest.approx((0.75 - 0.25 + 0.0) / 3)
    assert found[Estimator(15, "terminal", 1.0)].estimate == pytest.approx((0.75 - 0.25 - 0.25) / 3)


def test_the_last_quarter_of_a_window_is_near_its_cut() -> None:
    assert [window_end(t, 60) for t in (0, 59, 60)] == [60, 60, 120]
    assert [t for t in range(60) if is_near(t, 60)] == list(range(45, 60))
    assert [t for t in range(15, 30) if is_near(t, 15)] == [27, 28, 29]


def test_states_are_spread_over_positions_one_a_trajectory() -> None:
    lengths = [3] * 50 + [20] * 10 + [200] * 10 + [130] * 2
    choices = [list(range(0, length, 2)) for length in lengths]
    chosen = stratified_positions(choices, 12, Random(0), strata=(0, 15, 120, 240))
    assert len({trajectory for trajectory, _ in chosen}) == len(chosen) == 12
    assert all(position in choices[trajectory] for trajectory, position in chosen)
    counts, _ = np.histogram([t for _, t in chosen], bins=(0, 15, 120, 240))
    assert counts.tolist() == [4, 4, 4]
    assert len(stratified_positions(choices[:50], 12, Random(0), strata=(0, 15, 120, 240))) == 4


def test_a_choice_is_where_the_policy_is_not_sure() -> None:
    policy = FrozenPolicy(COLD, seed=0)
    encode = policy.tokenizer.encode
    answers = [encode("#5"), encode("a3+0=3;b5+3=8;c7+8=5;#5")]
    answers = [[*answer, policy.tokenizer.eos_token_id] for answer in answers]
    short, long = policy.choices([(encode("a3b5c7="), answer) for answer in answers])
    assert short == [0, 1], "how to answer, and the guess; the end is sure"
    assert 0 in long
    digits = {i for i, token in enumerate(answers[1]) if token == encode("=")[0]}
    assert not {i + 1 for i in digits} & set(long), "steps of one term are not guessed"


def test_values_read_behind_a_prefix_are_those_of_the_whole_sequence(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_labels=1, classifier_dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForTokenClassification(config).eval()
    model.save_pretrained(tmp_path)
    known, tokens = [1, 2, 3], [[4], [5, 6, 7, 8], [9, 10]]
    found = Critic(tmp_path).values(known, tokens)
    for row, continuation in zip(found, tokens, strict=True):
        with torch.inference_mode():
            whole = model(torch.tensor([known + continuation])).logits[0, :, 0].double()
        torch.testing.assert_close(row[: len(continuation)], whole[2 : 2 + len(continuation)])


def test_continuations_hold_the_action_and_end_where_a_response_may() -> None:
    policy = FrozenPolicy(COLD, seed=0)
    row = Row("0", "a3b5c7=", "5")
    encode = policy.tokenizer.encode
    end = policy.tokenizer.eos_token_id
    state = State(row, encode("a3b5c7="), encode("#"), encode("5")[0])
    held, free = policy.rollouts(state, 16)
    assert all(tokens[0] == state.action for tokens in held.tokens)
    assert len({tokens[0] for tokens in free.tokens}) > 1
    right = [float(tokens == [state.action, end]) for tokens in held.tokens]
    assert held.returns.tolist() == right
    assert sum(right) > 0
    ended = State(row, encode("a3b5c7="), encode("#5"), end)
    held, _ = policy.rollouts(ended, 2)
    assert (held.tokens, held.returns.tolist()) == ([[end], [end]], [1.0, 1.0])
    late = State(row, encode("a3b5c7="), encode("+") * (MAX_TOKENS - 1), encode("+")[0])
    held, free = policy.rollouts(late, 4)
    assert (held.tokens, held.returns.tolist()) == ([[late.action]] * 4, [0.0] * 4)
    assert {len(tokens) for tokens in free.tokens} == {1}


def test_value_models_are_trained_by_a_configuration_that_starts() -> None:
    load_recipe(ROOT / RECIPE, pretraining(COLD, 0))


def test_a_row_has_a_key_of_its_own_for_policy_critic_seed_and_size() -> None:
    sizes = (Size(2, 2), Size(2, 4))
    keys = {key(p, c, s, z) for p in POLICIES for c in CRITICS for s in (0, 1) for z in sizes}
    assert len(keys) == len(POLICIES) * len(CRITICS) * 2 * 2


def made_row(policy: str, critic: str, seed: int) -> dict[str, object]:
    """A row whose figures are the seed's number."""
    lines = [
        {**asdict(one), "where": where, **{figure: [seed, seed, seed] for figure in FIGURES}}
        for one in ESTIMATORS
        for where in ("all", "near", "far")
    ]
    return {"policy": policy, "critic": critic, "seed": seed, "estimators": lines}


def test_table_and_plot_are_made_of_the_rows(tmp_path: Path) -> None:
    pair = ("cold", "well trained")
    rows = [made_row(*pair, 10), made_row(*pair, 1)]
    assert values_of(rows, pair, ESTIMATORS[0], "spread", "near") == [10, 1]
    lines = bias_table(rows).splitlines()
    assert lines[2].startswith("| cold | well trained | 15 | copy | 0.95 | 5.50 (1.00 to 10.00) |")
    assert lines[-1].startswith("| cold | well trained | 240 | no cut | 1 | 5.50 (1.00 to 10.00) |")
    draw_egae_bias(rows, tmp_path / "plot.svg")
    assert "value model well trained" in (tmp_path / "plot.svg").read_text()
