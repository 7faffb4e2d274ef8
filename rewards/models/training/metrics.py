"""Figures of a reward model on held-out examples.

In: scores and what is true of them. Out: dicts of JSON types: `loss`, `accuracy`, `examples`,
`calibration` (reliability bins, ECE, Brier) and an objective's own; None without a value. No torch.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

BINS = 10
Floats = npt.NDArray[np.float64]
UnitOutputs = Sequence[tuple[float, ...]]
"""Numbers that a model gives for each unit."""


def of_answers(judged: UnitOutputs) -> dict[str, Any]:
    """Figures of (summed cross-entropy, tokens) of answers, by tokens."""
    entropy, tokens = np.array(judged, np.float64).reshape(-1, 2).T
    loss = float(entropy.sum() / tokens.sum())
    return {"examples": len(judged), "loss": loss, "perplexity": math.exp(min(loss, 700.0))}


def of_scores(judged: UnitOutputs, margins: Sequence[float]) -> dict[str, Any]:
    """Figures of (chosen, rejected) scores.

    Every pair is a forecast of both orders, so bins are symmetric; only the loss has the
    margins."""
    scores = np.array(judged, np.float64).reshape(-1, 2)
    difference = scores[:, 0] - scores[:, 1]
    p = np.exp(-np.logaddexp(0.0, -difference))  # sigma
    loss = np.logaddexp(0.0, np.array(margins, np.float64) - difference)
    both, outcome = np.concatenate([p, 1 - p]), np.repeat([1.0, 0.0], len(p))
    return {
        "examples": len(judged),
        "loss": _mean(loss),
        "accuracy": _mean((difference > 0) + 0.5 * (difference == 0)),
        "mean_difference": _mean(difference),
        "calibration": calibration(both, outcome),
    }


def of_orders(judged: UnitOutputs, *, weight: float) -> dict[str, Any]:
    """Figures of (p(yes) with the better answer first, with it second, cross-entropy)."""
    front, back, entropy = np.array(judged, np.float64).reshape(-1, 3).T
    r = (front + 1 - back) / 2
    first, second = float((front > 0.5).mean()), float((back < 0.5).mean())
    forecasts, outcome = np.concatenate([front, back]), np.repeat([1.0, 0.0], len(front))
    return {
        "examples": len(judged),
        "loss": _mean(entropy + weight * (front + back - 1) ** 2),
        "accuracy": _mean((r > 0.5) + 0.5 * (r == 0.5)),
        "position_bias": {
            "accuracy_better_first": first,
            "accuracy_better_second": second,
            "gap": abs(first - second),
            "bias": abs(float((front + back).mean()) - 1),
        },
        "calibration": calibration(forecasts, outcome),
    }


def of_lines(judged: UnitOutputs, labels: UnitOutputs) -> dict[str, Any]:
    """Figures of scores at line ends, by their labels.

    Accuracy, area and calibration are of labels 1 and -1; a score s forecasts 1 by (1 + s) / 2."""
    scores = np.array([score for row in judged for score in row], np.float64)
    wanted = np.array([label for row in labels for label in row], np.float64)
    clear = wanted != 0
    clear_scores, good = scores[clear], (wanted[clear] > 0).astype(np.float64)
    right = (clear_scores > 0) == (good > 0)
    return {
        "examples": len(judged),
        "lines": len(scores),
        "loss": _mean((scores - wanted) ** 2),
        "mse": _mean((scores - wanted) ** 2),
        "mse_of_mean": float(wanted.var()),
        "accuracy": _mean(right),
        "auc": area(clear_scores, good),
        "calibration": calibration((1 + clear_scores.clip(-1, 1)) / 2, good),
    }


def calibration(forecasts: Floats, outcomes: Floats) -> dict[str, Any]:
    """Reliability in bins, expected calibration error and Brier score.

    Bins have equal width, none is empty; the error: mean distance of forecast and share, by bin."""
    if not len(forecasts):
        return {"bins": [], "ece": None, "brier": None}
    places = np.minimum((forecasts * BINS).astype(int), BINS - 1)
    bins: list[dict[str, Any]] = []
    error = 0.0
    for place in range(BINS):
        inside = places == place
        count = int(inside.sum())
        if not count:
            continue
        forecast, share = float(forecasts[inside].mean()), float(outcomes[inside].mean())
        error += abs(forecast - share) * count / len(forecasts)
        bins.append(
            {"from": place / BINS, "to": (place + 1) / BINS, "count": count, "forecast": forecast,
             "share": share}
        )  # fmt: skip
    return {"bins": bins, "ece": error, "brier": _mean((forecasts - outcomes) ** 2)}


def area(scores: Floats, positive: Floats) -> float | None:
    """Share of (positive, negative) pairs that are in order, ties half, or None."""
    good = int(positive.sum())
    bad = len(positive) - good
    if not good or not bad:
        return None
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[places]
    wins = float(ranks[positive > 0].sum()) - good * (good + 1) / 2
    return wins / (good * bad)


def flat(found: dict[str, Any]) -> dict[str, float | None]:
    """The single numbers of figures, those of nested ones too, by their own names; no bins."""
    numbers: dict[str, float | None] = {}
    for name, value in found.items():
        if isinstance(value, dict):
            numbers |= flat(value)
        elif value is None or isinstance(value, int | float):
            numbers[name] = value
    return numbers


def _mean(values: npt.NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None
