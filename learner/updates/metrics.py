"""Metrics of one update (see headrace/metrics/registry.py), merged over all ranks.

In: the tallies of the models' parts of an update. Out: floats. Promises: every rank gets the same
numbers, however the batch was cut into ranks and micro-batches; a figure without data is absent,
never 0 or NaN.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import torch
from torch import Tensor

from headrace.protocol.fields import Metric
from learner.algorithms.segment_advantages import WindowAdvantages
from learner.batching.batch import LossCounts
from learner.device import RankContext
from learner.models.deepspeed_engine import StepLog
from learner.models.prefix_cache import PrefixCache
from learner.updates.model_update import ModelUpdate
from learner.updates.token_statistics import Tally, as_vectors, from_vectors, merge
from learner.updates.token_statistics_table import finalise, spreads

_COMPUTED = {"actor": "perf/policy_tokens", "critic": "perf/value_tokens"}
"""Metric of a model's computed tokens, by the prefix of its figures."""


class Stopwatch:
    """Seconds by name, as timing_s/ metrics."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time inside to `name`."""
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def figures(self) -> dict[str, float]:
        """Return all of them, and the time since the beginning as `update`."""
        whole = {"update": time.perf_counter() - self._began}
        return {f"timing_s/{name}": s for name, s in (self.seconds | whole).items()}


def figures_of(
    models: Sequence[ModelUpdate],
    seen: WindowAdvantages,
    *,
    totals: LossCounts,
    place: RankContext,
    carried: Sequence[PrefixCache] = (),
) -> dict[str, Metric]:
    """Return all metrics of the update but times.

    Args:
        models: those that it trained. seen: the windows' advantages and values. carried: keys and
        values of each model, if they are carried over.
    """
    tallies = [tally for model in models for tally in model.tallies(seen)]
    tallies += [_log_tally(model.prefix, model.log, place.device) for model in models]
    if carried:
        counts = Counter(bytes=sum(store.num_bytes for store in carried))
        for store in carried:
            counts.update(asdict(store.figures))
        tallies.append(Tally(_scalars("carried", counts, place.device), {}))
    merged = merge(tallies)
    if place.world > 1:
        total, largest = (x.to(place.device) for x in as_vectors(merged))
        merged = from_vectors(merged, place.total(total), place.largest(largest))
    sums = {name: value.item() for name, value in merged.sums.items()}
    figures = finalise(merged) | spreads(merged)
    for model in models:
        figures |= _engine_figures(model, sums)
    figures |= _work_figures([model.prefix for model in models], sums, totals)
    if carried:
        names = ("bytes", "hits", "misses")
        figures |= {f"perf/carried_{name}": sums[f"carried/{name}"] for name in names}
        figures["perf/carried_recomputed_tokens"] = sums["carried/recomputed"]
        if sums["carried/carried"]:
            figures["perf/carried_age"] = sums["carried/age"] / sums["carried/carried"]
    return figures


def _engine_figures(model: ModelUpdate, sums: Mapping[str, float]) -> dict[str, float]:
    """Learning rate, applied and dropped steps, mean loss and gradient norm of the steps."""
    log, prefix = model.log, model.prefix
    figures = {
        f"{prefix}/steps": float(log.applied),
        f"{prefix}/skipped_steps": float(log.dropped),
        f"{prefix}/lr": model.engine.lr,
    }
    if log.taken:
        figures[f"{prefix}/{model.loss_figure}"] = sums[f"{prefix}/loss"] / log.taken
    if log.grad_norm is not None:
        figures[f"{prefix}/grad_norm"] = log.grad_norm
    return figures


def _log_tally(prefix: str, log: StepLog, device: torch.device) -> Tally:
    nothing = torch.zeros((), device=device)
    losses = torch.stack(log.losses).to(torch.float64).sum() if log.losses else nothing
    counts = {name: getattr(log, name) for name in ("tokens", "fillers", "trained", "reads")}
    sums = _scalars(prefix, counts, losses.device)
    return Tally(sums | {f"{prefix}/loss": losses.to(torch.float64)}, {})


def _scalars(prefix: str, counts: Mapping[str, int], device: torch.device) -> dict[str, Tensor]:
    return {
        f"{prefix}/{name}": torch.tensor(float(n), dtype=torch.float64, device=device)
        for name, n in counts.items()
    }


def _work_figures(
    prefixes: Sequence[str], sums: Mapping[str, float], totals: LossCounts
) -> dict[str, float]:
    """Tokens that went through models, and their shares in loss, context or padding."""
    tokens, fillers = (
        sum(sums[f"{prefix}/{name}"] for prefix in prefixes) for name in ("tokens", "fillers")
    )
    figures = {"perf/loss_tokens": float(totals.policy_tokens), "perf/computed_tokens": tokens}
    figures |= {_COMPUTED[prefix]: sums[f"{prefix}/tokens"] for prefix in prefixes}
    if tokens:
        figures["perf/useful_share"] = 1.0 - fillers / tokens
    if sums["actor/trained"]:
        # The last token of a shared prompt is read once for each of its responses.
        share = 1.0 - sums["actor/reads"] / sums["actor/trained"]
        figures["perf/context_share"] = max(0.0, share)
    return figures
