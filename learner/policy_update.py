"""The policy half of one update: the policy's optimizer steps on the windows.

In: windows with their advantages. Out: optimizer steps, logprobs under the weights of the update's
start, and what the loss saw. Promise: proximal logprobs are those of the update's start; the first
optimizer step gives its own, the others come from one pass before it, and only if the ratio
reads them.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.protocol.messages import Batch
from learner.aggregation import token_mean_weights, weighted_sum
from learner.algorithm import Algorithm
from learner.batch import (
    MicroBatch,
    PolicyHalf,
    Totals,
    deal,
    policy_reads,
    steps_of,
)
from learner.engines import Engine, StepLog
from learner.inference import infer
from learner.penalties import entropy_bonus, positive_likelihood, positive_mask
from learner.place import Place
from learner.policy_losses import PolicyLoss
from learner.ratios import Ratio
from learner.segments import segment_ids, segment_sums

STREAM = 0


class Seen(NamedTuple):
    """What the loss saw of some tokens [N], without gradient."""

    ratio: Ratio
    loss: PolicyLoss
    advantages: Tensor
    mask: Tensor
    entropy: Tensor


class PolicyUpdate:
    """The policy's part of one update.

    Attributes:
        start: [T] logprobs under the weights of the update's start; where `exact` is False, those
            of the token's first forward pass, some optimizer steps later.
        exact: [T] bool.
        seen: what the loss saw, of all optimizer steps.
        log: the optimizer steps.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        engine: Engine,
        place: Place,
        batch: Batch,
        windows: PolicyHalf,
        totals: Totals,
        *,
        parts: int,
    ) -> None:
        """`parts`: optimizer steps in one pass over the windows."""
        self._algorithm, self._engine, self._place = algorithm, engine, place
        self._update, self._windows, self._totals = batch.update, windows, totals
        self._parts = parts
        self._reads_of_ranks = [
            windows.reads if r == place.rank else policy_reads(shard.windows)
            for r, shard in enumerate(batch.shards)
        ]
        self._dealt, self._plan = self._deal(epoch=0)
        self._ids = segment_ids(windows.segments)
        sizes = windows.segments.finished.numel()
        self._sample_tokens = segment_sums(windows.mask, self._ids, sizes)
        self._positive = positive_mask(
            windows.mask, windows.scores, windows.segments.finished, self._ids
        )
        self._behaviour = windows.behaviour.to(place.dtype)
        self.start = torch.full_like(self._behaviour, math.nan)
        self.exact = torch.zeros_like(windows.mask)
        self.seen: list[Seen] = []
        self.log = StepLog()

    def begin(self) -> None:
        """Proximal logprobs of what the first optimizer step does not run itself."""
        if self._algorithm.uses_proximal:
            trajectories = self._windows.reads.trajectories
            later = [s for s, t in enumerate(trajectories) if self._dealt[t] > 0]
            self.start = infer(self._engine, self._windows.reads, later, self._place, log=self.log)
            self.exact = ~self.start.isnan()

    def train(self, advantages: Tensor, *, epochs: int) -> None:
        """All optimizer steps of the update; `advantages` [T] as the loss sees them."""
        for epoch in range(epochs):
            if epoch and self._parts > 1:
                _, self._plan = self._deal(epoch=epoch)
            for micros in self._plan:
                for i, micro in enumerate(micros):
                    loss = self._loss(micro, advantages)
                    self.log.losses.append(loss.detach())
                    self._engine.backward(loss, last=i == len(micros) - 1)
                self.log.take(self._engine)

    def _deal(self, *, epoch: int) -> tuple[dict[int, int], list[list[MicroBatch]]]:
        seed = self._place.seed_of(self._update, STREAM, epoch)
        dealt = deal(self._reads_of_ranks, parts=self._parts, seed=seed)
        return dealt, steps_of(self._reads_of_ranks, dealt, self._place, parts=self._parts)

    def _loss(self, micro: MicroBatch, advantages: Tensor) -> Tensor:
        """The micro-batch's part of the optimizer step's loss."""
        pack, tokens = micro
        algorithm, totals = self._algorithm, self._totals
        new, entropy = self._engine(pack, entropy_gradient=algorithm.entropy_coef != 0.0)
        self.log.count(pack, reads=tokens.numel())
        start = self._start_of(tokens, new.detach())
        mask, ids = self._windows.mask[tokens], self._ids[tokens]
        ratio = algorithm.ratio(new, start, self._behaviour[tokens], mask)
        token_loss = algorithm.policy_loss(ratio.log_ratio, advantages[tokens])
        weights = algorithm.aggregate(
            mask,
            ids,
            tokens=totals.policy_tokens,
            samples=totals.policy_samples,
            sample_tokens=self._sample_tokens,
        )
        loss = weighted_sum(ratio.weight * token_loss.loss, weights)
        if algorithm.entropy_coef:
            share = token_mean_weights(mask, global_tokens=totals.policy_tokens)
            loss = loss + algorithm.entropy_coef * weighted_sum(entropy_bonus(entropy), share)
        if algorithm.positive_nll_coef:
            positive = self._positive[tokens]
            share = token_mean_weights(positive, global_tokens=totals.positive_tokens)
            likelihood = weighted_sum(positive_likelihood(new), share)
            loss = loss + algorithm.positive_nll_coef * likelihood
        detached = Ratio(ratio.log_ratio.detach(), ratio.weight, ratio.over_cap)
        silent = token_loss._replace(loss=token_loss.loss.detach())
        self.seen.append(Seen(detached, silent, advantages[tokens], mask, entropy.detach()))
        return loss * self._parts

    def _start_of(self, tokens: Tensor, now: Tensor) -> Tensor:
        """Logprobs at the update's start, of which the first forward pass of a token decides."""
        known = self.start[tokens]
        start = torch.where(known.isnan(), now, known)
        self.start[tokens] = start
        if not self.log.taken:
            self.exact[tokens] = True
        return start


def joined(seen: Sequence[Seen], like: PolicyHalf) -> Seen:
    """One `Seen` of all."""
    if not seen:
        nothing = like.behaviour[:0]
        never = like.mask[:0]
        return Seen(
            Ratio(nothing, nothing, never),
            PolicyLoss(nothing, never, never, never),
            nothing,
            never,
            nothing,
        )
    ratios, losses, advantages, masks, entropies = zip(*seen, strict=True)
    return Seen(
        Ratio(*map(torch.cat, zip(*ratios, strict=True))),
        PolicyLoss(*map(torch.cat, zip(*losses, strict=True))),
        torch.cat(advantages),
        torch.cat(masks),
        torch.cat(entropies),
    )
