"""Slow twins of the learner's mathematics in the papers' notation.

Explicit double sums over plain lists, one token at a time. The arithmetic is whatever the caller
brings: exact fractions, floats, or 0-dim tensors, through which autograd then gives the gradient
that the packed code must have. Nothing here is shared with the learner.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

# int, float, Fraction or a 0-dim tensor.
Number = Any


def deltas(r: Sequence[Number], v: Sequence[Number], v_end: Number, g: Number) -> list[Number]:
    """delta_t = r_t + g V(s_{t+1}) - V(s_t), with V(s_l) = v_end."""
    after = [*v[1:], v_end]
    return [r[t] + g * after[t] - v[t] for t in range(len(r))]


def gae(r: Sequence[Number], v: Sequence[Number], g: Number, lam: Number) -> list[Number]:
    """A_t = sum_k (g lam)^k delta_{t+k}, V(s_T) = 0."""
    return _sums(deltas(r, v, 0, g), g * lam)


def egae(
    r: Sequence[Number],
    v: Sequence[Number],
    g: Number,
    lam: Number,
    finished: bool,
    boundary: str,
    v_end: Number = None,
) -> list[Number]:
    """The same with V(s_l) by the boundary where the window is cut."""
    if not r:
        return []
    closing = {"copy": v[-1], "terminal": 0, "bootstrap": v_end}[boundary]
    return _sums(deltas(r, v, 0 if finished else closing, g), g * lam)


def monte_carlo(r: Sequence[Number], g: Number) -> list[Number]:
    """R_t = sum_k g^k r_{t+k}."""
    return _sums(r, g)


def lambda_return(r: Sequence[Number], v: Sequence[Number], g: Number, lam: Number) -> list[Number]:
    """By definition: (1 - lam) sum_n lam^{n-1} G^(n) + lam^{T-t-1} G^(T-t), no delta in sight."""
    length = len(r)
    out = []
    for t in range(length):
        total: Number = 0
        for n in range(1, length - t):
            n_step = sum(g**i * r[t + i] for i in range(n)) + g**n * v[t + n]
            total = total + (1 - lam) * lam ** (n - 1) * n_step
        last = sum(g**i * r[t + i] for i in range(length - t))
        out.append(total + lam ** (length - t - 1) * last)
    return out


def length_adaptive_lambda(length: int, alpha: Fraction, floor: Fraction) -> Fraction:
    """1 - 1 / (alpha l) in [floor, 1]."""
    return floor if length == 0 else min(Fraction(1), max(floor, 1 - 1 / (alpha * length)))


def group_normalized(rewards: Sequence[float], bessel: bool, eps: float) -> list[float]:
    """(R_i - mean) / (std + eps) of one group."""
    n = len(rewards)
    mean = sum(rewards) / n
    squares = sum((x - mean) ** 2 for x in rewards)
    if squares == 0:
        return [0.0] * n
    std = math.sqrt(squares / (n - 1 if bessel else n))
    return [(x - mean) / (std + eps) for x in rewards]


def leave_one_out(rewards: Sequence[Number]) -> list[Number]:
    """R_i - mean of the others."""
    n = len(rewards)
    return [
        rewards[i] - sum(rewards[j] for j in range(n) if j != i) / (n - 1) if n > 1 else 0
        for i in range(n)
    ]


def whiten(a: Sequence[float], mask: Sequence[bool], eps: float) -> list[float]:
    """(A - mean) / sqrt(var + eps) over the mask, 0 elsewhere; n - 1 in the variance."""
    kept = [x for x, m in zip(a, mask, strict=True) if m]
    mean = sum(kept) / len(kept)
    var = sum((x - mean) ** 2 for x in kept) / (len(kept) - 1)
    return [(x - mean) / math.sqrt(var + eps) if m else 0.0 for x, m in zip(a, mask, strict=True)]


def clipped_surrogate(
    log_r: Number, a: Number, low: float, high: float, dual: float | None
) -> Number:
    """-min(r A, clip(r, 1-low, 1+high) A), and for A < 0 at most c |A|; one token."""
    r = log_r.exp()
    clipped = 1 - low if r < 1 - low else 1 + high if r > 1 + high else r
    objective = min(r * a, clipped * a)
    if dual is not None and a < 0:
        objective = max(objective, dual * a)
    return -objective


def clipped_squared_error(v: Number, v_old: float, r: float, low: float, high: float) -> Number:
    """Half of max((v-R)^2, (clip(v)-R)^2); one token."""
    bounded = v_old - low if v < v_old - low else v_old + high if v > v_old + high else v
    return max((v - r) ** 2, (bounded - r) ** 2) / 2


def kl(new: Number, ref: float, estimator: str) -> Number:
    """k1, k2, k3 with x = pi_ref / pi_new; one token."""
    log_x = ref - new
    return {"k1": -log_x, "k2": log_x**2 / 2, "k3": log_x.exp() - 1 - log_x}[estimator]


def entropy(p: Sequence[float]) -> float:
    """-sum p log p."""
    return -sum(x * math.log(x) for x in p if x > 0)


def token_mean(losses: Sequence[Sequence[Number]]) -> Number:
    """1 / (sum_i |o_i|) sum_i sum_t."""
    return sum(sum(sample) for sample in losses) / sum(len(sample) for sample in losses)


def sample_mean(losses: Sequence[Sequence[Number]]) -> Number:
    """1/G sum_i 1/|o_i| sum_t."""
    return sum(sum(sample) / len(sample) for sample in losses) / len(losses)


def overlong(length: int, longest: int, cache: int) -> Fraction:
    """DAPO's soft punishment."""
    if length <= longest - cache:
        return Fraction(0)
    if length <= longest:
        return Fraction(longest - cache - length, cache)
    return Fraction(-1)


def explained_variance(v: Sequence[float], r: Sequence[float]) -> float:
    """1 - Var(R - V) / Var(R)."""

    def variance(x: Sequence[float]) -> float:
        mean = sum(x) / len(x)
        return sum((y - mean) ** 2 for y in x) / len(x)

    return 1 - variance([a - b for a, b in zip(r, v, strict=True)]) / variance(r)


def _sums(terms: Sequence[Number], decay: Number) -> list[Number]:
    length = len(terms)
    return [
        sum((decay**k * terms[t + k] for k in range(length - t)), start=0 * decay)
        for t in range(length)
    ]
