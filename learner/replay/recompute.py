"""Recomputation of advantages and returns from stored data, without a model.

In: all of the batch as one share, and for each window the learner's diagnostics. Out: a
`RecomputedBatch`. Promises: the algorithm's own functions compute the numbers; a number that
depends on one that is not stored is NaN, and `lacking` says which and why.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headrace.protocol.fields import Metric
from headrace.protocol.messages.batches import PolicyWindow, Shard
from headrace.protocol.messages.diagnostics import TokenDiagnostics
from headrace.protocol.token_spans import Float32
from learner.algorithms.registry import Algorithm
from learner.algorithms.segment_advantages import halves_of, window_advantages
from learner.batching.batch import PolicyBatch, ValueBatch, loss_counts
from learner.device import RankContext
from learner.updates.token_statistics import Tally, merge, tally_egae, tally_spread
from learner.updates.token_statistics_table import finalise, spreads

Stored = Mapping[int, TokenDiagnostics]
"""The learner's diagnostics, by window."""
_CPU = torch.device("cpu")
NO_DIAGNOSTICS = (
    "token diagnostics of {missing} of {windows} windows are not stored "
    "(storage.token_diagnostics, transport.max_message_mib)"
)
NO_VALUES_AT_CUTS = (
    'the value behind a cut window (algorithm.advantages.boundary = "bootstrap") is not stored'
)
NO_REFERENCE = "the reference's logprobs, which the reward holds (algorithm.kl), are not stored"
NO_WHOLE_VALUES = (
    "values of whole answers, which targets with algorithm.value.gae_lambda_value below 1 read, "
    "are not stored"
)


class RecomputedBatch(NamedTuple):
    """Recomputed numbers of a batch.

    Attributes:
        windows: those of the batch. columns: by name of a token's figure, an array for each window,
        a number for each of its positions; NaN where there is none. lams: the lambda of each
        window. metrics: figures of the update. lacking: by name, why it could not be recomputed.
    """

    windows: list[PolicyWindow]
    columns: dict[str, list[Float32]]
    lams: list[float]
    metrics: dict[str, Metric]
    lacking: dict[str, str]


def recompute(
    algorithm: Algorithm, shard: Shard, stored: Stored, *, version: int
) -> RecomputedBatch:
    """Recompute a batch's advantages; `version`: the learner's at the update's start."""
    windows, finished = halves_of(algorithm, shard, version=version, device=_CPU)
    place = RankContext(device=_CPU)
    values = _values(windows, stored) if algorithm.uses_critic else None
    # NaN goes where a number is missing, and from there into all that rests on it.
    at_cuts = torch.full((len(windows.windows),), math.nan) if algorithm.asks_at_cuts else None
    in_reward = algorithm.kl is not None and algorithm.kl.in_reward
    penalty = torch.full_like(windows.behaviour, math.nan if in_reward else 0.0)
    seen = window_advantages(
        algorithm, place, windows, values=values, at_cuts=at_cuts, penalty=penalty
    )
    columns = {
        "advantages": seen.advantages,
        "returns": torch.where(seen.returns_known, seen.returns, math.nan),
    }
    tallies = [tally_spread("critic/advantages", seen.advantages, windows.mask)]
    if values is not None and windows.windows:
        tallies.append(_all("critic/values", values))
        tallies.append(tally_egae(values, seen.raw, windows.segments))
    if algorithm.value is not None and not (in_reward or algorithm.value.targets_read_old):
        old = torch.zeros_like(finished.rewards)  # which these targets do not read
        targets = algorithm.value.targets(finished.rewards, old, finished.segments).targets
        tallies.append(_all("critic/returns", targets))
    merged = merge(tallies)
    metrics = finalise(merged) | spreads(merged)
    metrics["perf/loss_tokens"] = float(loss_counts(windows, finished, place).policy_tokens)
    return RecomputedBatch(
        windows=windows.windows,
        columns={
            name: windows.sampled.spread(column.to(torch.float32).numpy())
            for name, column in columns.items()
        },
        lams=windows.window_lams(),
        metrics={name: value for name, value in metrics.items() if value == value},
        lacking=_lacking(algorithm, windows, finished, stored),
    )


def _all(name: str, x: Tensor) -> Tally:
    return tally_spread(name, x, torch.ones_like(x, dtype=torch.bool))


def _values(windows: PolicyBatch, stored: Stored) -> Tensor:
    """[T] the stored values, NaN where there are none."""
    found = []
    for window in windows.windows:
        row = stored.get(window.window_id)
        column = None if row is None else row.columns.get("values")
        size = window.end - window.start
        if column is None or column.size != size:
            column = np.full(size, np.nan, np.float32)
        found.append(column)
    return torch.from_numpy(windows.sampled.pick(found, np.float32).copy())


def _lacking(
    algorithm: Algorithm, windows: PolicyBatch, finished: ValueBatch, stored: Stored
) -> dict[str, str]:
    """Return the reasons for NaNs, by figure."""
    lacking: dict[str, str] = {}
    every = windows.windows
    missing = sum(window.window_id not in stored for window in every)
    if missing:
        text = NO_DIAGNOSTICS.format(missing=missing, windows=len(every))
        lacking |= {"advantages": text, "returns": text}
    if algorithm.asks_at_cuts and any(not window.finished for window in every):
        lacking["advantages"] = NO_VALUES_AT_CUTS
    slots, ended = algorithm.value, finished.rewards.numel() > 0
    if algorithm.kl is not None and algorithm.kl.in_reward:
        lacking |= {"advantages": NO_REFERENCE, "returns": NO_REFERENCE}
        if slots is not None and ended:
            lacking["value targets"] = NO_REFERENCE
    elif slots is not None and slots.targets_read_old and ended:
        lacking["value targets"] = NO_WHOLE_VALUES
    return lacking
