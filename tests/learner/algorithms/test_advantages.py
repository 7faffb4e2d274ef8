"""GAE, EGAE, adaptive lambda and whitening against hand-computed numbers."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learner.algorithms.advantages import (
    Boundary,
    credited_length,
    egae,
    gae,
    length_adaptive_lambda,
    moments,
    packed_egae,
    whiten,
)
from learner.batching.segments import Segments, segments_of, trajectory_positions
from tests.learner import reference

V5 = [0.2, 0.3, 0.25, 0.5, 0.7]
END_REWARD = [0.0, 0.0, 0.0, 0.0, 1.0]
BOUNDARIES: tuple[Boundary, ...] = ("copy", "bootstrap", "terminal")

# One window: rewards and values (as 1/64ths, so that fractions are exact), end, V(s_l).
sixty_fourths = st.integers(-128, 128)
window = st.tuples(
    st.lists(st.tuples(sixty_fourths, sixty_fourths), min_size=1, max_size=40),
    st.booleans(),
    sixty_fourths,
)
unit_64ths = st.integers(0, 64)


def f64(x: object) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def close(actual: Tensor, expected: object, atol: float = 1e-9) -> None:
    torch.testing.assert_close(actual.double(), f64(expected), rtol=0, atol=atol)


# ---- golden numbers: GAE


def test_gae_of_a_finished_response_undiscounted() -> None:
    a = gae(END_REWARD, V5, gamma=1.0, lam=0.95)
    close(a, [0.693951875, 0.6252125, 0.71075, 0.485, 0.3], atol=1e-12)
    close(a + f64(V5), [0.893951875, 0.9252125, 0.96075, 0.985, 1.0], atol=1e-12)
    close(gae(END_REWARD, V5, gamma=1.0, lam=0.0), [0.1, -0.05, 0.25, 0.2, 0.3], atol=1e-12)


def test_gae_of_a_finished_response_discounted() -> None:
    a = gae(END_REWARD, V5, gamma=0.9, lam=0.8)
    close(a, [0.248823808, 0.2483664, 0.44912, 0.346, 0.3], atol=1e-12)
    close(gae(END_REWARD, V5, gamma=0.9, lam=0.0), [0.07, -0.075, 0.2, 0.13, 0.3], atol=1e-12)


def test_gae_with_dense_rewards() -> None:
    a = gae([-0.1, 0.0, 0.2, 0.0, -1.0], V5, gamma=0.9, lam=0.8)
    close(a, [-0.284973312, -0.3541296, -0.38768, -1.094, -1.7], atol=1e-12)


# ---- golden numbers: EGAE


@pytest.mark.parametrize(
    ("boundary", "gamma", "lam", "expected"),
    [
        ("copy", 1.0, 0.95, [0.278125, 0.1875, 0.25, 0.0]),
        ("copy", 0.9, 0.8, [0.1010176, 0.04308, 0.164, -0.05]),
        ("terminal", 1.0, 0.95, [-0.1505625, -0.26375, -0.225, -0.5]),
        ("terminal", 0.9, 0.8, [-0.066944, -0.1902, -0.16, -0.5]),
        ("bootstrap", 1.0, 0.95, [0.4496, 0.368, 0.44, 0.2]),
        ("bootstrap", 0.9, 0.8, [0.16820224, 0.136392, 0.2936, 0.13]),
        ("outcome", 1.0, 0.95, [0.4496, 0.368, 0.44, 0.2]),
    ],
)
def test_egae_of_a_window_cut_at_four(
    boundary: Boundary, gamma: float, lam: float, expected: list[float]
) -> None:
    a = egae(
        [0.0] * 4,
        V5[:4],
        gamma=gamma,
        lam=lam,
        finished=False,
        boundary=boundary,
        bootstrap_value=0.7,
    )
    close(a, expected, atol=1e-12)


@pytest.mark.parametrize("came", [None, math.nan])
def test_an_outcome_that_is_not_known_is_a_plain_cut(came: float | None) -> None:
    zeros, lam = [0.0] * 4, 0.95
    plain = egae(zeros, V5[:4], gamma=1.0, lam=lam, finished=False)
    made = egae(
        zeros, V5[:4], gamma=1.0, lam=lam, finished=False, boundary="outcome", bootstrap_value=came
    )
    assert torch.equal(plain, made)


def test_egae_deltas_of_the_cut_window() -> None:
    zeros = [0.0] * 4
    close(egae(zeros, V5[:4], gamma=1.0, lam=0.0, finished=False), [0.1, -0.05, 0.25, 0.0], 1e-12)
    close(
        egae(zeros, V5[:4], gamma=0.9, lam=0.0, finished=False), [0.07, -0.075, 0.2, -0.05], 1e-12
    )


def test_positions_are_counted_in_the_whole_response() -> None:
    """A response's first window of 3, and the window of 2 after another's first 4 tokens."""
    windows = segments_of([3, 2], finished=[False, True], length_so_far=[3, 6])
    assert trajectory_positions(windows).tolist() == [0, 1, 2, 4, 5]


@pytest.mark.parametrize(
    ("reward", "second"), [(1.0, [0.3605, 0.59, 0.2]), (-1.0, [-1.4445, -1.31, -1.8])]
)
def test_two_windows_of_one_trajectory(reward: float, second: list[float]) -> None:
    first = egae([0.0] * 4, [0.2, 0.3, 0.25, 0.5], gamma=1.0, lam=0.95, finished=False)
    close(first, [0.278125, 0.1875, 0.25, 0.0], atol=1e-12)
    a = egae([0.0, 0.0, reward], [0.6, 0.4, 0.8], gamma=1.0, lam=0.95, finished=True)
    close(a, second, atol=1e-12)


def test_one_shot_gae_differs_from_two_windows_by_the_closing_term() -> None:
    values = [0.2, 0.3, 0.25, 0.5, 0.6, 0.4, 0.8]
    whole = gae([0.0] * 6 + [1.0], values, gamma=1.0, lam=0.95)
    close(
        whole,
        [0.6574920031, 0.5868336875, 0.67035125, 0.442475, 0.3605, 0.59, 0.2],
        atol=1e-10,
    )
    first = egae([0.0] * 4, values[:4], gamma=1.0, lam=0.95, finished=False)
    difference = whole[:4] - first
    close(difference, [0.3793670031, 0.3993336875, 0.42035125, 0.442475], atol=1e-10)
    close(difference, [0.95 ** (3 - t) * (0.6 - 0.5 + 0.95 * 0.3605) for t in range(4)], 1e-12)


def test_egae_says_what_is_wrong() -> None:
    cut = {"gamma": 1.0, "lam": 0.95, "finished": False}
    with pytest.raises(ValueError, match="bootstrap_value"):
        egae([0.0], [0.1], **cut, boundary="bootstrap")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="boundary must be one of"):
        egae([0.0], [0.1], **cut, boundary="wrong")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="same tokens"):
        egae([0.0], [0.1, 0.2], **cut)  # type: ignore[arg-type]
    for outside in (-0.5, 1.5):
        with pytest.raises(ValueError, match="lam must lie"):
            gae([0.0], [0.1], gamma=1.0, lam=outside)
        with pytest.raises(ValueError, match="gamma"):
            gae([0.0], [0.1], gamma=outside, lam=0.9)
    with pytest.raises(ValueError, match="same tokens"):
        packed_egae(f64([0.0]), f64([0.1]), segments_of([2], finished=[True]), gamma=1.0)


def test_finished_windows_need_no_bootstrap_value() -> None:
    a = egae([1.0], [0.25], gamma=1.0, lam=1.0, finished=True, boundary="bootstrap")
    assert a.tolist() == [0.75]


def test_types_in_and_out() -> None:
    r, v = torch.tensor([0, 0, 1]), torch.tensor([0.5, 0.25, 0.5])
    assert gae(r, v, gamma=1.0, lam=1.0).dtype == torch.float32
    assert gae(r, v.bfloat16(), gamma=1.0, lam=1.0).dtype == torch.float32
    assert gae(r, v.double(), gamma=1.0, lam=1.0).dtype == torch.float64
    assert gae(r, v.requires_grad_(), gamma=1.0, lam=1.0).requires_grad is False
    assert gae([], [], gamma=1.0, lam=1.0).shape == (0,)


# ---- twin and packed form


@given(window, unit_64ths, unit_64ths, st.sampled_from(BOUNDARIES))
@settings(max_examples=60, deadline=None)
def test_egae_equals_the_double_sum_in_exact_fractions(
    w: tuple[list[tuple[int, int]], bool, int], g: int, lam: int, boundary: Boundary
) -> None:
    tokens, finished, v_end = w
    exact = reference.egae(
        [Fraction(r, 64) for r, _ in tokens],
        [Fraction(v, 64) for _, v in tokens],
        Fraction(g, 64),
        Fraction(lam, 64),
        finished,
        boundary,
        Fraction(v_end, 64),
    )
    a = egae(
        [r / 64 for r, _ in tokens],
        [v / 64 for _, v in tokens],
        gamma=g / 64,
        lam=lam / 64,
        finished=finished,
        boundary=boundary,
        bootstrap_value=v_end / 64,
    )
    close(a, [float(x) for x in exact], atol=1e-12)


@given(st.lists(window, min_size=1, max_size=6), unit_64ths, st.sampled_from(BOUNDARIES), st.data())
@settings(max_examples=60, deadline=None)
def test_a_pack_gives_the_bits_of_each_window_alone(
    windows: list[tuple[list[tuple[int, int]], bool, int]],
    g: int,
    boundary: Boundary,
    data: st.DataObject,
) -> None:
    lambdas = data.draw(st.lists(unit_64ths, min_size=len(windows), max_size=len(windows)))
    # Thirds are not exact in binary, so equal bits mean equal operations.
    rewards = [f64([r / 192 for r, _ in tokens]) for tokens, _, _ in windows]
    values = [f64([v / 192 for _, v in tokens]) for tokens, _, _ in windows]
    pack = segments_of(
        [len(tokens) for tokens, _, _ in windows],
        finished=[finished for _, finished, _ in windows],
        lam=[lam / 64 for lam in lambdas],
        bootstrap_value=f64([v_end / 192 for _, _, v_end in windows]),
    )
    packed = packed_egae(
        torch.cat(rewards), torch.cat(values), pack, gamma=g / 64, boundary=boundary
    )
    alone = [
        egae(
            rewards[i],
            values[i],
            gamma=g / 64,
            lam=lambdas[i] / 64,
            finished=finished,
            boundary=boundary,
            bootstrap_value=v_end / 192,
        )
        for i, (_, finished, v_end) in enumerate(windows)
    ]
    assert torch.equal(packed, torch.cat(alone))


def test_long_windows_equal_the_backward_recursion() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = [3000, 1, 4096, 517]
    pack = segments_of(lengths, finished=[True, False, False, True], lam=[0.999, 0.5, 0.9995, 0.0])
    r = torch.randn(sum(lengths), generator=generator, dtype=torch.float64)
    v = torch.randn(sum(lengths), generator=generator, dtype=torch.float64)
    a = packed_egae(r, v, pack, gamma=0.999)
    expected = torch.empty_like(a)
    for i, (start, end) in enumerate(
        zip(pack.cu_lengths[:-1].tolist(), pack.cu_lengths[1:].tolist(), strict=True)
    ):
        later, v_next = 0.0, 0.0 if pack.finished[i] else v[end - 1].item()
        for t in range(end - 1, start - 1, -1):
            delta = r[t].item() + 0.999 * v_next - v[t].item()
            later = delta + 0.999 * pack.lam[i].item() * later
            expected[t], v_next = later, v[t].item()
    torch.testing.assert_close(a, expected, rtol=1e-11, atol=1e-11)


def test_a_window_with_nan_does_not_touch_its_neighbours() -> None:
    pack = segments_of([2, 3, 2], finished=[False, False, True], lam=0.5)
    v = f64([0.1, 0.2, float("nan"), 0.3, float("inf"), 0.4, 0.5])
    a = packed_egae(torch.zeros(7, dtype=torch.float64), v, pack, gamma=1.0)
    assert torch.isfinite(a).tolist() == [True, True, False, False, False, True, True]


def test_an_empty_window_takes_no_token() -> None:
    pack = segments_of([2, 0, 1], finished=[False, True, False], lam=1.0)
    v = f64([0.1, 0.2, 0.3])
    close(packed_egae(torch.zeros_like(v), v, pack, gamma=1.0), [0.1, 0.0, 0.0], atol=1e-12)


# ---- consequences of the closing assumption


@given(window, unit_64ths)
@settings(max_examples=40, deadline=None)
def test_undiscounted_the_last_token_of_a_cut_window_has_no_advantage(
    w: tuple[list[tuple[int, int]], bool, int], lam: int
) -> None:
    values = [v / 192 for _, v in w[0]]
    n = len(values)
    a = egae([0.0] * n, values, gamma=1.0, lam=lam / 64, finished=False)
    assert a[-1].item() == 0.0
    if n > 1:
        shorter = egae(
            [0.0] * (n - 1),
            values[:-1],
            gamma=1.0,
            lam=lam / 64,
            finished=False,
            boundary="bootstrap",
            bootstrap_value=values[-1],
        )
        torch.testing.assert_close(a[:-1], shorter, rtol=0, atol=1e-12)


@given(window)
@settings(max_examples=40, deadline=None)
def test_with_lambda_one_the_signal_is_the_change_of_mind(
    w: tuple[list[tuple[int, int]], bool, int],
) -> None:
    r, v = [x / 64 for x, _ in w[0]], [x / 64 for _, x in w[0]]
    a = egae(r, v, gamma=1.0, lam=1.0, finished=False)
    close(a, [v[-1] - v[t] + sum(r[t:]) for t in range(len(v))], atol=1e-12)
    constant = egae([0.0] * len(v), [0.3] * len(v), gamma=1.0, lam=1.0, finished=False)
    assert not constant.any()


@given(window, st.integers(1, 40), unit_64ths, unit_64ths)
@settings(max_examples=60, deadline=None)
def test_the_distance_to_full_gae_is_known(
    w: tuple[list[tuple[int, int]], bool, int], cut: int, g64: int, lam64: int
) -> None:
    r, v = [x / 64 for x, _ in w[0]], [x / 64 for _, x in w[0]]
    if cut >= len(r):
        return
    g, lam = g64 / 64, lam64 / 64
    full = gae(r, v, gamma=g, lam=lam)
    short = egae(r[:cut], v[:cut], gamma=g, lam=lam, finished=False)
    gap = g * (v[cut] - v[cut - 1]) + g * lam * full[cut].item()
    expected = [(g * lam) ** (cut - 1 - t) * gap for t in range(cut)]
    close(full[:cut] - short, expected, atol=1e-10)


@given(window, unit_64ths, unit_64ths, st.sampled_from(BOUNDARIES))
@settings(max_examples=40, deadline=None)
def test_a_finished_window_is_gae_to_the_bit(
    w: tuple[list[tuple[int, int]], bool, int], g: int, lam: int, boundary: Boundary
) -> None:
    r, v = [x / 192 for x, _ in w[0]], [x / 192 for _, x in w[0]]
    a = egae(r, v, gamma=g / 64, lam=lam / 64, finished=True, boundary=boundary)
    assert torch.equal(a, gae(r, v, gamma=g / 64, lam=lam / 64))


@given(window, unit_64ths, unit_64ths, sixty_fourths)
@settings(max_examples=60, deadline=None)
def test_adding_a_constant_to_all_values(
    w: tuple[list[tuple[int, int]], bool, int], g64: int, lam64: int, c64: int
) -> None:
    r, v = [x / 64 for x, _ in w[0]], [x / 64 for _, x in w[0]]
    n, g, lam, c = len(r), g64 / 64, lam64 / 64, c64 / 64
    lifted = [x + c for x in v]
    cut = {"gamma": g, "lam": lam, "finished": False}
    moved = egae(r, lifted, **cut) - egae(r, v, **cut)  # type: ignore[arg-type]
    shift = [c * (g - 1) * sum((g * lam) ** k for k in range(n - t)) for t in range(n)]
    close(moved, shift, atol=1e-10)
    at_end = gae(r, lifted, gamma=1.0, lam=lam) - gae(r, v, gamma=1.0, lam=lam)
    close(at_end, [-c * lam ** (n - 1 - t) for t in range(n)], atol=1e-10)


# ---- length-adaptive lambda


def adaptive_lambda(length: int, **settings: float) -> float:
    return float(length_adaptive_lambda(length, **settings))


@pytest.mark.parametrize(
    ("length", "clamped", "floored"),
    [
        (1, 0.0, 0.95),
        (8, 0.0, 0.95),
        (20, 0.0, 0.95),
        (21, 0.047619047619, 0.95),
        (25, 0.2, 0.95),
        (40, 0.5, 0.95),
        (100, 0.8, 0.95),
        (200, 0.9, 0.95),
        (400, 0.95, 0.95),
        (401, 0.950124688279, 0.950124688279),
        (1000, 0.98, 0.98),
        (8192, 0.99755859375, 0.99755859375),
        (24576, 0.999186197917, 0.999186197917),
    ],
)
def test_length_adaptive_lambda(length: int, clamped: float, floored: float) -> None:
    assert adaptive_lambda(length, alpha=0.05) == pytest.approx(clamped, abs=1e-12)
    assert adaptive_lambda(length, alpha=0.05, floor=0.95) == pytest.approx(floored, abs=1e-12)


@given(st.lists(st.integers(0, 30000), min_size=1, max_size=5), st.integers(1, 99))
def test_length_adaptive_lambda_of_several_is_that_of_each(
    lengths: list[int], percent: int
) -> None:
    alpha = percent / 100
    tensor = length_adaptive_lambda(torch.tensor(lengths), alpha=alpha, floor=0.3)
    assert tensor.tolist() == [adaptive_lambda(n, alpha=alpha, floor=0.3) for n in lengths]
    exact = [
        reference.length_adaptive_lambda(n, Fraction(percent, 100), Fraction(3, 10))
        for n in lengths
    ]
    close(tensor, [float(x) for x in exact], atol=1e-12)


def test_length_adaptive_lambda_of_one_token() -> None:
    assert adaptive_lambda(1, alpha=10.0) == 0.9


def test_length_adaptive_lambda_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="alpha"):
        adaptive_lambda(10, alpha=0.0)
    for floor in (-0.1, 1.1):
        with pytest.raises(ValueError, match="floor"):
            adaptive_lambda(10, alpha=0.05, floor=floor)
    assert [adaptive_lambda(50, alpha=0.05, floor=floor) for floor in (0.0, 1.0)] == [0.6, 1]


@pytest.mark.parametrize(
    ("length", "lam", "expected"),
    [
        (4, 0.5, [0.25, 0.3, 0.4, 0.6]),
        (
            8,
            0.75,
            [0.3733032227, 0.3644042969, 0.3525390625, 0.33671875, 0.315625, 0.2875, 0.25, 0.2],
        ),
    ],
)
def test_worked_examples_of_the_adaptive_lambda(
    length: int, lam: float, expected: list[float]
) -> None:
    assert adaptive_lambda(length, alpha=0.5) == lam
    rewards = [0.0] * (length - 1) + [1.0]
    values = [(k + 1) / 10 for k in range(length)]
    close(gae(rewards, values, gamma=1.0, lam=lam), expected, atol=1e-10)


def test_unfinished_responses_are_credited_half_a_window() -> None:
    so_far = torch.tensor([8192, 16384, 3000, 300])
    length = credited_length(so_far, torch.tensor([False, False, True, True]), window=8192)
    assert length.tolist() == [12288, 20480, 3000, 300]
    lam = length_adaptive_lambda(length, alpha=0.05, floor=0.95)
    close(lam, [0.998372395833, 0.9990234375, 0.993333333333, 0.95], atol=1e-12)


# ---- whitening


G2_ADVANTAGES = [0.278125, 0.1875, 0.25, 0.0]


def test_whitening_leaves_boundary_tokens_out() -> None:
    a = f64(G2_ADVANTAGES)
    everything = torch.ones(4, dtype=torch.bool)
    close(whiten(a, everything), [0.7928624024, 0.0686731215, 0.5681140049, -1.4296495287], 1e-10)
    kept = torch.tensor([True, True, True, False])
    close(whiten(a, kept), [0.8533382843, -1.1003572613, 0.247018977, 0.0], 1e-10)


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.booleans()), min_size=2, max_size=30).filter(
        lambda x: len({round(a, 3) for a, m in x if m}) > 1
    ),
    st.integers(0, 30),
)
@settings(deadline=None)
def test_whitening_is_the_same_however_the_batch_is_split(
    tokens: list[tuple[float, bool]], cut: int
) -> None:
    a, mask = f64([x for x, _ in tokens]), torch.tensor([m for _, m in tokens])
    whole = whiten(a, mask, clamp=1.5)
    expected = reference.whiten(a.tolist(), mask.tolist(), 1e-8)
    close(whole, [min(max(x, -1.5), 1.5) for x in expected], atol=1e-7)
    total = moments(a[:cut], mask[:cut]) + moments(a[cut:], mask[cut:])
    parts = [
        whiten(a[s], mask[s], clamp=1.5, batch_moments=total)
        for s in (slice(None, cut), slice(cut, None))
    ]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-9)


def test_whitening_equal_numbers_survives_a_variance_below_zero() -> None:
    equal = torch.full((5,), 1e8 / 7, dtype=torch.float64)  # whose squares round so far
    assert torch.isfinite(whiten(equal, torch.ones(5, dtype=torch.bool))).all()


def test_whitening_one_token_changes_nothing() -> None:
    mask = torch.tensor([False, True, False])
    assert whiten(f64([3.0, 0.7, 2.0]), mask).tolist() == [0.0, 0.7, 0.0]
    assert whiten(f64([3.0]), torch.tensor([False])).tolist() == [0.0]
    assert whiten(f64([float("nan"), 1.0, 2.0]), torch.tensor([False, True, True]))[0] == 0.0


def test_segments_of_describes_first_windows_by_default() -> None:
    pack: Segments = segments_of([3, 2], finished=[True, False])
    assert pack.cu_lengths.tolist() == [0, 3, 5]
    assert pack.length_so_far.tolist() == [3, 2]
    assert pack.lam.tolist() == [1.0, 1.0]
