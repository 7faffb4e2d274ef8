"""One update: optimizer steps of policy and value model on a batch, and metrics.

In: a `Batch`, the same on all ranks, and this rank's share of it. Out: an `UpdateOutcome`: metrics,
diagnostics, and whether the weights moved. Promises: values and logprobs of the update's start are
those of its first weights; policy and value model step independently; ranks do the same collectives
in the same order whatever their shards hold; how the batch is cut into ranks, parts and
micro-batches changes nothing but rounding. A number that is not finite ends the update: no rank
takes a further optimizer step, and none takes any where the number is found before the first one.

With `learner.context = "carried"` what stands before a window is read from keys and values of
earlier updates (`learner.models.prefix_cache`): then two updates in a row are not the same as the
second alone, until `forget` is called or the lineage changes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headrace.config.sections.learner import LearnerConfig
from headrace.protocol.fields import Metric
from headrace.protocol.messages.batches import Shard
from headrace.protocol.messages.control import Batch
from headrace.protocol.messages.diagnostics import COLUMN_NAMES, TokenDiagnostics
from learner.algorithms.registry import Algorithm
from learner.algorithms.segment_advantages import WindowAdvantages, halves_of, window_advantages
from learner.batching.batch import PolicyBatch, ValueBatch, loss_counts
from learner.device import RankContext
from learner.models.deepspeed_engine import StepLog, TrainingEngine
from learner.models.inference import infer
from learner.models.prefix_cache import PrefixCache
from learner.updates.critic_update import CriticUpdate, critic_update_class
from learner.updates.metrics import Stopwatch, figures_of
from learner.updates.model_update import ModelUpdate
from learner.updates.policy_update import PolicyUpdate
from learner.updates.ranker_update import RankerSetup, RankerUpdate


@dataclass(frozen=True)
class UpdateOutcome:
    """Result of an update.

    Attributes:
        metrics: figures by metric name, the same on all ranks. diagnostics: of this rank's windows.
        policy_moved: at least one optimizer step of the policy was applied. skipped: what was not
        finite, so that the update was broken off; else None. Optimizer steps before that stay in
        the weights, and nothing of it is published.
    """

    metrics: dict[str, Metric]
    diagnostics: list[TokenDiagnostics]
    policy_moved: bool
    skipped: str | None


class Updater:
    """Runner of updates on one rank; its state is in engines and carried keys."""

    def __init__(
        self,
        algorithm: Algorithm,
        policy: TrainingEngine,
        critic: TrainingEngine | None,
        config: LearnerConfig,
        place: RankContext,
        *,
        reference: Callable[..., Any] | None = None,
        ranker: RankerSetup | None = None,
    ) -> None:
        """`critic` is needed for a value model, `reference` for a divergence.

        The reference is a constant policy's forward pass. `ranker`: is trained along."""
        if (algorithm.value is None) != (critic is None):
            raise ValueError("an algorithm with a value model needs a critic, one without none")
        if (algorithm.kl is None) != (reference is None):
            raise ValueError("an algorithm with a divergence needs a reference, one without none")
        self._algorithm, self._policy = algorithm, policy
        self._critics = [(algorithm.value, critic)] if algorithm.value and critic else []
        self._reference = reference
        self._rankers = [ranker] if ranker else []
        self._config, self._place = config, place
        self._lineage: int | None = None
        models = {"policy": policy, "critic": critic, "reference": reference}
        self.carried: dict[str, PrefixCache] = {}
        if config.context == "carried":
            names = [name for name, model in models.items() if model is not None]
            bound, device = config.carried_gib * 2**30, config.carried_on_device_gib * 2**30
            share = len(names)
            self.carried = {
                name: PrefixCache(bound=int(bound / share), on_device=int(device / share))
                for name in names
            }

    def forget(self) -> None:
        """Carry nothing over: the next update computes every token that it reads."""
        for carried in self.carried.values():
            carried.forget()

    def run(self, batch: Batch, shard: Shard) -> UpdateOutcome:
        """Train on a batch. Every rank calls this with the same batch and its own shard."""
        watch = Stopwatch()
        self._begin_to_carry(batch, shard)
        algorithm, config, place = self._algorithm, self._config, self._place
        windows, finished = halves_of(algorithm, shard, version=batch.version, device=place.device)
        totals = loss_counts(windows, finished, place)
        policy = PolicyUpdate(
            algorithm, self._policy, replace(place, frozen_context=config.context != "full"), batch,
            windows, totals, parts=config.policy.minibatches, carried=self.carried.get("policy"),
        )  # fmt: skip
        with watch.measure("forward"):
            policy.prepare(self._reference, self.carried.get("reference"))
            finished = self._with_penalty(finished, policy.log)
        critics = [
            critic_update_class(engine)(
                slots, engine, place, batch, finished, totals, window=algorithm.window,
                parts=config.value.minibatches, carried=self.carried.get("critic"),
            )
            for slots, engine in self._critics
        ]  # fmt: skip
        models: list[ModelUpdate] = [policy, *critics]
        with watch.measure("value"):
            for critic in critics:
                asked = windows if algorithm.uses_critic else None
                critic.prepare(asked, at_cuts=algorithm.asks_at_cuts)
            inputs = {name: x for model in models for name, x in model.inputs.items()}
            broken = self._not_finite(inputs)
            for critic in critics:
                critic.first_pass(sound=not broken)
        with watch.measure("advantages"):
            seen = self._advantages(windows, policy, critics)
            policy.set_advantages(seen.advantages)
        with watch.measure("value"):
            for critic in critics:
                critic.train(epochs=batch.value_epochs, sound=not broken)
        with watch.measure("policy"):
            sound = not broken and not any(critic.log.dropped for critic in critics)
            policy.train(epochs=config.policy.epochs, sound=sound)
        logs = {model.name: model.log for model in (*critics, policy)}
        rankers = [RankerUpdate(r, place, shard, update=batch.update) for r in self._rankers]
        for ranker in rankers:
            with watch.measure("ranker"):
                ranker.train(sound=sound and not policy.log.dropped)
            logs[ranker.name] = ranker.log
        skipped = self._skipped(broken, windows, policy, logs, seen)
        for carried in (kept := list(self.carried.values())):
            carried.end_update(sound=skipped is None)
        metrics = figures_of(models, seen, totals=totals, place=place, carried=kept)
        for ranker in rankers:
            metrics |= ranker.figures()
        spent, computed = watch.figures(), metrics.pop("perf/computed_tokens")
        assert isinstance(computed, float)
        metrics |= {**spent, "perf/tokens_per_s": computed / spent["timing_s/update"]}
        return UpdateOutcome(
            metrics=metrics,
            diagnostics=_diagnostics(windows, policy, seen),
            policy_moved=policy.log.applied > 0,
            skipped=skipped,
        )

    def _begin_to_carry(self, batch: Batch, shard: Shard) -> None:
        """Begin the update of the carried keys; those of another lineage are dropped."""
        if batch.lineage != self._lineage:
            self.forget()
        self._lineage = batch.lineage
        ended = {w.trajectory_id for w in shard.windows if w.finished}
        ended |= {v.trajectory_id for v in shard.values}
        for carried in self.carried.values():
            carried.begin_update(batch.update, ended)

    def _skipped(
        self,
        broken: str,
        windows: PolicyBatch,
        policy: PolicyUpdate,
        logs: Mapping[str, StepLog],
        seen: WindowAdvantages,
    ) -> str | None:
        """Say why the update was broken off; `broken` are the inputs that were not finite."""
        if broken:
            return f"not finite: {broken}"
        name = next((name for name, log in logs.items() if log.dropped), None)
        if name is None:
            return None
        reason = f"loss or gradient of the {name} is not finite"
        kept = [f"{log.applied} of the {who}" for who, log in logs.items() if log.applied]
        reason = f"{reason}; optimizer steps that stay: {', '.join(kept)}" if kept else reason
        read = policy.read()
        named = self._not_finite({
            "learner's logprobs": read.ratio.log_ratio[read.mask],
            "values": seen.raw[:0] if seen.values is None else seen.values,
            "advantages": seen.raw[windows.mask],
        })  # fmt: skip
        return f"{reason}; not finite already: {named}" if named else reason

    def _not_finite(self, seen: Mapping[str, Tensor]) -> str:
        """Name those that are not finite on some rank; empty if all are finite."""
        counts = torch.stack([(~x.isfinite()).sum() for x in seen.values()])
        found = self._place.total(counts).tolist()
        return ", ".join(f"{name} ({n})" for name, n in zip(seen, found, strict=True) if n)

    def _advantages(
        self, windows: PolicyBatch, policy: PolicyUpdate, critics: Sequence[CriticUpdate]
    ) -> WindowAdvantages:
        algorithm, place = self._algorithm, self._place
        values, at_cuts = None, None
        for critic in critics if algorithm.uses_critic else ():
            values, at_cuts = critic.values_of(windows, at_cuts=algorithm.asks_at_cuts)
        penalty = self._penalty(windows, policy.reference)
        return window_advantages(
            algorithm, place, windows, values=values, at_cuts=at_cuts, penalty=penalty
        )

    def _penalty(self, half: PolicyBatch | ValueBatch, reference: Tensor | None) -> Tensor:
        """[T] each token's reward for its divergence from the reference: <= 0 on average."""
        kl, dtype = self._algorithm.kl, self._place.dtype
        if kl is None or reference is None or not kl.in_reward:
            return torch.zeros_like(half.behaviour, dtype=dtype)
        divergence = kl.estimate(half.behaviour.to(dtype), reference)
        return torch.where(half.behaviour.isfinite(), -half.kl_coef * divergence, 0.0)

    def _with_penalty(self, finished: ValueBatch, log: StepLog) -> ValueBatch:
        """Add the advantages' penalty to the rewards of the value targets."""
        kl, reference = self._algorithm.kl, self._reference
        if kl is None or reference is None or not kl.in_reward or self._algorithm.value is None:
            return finished
        everything = range(len(finished.policy_reads.token_ids))
        logprobs = infer(reference, finished.policy_reads, everything, self._place, log=log)
        penalty = self._penalty(finished, logprobs)
        return replace(finished, rewards=finished.rewards + penalty.to(finished.rewards.dtype))


def _diagnostics(
    windows: PolicyBatch, policy: PolicyUpdate, seen: WindowAdvantages
) -> list[TokenDiagnostics]:
    """Return a column per COLUMN_NAMES, by position; NaN where there is no figure."""
    size = seen.advantages.numel()
    nothing = torch.full_like(policy.start.numbers[:size], math.nan)
    known = policy.start.known[:size]
    figures = {
        "learner_logprobs": torch.where(known, policy.start.numbers[:size], nothing),
        "values": nothing if seen.values is None else seen.values,
        "advantages": seen.advantages,
        "returns": torch.where(seen.returns_known, seen.returns, math.nan),
    }
    columns = {
        name: windows.sampled.spread(figures[name].to(torch.float32).cpu().numpy())
        for name in COLUMN_NAMES
    }
    lams = windows.window_lams()
    return [
        TokenDiagnostics(
            window_id=window.window_id,
            trajectory_id=window.trajectory_id,
            start=window.start,
            lam=lams[i],
            columns={name: column[i] for name, column in columns.items()},
        )
        for i, window in enumerate(windows.windows)
    ]
