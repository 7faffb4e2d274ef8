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


def capped(rho: Number, cap: float, over_cap: str) -> Number:
    """min(rho, C); or, with "mask", rho up to C and 0 beyond."""
    return rho if rho <= cap else cap if over_cap == "clamp" else 0.0


def decoupled(
    new: Number,
    proximal: float,
    behaviour: float,
    a: float,
    low: float,
    high: float,
    dual: float | None,
    cap: float,
    over_cap: str,
) -> Number:
    """w * L_clip(pi_theta / pi_prox), w = pi_prox / pi_behav, capped; one token.

    Token-level TIS is the same with pi_prox = pi_old by the trainer, pi_behav = mu by the sampler.
    """
    w = capped(math.exp(proximal - behaviour), cap, over_cap)
    return w * clipped_surrogate(new - proximal, a, low, high, dual)


def sequence_weight(old: Sequence[float], mu: Sequence[float], cap: float, over_cap: str) -> Number:
    """prod_t pi_old / mu of one response, capped: the weight of each of its tokens."""
    product = 1.0
    for x, y in zip(old, mu, strict=True):
        product *= math.exp(x) / math.exp(y)
    return capped(product, cap, over_cap)


def geometric_mean(old: Sequence[float], mu: Sequence[float]) -> float:
    """(prod_t pi_old / mu)^(1/T) of one response."""
    product = 1.0
    for x, y in zip(old, mu, strict=True):
        product *= (math.exp(x) / math.exp(y)) ** (1 / len(old))
    return product


def interpolated_proximal(new: float, behaviour: float, v_behav: int, v_new: int) -> float:
    """pi_behav^(1 - alpha) pi_new^alpha, alpha = (v_prox - v_behav) / (v_new - v_behav) in [0, 1],
    v_prox = v_new - 1, alpha = 0 for a token that is not older; its logarithm; one token."""
    if v_behav >= v_new:
        return behaviour
    alpha = min(1.0, max(0.0, (v_new - 1 - v_behav) / (v_new - v_behav)))
    return math.log(math.exp(behaviour) ** (1 - alpha) * math.exp(new) ** alpha)


def positive_nll(right_answers: Sequence[Sequence[Number]]) -> Number:
    """-1 / (sum over right answers of |o_i|) sum_i sum_t log pi; 0 if there is none."""
    tokens = sum(len(answer) for answer in right_answers)
    return -sum(sum(answer) for answer in right_answers) / tokens if tokens else 0.0


def rewards_with_kl(r: Sequence[float], kls: Sequence[float], beta: float) -> list[float]:
    """r_t - beta KL_t."""
    return [x - beta * k for x, k in zip(r, kls, strict=True)]


def clipped_squared_error(v: Number, v_old: float, r: float, low: float, high: float) -> Number:
    """Half of max((v-R)^2, (clip(v)-R)^2); one token."""
    bounded = v_old - low if v < v_old - low else v_old + high if v > v_old + high else v
    return max((v - r) ** 2, (bounded - r) ** 2) / 2


def kl(new: Number, ref: float, estimator: str) -> Number:
    """k1, k2, k3 with x = pi_ref / pi_new, or with "+" their value and k2's gradient; one token.
    k3 is at most 10."""
    log_x = ref - new
    k3 = (log_x.exp() - 1 - log_x).clamp(max=10.0)
    ks = {"k1": -log_x, "k2": log_x**2 / 2, "k3": k3}
    if not estimator.endswith("+"):
        return ks[estimator]
    return ks[estimator[:-1]].detach() + ks["k2"] - ks["k2"].detach()


def entropy(p: Sequence[float]) -> float:
    """-sum p log p."""
    return -sum(x * math.log(x) for x in p if x > 0)


def token_mean(losses: Sequence[Sequence[Number]]) -> Number:
    """1 / (sum_i |o_i|) sum_i sum_t."""
    return sum(sum(sample) for sample in losses) / sum(len(sample) for sample in losses)


def sample_mean(losses: Sequence[Sequence[Number]]) -> Number:
    """1/G sum_i 1/|o_i| sum_t."""
    return sum(sum(sample) / len(sample) for sample in losses) / len(losses)


def fixed_length(losses: Sequence[Sequence[Number]], longest: int) -> Number:
    """1/G sum_i 1/L sum_t."""
    return sum(sum(sample) / longest for sample in losses) / len(losses)


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
