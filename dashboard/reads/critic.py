"""Figures of the value model, from a sample of tokens.

In: a `storage.queries.CriticSample`, discount and boundary rule of the run. Out: a `CriticReport`
of small frames. Pure: numbers in, numbers out. V is the value before a token, R what came from it
on (shaped, discounted). Errors of means count answers and not tokens, for all tokens of an answer
share what it earned.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from storage.queries import CriticSample

Floats = npt.NDArray[np.float64]
TENTHS = 10
BINS = 12
MORE, LESS, ALL = "answers that earned more", "answers that earned less", "all answers"
RULES = ("copy", "bootstrap", "terminal")
"""Settings of `algorithm.advantages.boundary` that guess."""
_DISTANCES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_CUT_NUMBERS = 8
_NOTHING = 1e-12


class Mean(NamedTuple):
    """A mean and its standard error; NaN where there is none."""

    mean: float
    error: float


class AdvantageCorrelation(NamedTuple):
    """A correlation over windows; None where one side does not vary."""

    correlation: float | None
    windows: int


@dataclass(frozen=True)
class CriticReport:
    """Figures of the updates from `first` to `last`, from `answers` of `of` answers.

    Attributes:
        tokens, cuts: how many the figures are of. explained: 1 - Var(R - V) / Var(R) over tokens;
        None where all returns are the same. bias: mean of V - R over tokens. cut_bias, cut_rmse: of
        what the rule in force assumed less what came, over cuts. along, calibration, tenths,
        numbers, rules, costs, ends, worth: see their functions. reach: tokens over which the
        weight of a reward in an advantage halves; None: it does not.
    """

    first: int
    last: int
    answers: int
    of: int
    tokens: int
    cuts: int
    explained: float | None
    bias: Mean
    cut_bias: Mean
    cut_rmse: float
    along: pd.DataFrame
    calibration: pd.DataFrame
    tenths: pd.DataFrame
    numbers: pd.DataFrame
    rules: pd.DataFrame
    costs: pd.DataFrame
    ends: pd.DataFrame
    worth: AdvantageCorrelation
    reach: float | None


def report(sample: CriticSample, *, gamma: float, boundary: str) -> CriticReport:
    """Everything that the page shows of a sample, which must have tokens."""
    tokens = sample.tokens.assign(error=sample.tokens["value"] - sample.tokens["return"])
    cuts = sample.cuts.assign(assumed=assumed(sample.cuts, boundary)).dropna(subset=["assumed"])
    cuts = cuts.assign(error=cuts["assumed"] - cuts["realised"])
    return CriticReport(
        first=sample.first,
        last=sample.last,
        answers=sample.answers,
        of=sample.of,
        tokens=len(tokens),
        cuts=len(cuts),
        explained=explained_variance(_floats(tokens["value"]), _floats(tokens["return"])),
        bias=mean_over(tokens),
        cut_bias=mean_over(cuts),
        cut_rmse=_rms(cuts["error"]),
        along=along(tokens),
        calibration=calibration(tokens),
        tenths=tenths(tokens),
        numbers=numbers(cuts),
        rules=rules(sample.cuts),
        costs=costs(tokens, cuts, gamma=gamma),
        ends=ends(tokens),
        worth=worth(tokens, sample.cuts),
        reach=reach(gamma, float(tokens["lam"].mean())),
    )


def assumed(cuts: pd.DataFrame, rule: str) -> Floats:
    """Value that a rule assumes behind each cut; NaN where it was not recorded."""
    match rule:
        case "copy" | "outcome":
            return _floats(cuts["value"])
        case "bootstrap":
            return _floats(cuts["next_value"])
        case _:
            return np.zeros(len(cuts))


def explained_variance(values: Floats, returns: Floats) -> float | None:
    """1 - Var(R - V) / Var(R); None where all returns are the same."""
    spread = float(returns.var()) if len(returns) else 0.0
    if spread <= _NOTHING:
        return None
    return 1.0 - float((returns - values).var()) / spread


def mean_over(rows: pd.DataFrame, column: str = "error") -> Mean:
    """The mean of a column, with a standard error as of answers drawn at random, each with all its
    rows: sqrt(G / (G - 1) sum over answers of (sum of x - mean)^2) / rows, for G answers."""
    if not len(rows):
        return Mean(math.nan, math.nan)
    mean = float(rows[column].mean())
    sums = (rows[column] - mean).groupby(rows["trajectory_id"]).sum()
    if len(sums) < 2:
        return Mean(mean, math.nan)
    error = math.sqrt(float((sums**2).sum()) * len(sums) / (len(sums) - 1)) / len(rows)
    return Mean(mean, error)


def calibration(tokens: pd.DataFrame) -> pd.DataFrame:
    """Columns said, came (means), error (of came), tokens, answers: tokens in bins of equal width
    by their value; the outermost bins also hold the half percent that lies beyond."""
    values = _floats(tokens["value"])
    low, high = (float(v) for v in np.percentile(values, (0.5, 99.5)))
    width = max((high - low) / BINS, _NOTHING)
    places = np.clip(((values - low) / width).astype(np.int64), 0, BINS - 1)
    rows = []
    for _, part in tokens.groupby(places):
        came = mean_over(part, "return")
        rows.append((part["value"].mean(), *came, len(part), part["trajectory_id"].nunique()))
    return pd.DataFrame(rows, columns=["said", "came", "error", "tokens", "answers"])


def along(tokens: pd.DataFrame) -> pd.DataFrame:
    """Columns tenth (1 to 10), which, value, low, high (the middle half of the values), came,
    tokens: tokens by relative position, those of answers that earned more than the mean apart from
    those that earned less."""
    earned = tokens.groupby("trajectory_id")["return"].first()
    mean = float(earned.mean())
    if float(earned.max() - earned.min()) <= _NOTHING:
        which = pd.Series(ALL, index=tokens.index)
    else:
        is_more = tokens["trajectory_id"].map(earned) > mean
        which = is_more.map({True: MORE, False: LESS})
    rows = []
    for (tenth, name), part in tokens.groupby([_tenth(tokens), which]):
        low, high = np.percentile(part["value"], (25, 75))
        middle = part["value"].mean(), low, high, part["return"].mean()
        rows.append((tenth, name, *middle, len(part)))
    return pd.DataFrame(rows, columns=["tenth", "which", "value", "low", "high", "came", "tokens"])


def tenths(tokens: pd.DataFrame) -> pd.DataFrame:
    """Columns tenth (1 to 10), bias, error, rmse (of V - R), explained, advantage, strength (mean
    and mean absolute advantage of the tokens in the loss), tokens."""
    rows = []
    for tenth, part in tokens.groupby(_tenth(tokens)):
        trained = part["advantage"][part["in_loss"]]
        rows.append(
            (
                *(tenth, *mean_over(part), _rms(part["error"])),
                explained_variance(_floats(part["value"]), _floats(part["return"])),
                *(trained.mean(), trained.abs().mean(), len(part)),
            )
        )
    names = ["tenth", "bias", "error", "rmse", "explained", "advantage", "strength", "tokens"]
    return pd.DataFrame(rows, columns=names).astype({"explained": float})


def numbers(cuts: pd.DataFrame) -> pd.DataFrame:
    """Columns cut ("1st", ..., "8th on"), assumed, came (means), error (of their difference),
    cuts: the cuts by how many an answer has had."""
    rows = []
    for number_, part in cuts.groupby(cuts["window"].clip(upper=_CUT_NUMBERS - 1)):
        means = part["assumed"].mean(), part["realised"].mean()
        rows.append((_ordinal(int(number_)), *means, mean_over(part).error, len(part)))
    return pd.DataFrame(rows, columns=["cut", "assumed", "came", "error", "cuts"])


def rules(cuts: pd.DataFrame) -> pd.DataFrame:
    """A row a boundary rule: rule, bias, error, rmse of what it would have assumed less what came.
    All rules are judged on the same cuts, those whose next token was trained; without any there is
    no row."""
    same = cuts.dropna(subset=["next_value"])
    rows = []
    for rule in RULES if len(same) else ():
        wrong = same.assign(error=assumed(same, rule) - same["realised"])
        rows.append((rule, *mean_over(wrong), _rms(wrong["error"]), len(same)))
    return pd.DataFrame(rows, columns=["rule", "bias", "error", "rmse", "cuts"])


def costs(tokens: pd.DataFrame, cuts: pd.DataFrame, *, gamma: float) -> pd.DataFrame:
    """Effect of the assumption at a cut on the advantages before it, by tokens left in the window:
    columns left (text), bias, rmse, noise, tokens.

    With R in the place of what was assumed, EGAE gives a token with k tokens left in its window an
    advantage that is lower by gamma (gamma lambda)^k (assumed - R), before whitening. `noise` is
    the root mean square of V - R at the same tokens: what plain returns would have brought.
    """
    ids = ["trajectory_id", "window"]
    joined = tokens[~tokens["finished"]].merge(
        cuts[[*ids, "error"]], on=ids, suffixes=("", "_at_cut")
    )
    shrunk = gamma * (gamma * joined["lam"]) ** joined["left"]
    joined = joined.assign(cost=shrunk * joined["error_at_cut"])
    groups: Any = joined.groupby(_distance(joined["left"]))
    rows = [
        (_span(first), part["cost"].mean(), _rms(part["cost"]), _rms(part["error"]), len(part))
        for first, part in groups
    ]
    return pd.DataFrame(rows, columns=["left", "bias", "rmse", "noise", "tokens"])


def ends(tokens: pd.DataFrame) -> pd.DataFrame:
    """Mean absolute advantage by tokens left in the window: columns left (text), which (whether the
    window was cut or ends its answer), strength, tokens; of tokens in the loss."""
    trained = tokens[tokens["in_loss"]]
    which = trained["finished"].map({True: "windows that end an answer", False: "cut windows"})
    groups: Any = trained.groupby([_distance(trained["left"]), which])
    rows = [
        (_span(first), name, part["advantage"].abs().mean(), len(part))
        for (first, name), part in groups
    ]
    return pd.DataFrame(rows, columns=["left", "which", "strength", "tokens"])


def worth(tokens: pd.DataFrame, cuts: pd.DataFrame) -> AdvantageCorrelation:
    """Correlation of a window's mean advantage, which the value model alone estimated because the
    window closed before its answer ended, with the final mean return of its tokens."""
    ids = ["trajectory_id", "window"]
    guessed = tokens[tokens["in_loss"]].merge(cuts[ids], on=ids)
    means = guessed.groupby(ids)[["advantage", "return"]].mean()
    if len(means) < 3 or means.std().min() <= _NOTHING:
        return AdvantageCorrelation(None, len(means))
    return AdvantageCorrelation(float(means["advantage"].corr(means["return"])), len(means))


def reach(gamma: float, lam: float) -> float | None:
    """Tokens over which (gamma lambda)^k halves; None where it does not, or at once."""
    decay = gamma * lam
    return math.log(0.5) / math.log(decay) if 0 < decay < 1 else None


# -- parts -----------------------------------------------------------------------------------------


def _tenth(tokens: pd.DataFrame) -> Any:
    """1 to 10: token at position p of L is in tenth floor(10 p / L) + 1."""
    place = tokens["position"] * TENTHS // tokens["length"].clip(lower=1)
    return place.clip(upper=TENTHS - 1) + 1


def _distance(left: "pd.Series[int]") -> Any:
    """The beginning of the range of _DISTANCES that each falls into."""
    starts = np.array(_DISTANCES)
    return starts[np.searchsorted(starts, left.to_numpy(), side="right") - 1]


def _span(first: int) -> str:
    """A range of _DISTANCES as text."""
    place = _DISTANCES.index(first)
    if place + 1 == len(_DISTANCES):
        return f"{first} on"
    last = _DISTANCES[place + 1] - 1
    return f"{first}" if last == first else f"{first} to {last}"


def distance_order(labels: Sequence[str]) -> list[str]:
    """Ranges of tokens left, the farthest from the end first."""
    every = [_span(first) for first in reversed(_DISTANCES)]
    return [label for label in every if label in set(labels)]


def _ordinal(index: int) -> str:
    name = {0: "1st", 1: "2nd", 2: "3rd"}.get(index, f"{index + 1}th")
    return f"{name} on" if index == _CUT_NUMBERS - 1 else name


def _rms(errors: "pd.Series[float]") -> float:
    return math.sqrt(float((errors**2).mean())) if len(errors) else math.nan


def _floats(column: "pd.Series[float]") -> Floats:
    return np.asarray(column, dtype=np.float64)
