"""The policy half of one update: the policy's optimizer steps on the windows.

In: windows with their advantages. Out: optimizer steps, logprobs under the weights of the update's
start, and what the loss saw. Promise: proximal logprobs are those of the update's start; the first
optimizer step computes those of its own tokens, and one pass before it computes the others, only if
the ratio or the correction of a hot token reads them.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headrace.protocol.messages.control import Batch
from learner.algorithms.aggregation import token_mean_weights, weighted_sum
from learner.algorithms.penalties import entropy_bonus, positive_likelihood
from learner.algorithms.policy_losses import PolicyLoss
from learner.algorithms.ratio_choice import Tokens
from learner.algorithms.ratios import Ratio
from learner.algorithms.registry import Algorithm
from learner.batching.batch import PolicyHalf, Totals
from learner.batching.segments import segment_ids, segment_sums
from learner.batching.token_reads import with_earlier_tokens
from learner.device import Place
from learner.models.deepspeed_engine import Engine, StepLog
from learner.models.inference import infer
from learner.models.microbatches import MicroBatch, Steps
from learner.models.prefix_cache import Carried

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

    Where the algorithm asks for the likelihood of right answers, the tokens of their earlier
    windows follow the windows' T tokens: E tokens that have a likelihood but neither ratio nor
    advantage.

    Attributes:
        reference: [T] logprobs of the reference, None without one. seen: what the loss saw, of all
        optimizer steps. log: the optimizer steps.
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
        reference: Callable[..., Any] | None = None,
        carried: Carried | None = None,
        carried_of_reference: Carried | None = None,
    ) -> None:
        """`parts`: most optimizer steps in one pass over the windows. `reference`: the starting
        policy, where the algorithm asks for a divergence from it. `carried`: keys and values of
        what stands before the windows, the engine's and the reference's."""
        self._algorithm, self._engine, self._place = algorithm, engine, place
        self._update, self._version = batch.update, batch.version
        self._windows, self._totals, self._parts = windows, totals, parts
        self._ask_reference = reference
        self._carried, self._carried_of_reference = carried, carried_of_reference
        self._reads = windows.reads
        if algorithm.positive_nll_coef != 0.0:
            self._reads = with_earlier_tokens(windows.reads, windows.sequences, windows.windows)
        self._steps = Steps(self._reads, place, parts=parts, carried=carried)
        self._dealt, self._plan = self._deal(epoch=0)
        ids, self._samples = segment_ids(windows.segments), windows.segments.finished.numel()
        self._size = ids.numel()
        self._ids = self._with_earlier(ids, 0)
        self._mask = self._with_earlier(windows.mask, False)
        self._positive = self._with_earlier(windows.right[ids], True)
        self._weights = self._of_all(windows.weights, 0.0)
        self._behaviour = self._with_earlier(windows.behaviour.to(place.dtype), 0.0)
        self._versions = self._with_earlier(windows.versions, self._version)
        self._sample_tokens = segment_sums(windows.mask, ids, self._samples)
        self._start = torch.zeros_like(self._behaviour)
        self._known, self._exact = torch.zeros_like(self._mask), torch.zeros_like(self._mask)
        self._over_cap, self._dropped = torch.zeros_like(self._mask), torch.zeros_like(self._mask)
        self._hot = self._with_earlier(windows.hot & windows.mask, False)
        self._corrects = algorithm.correct_hot is not None and bool(self._hot.any())
        self._hot_over_cap = torch.zeros_like(self._mask)
        self.reference: Tensor | None = None
        self._reference = torch.zeros_like(self._behaviour)
        coef = windows.kl_coef
        self._kl_coef = self._of_all(coef if isinstance(coef, Tensor) else None, 0.0)
        self.seen: list[Seen] = []
        self.log = StepLog(place.work, f"update {batch.update}: step")

    @property
    def start(self) -> Tensor:
        """[T] logprobs under the weights of the update's start; where `exact` is False, those of
        the token's first forward pass, some optimizer steps later."""
        return self._start[: self._size]

    @property
    def known(self) -> Tensor:
        """[T] bool: `start` holds a logprob; elsewhere no forward pass has read the token."""
        return self._known[: self._size]

    @property
    def exact(self) -> Tensor:
        """[T] bool: `start` is really of the update's start."""
        return self._exact[: self._size]

    @property
    def over_cap(self) -> Tensor:
        """[T] bool: the weight was truncated or the token dropped for it."""
        return self._over_cap[: self._size]

    @property
    def dropped(self) -> Tensor:
        """[T] bool: tokens of the mask that trained with weight 0."""
        return self._dropped[: self._size]

    @property
    def hot_over_cap(self) -> Tensor:
        """[T] bool: hot tokens whose importance weight the cap has cut."""
        return self._hot_over_cap[: self._size]

    def begin(self) -> None:
        """Proximal logprobs of what the first optimizer step does not run itself, and the
        reference's."""
        proximal, corrects = self._algorithm.uses_proximal, self._algorithm.correct_hot is not None
        # A collective: whether this rank has hot tokens does not decide.
        if proximal or corrects:
            asked = range(len(self._reads.trajectories)) if proximal else self._hot_sequences()
            later = [s for s in asked if self._dealt[self._reads.trajectories[s]] > 0]
            self._start = infer(
                self._engine, self._reads, later, self._place, log=self.log, carried=self._carried
            )
            self._known = torch.from_numpy(self._reads.within(later)).to(self._place.device)
            self._exact = self._known.clone()
        if self._ask_reference is not None:
            reads = self._windows.reads
            everything = range(len(reads.token_ids))
            self.reference = infer(
                self._ask_reference,
                reads,
                everything,
                self._place,
                log=self.log,
                carried=self._carried_of_reference,
            )
            self._reference = self._with_earlier(self.reference, 0.0)

    def train(self, advantages: Tensor, *, epochs: int, sound: bool) -> None:
        """Take all optimizer steps of the update, up to the first that is thrown away. `advantages`
        [T] are those that the loss sees. `sound` is False where an input is not finite: the losses
        then become NaN, so that all ranks throw the first step away."""
        advantages = self._with_earlier(advantages, 0.0)
        self.log.planned = epochs * len(self._plan)
        for epoch in range(epochs):
            if epoch and self._parts > 1:
                _, self._plan = self._deal(epoch=epoch)
            for micros in self._plan:
                scale = len(self._plan) if sound else math.nan
                for i, micro in enumerate(micros):
                    loss = self._loss(micro, advantages) * scale
                    self.log.losses.append(loss.detach())
                    self._engine.backward(loss, last=i == len(micros) - 1)
                if not self.log.take(self._engine):
                    return

    def _hot_sequences(self) -> list[int]:
        """The sequences with a hot token in the loss."""
        hot = self._reads.sequence_of[self._hot.cpu().numpy()]
        return [int(sequence) for sequence in np.unique(hot)]

    def _deal(self, *, epoch: int) -> tuple[dict[int, int], list[list[MicroBatch]]]:
        dealt = self._steps.deal(seed=self._place.seed_of(self._update, STREAM, epoch))
        return dealt, self._steps.cut(dealt)

    def _of_all(self, x: Tensor | None, fill: float) -> Tensor | None:
        """`_with_earlier` in the type of the loss; None stays None."""
        return None if x is None else self._with_earlier(x.to(self._place.dtype), fill)

    def _with_earlier(self, x: Tensor, fill: float) -> Tensor:
        """x [T] and `fill` for the E tokens behind it."""
        missing = self._reads.position_of.size - x.numel()
        return torch.cat([x, x.new_full((missing,), fill)])

    def _loss(self, micro: MicroBatch, advantages: Tensor) -> Tensor:
        """The micro-batch's part of the optimizer step's loss."""
        pack, tokens = micro
        algorithm = self._algorithm
        new, entropy = self._engine(pack, entropy_gradient=algorithm.entropy_coef != 0.0)
        if self._carried is not None:
            self._carried.take(pack.layout.past)
        self.log.count(pack, reads=int((tokens < self._size).sum()))
        start = self._start_of(tokens, new.detach())
        behaviour, loss_weights = self._sampled_by(tokens, start)
        facts = Tokens(
            new=new,
            start=start,
            behaviour=behaviour,
            versions=self._versions[tokens],
            mask=self._mask[tokens],
            segment_ids=self._ids[tokens],
            num_segments=self._samples,
            learner_version=self._version,
        )
        ratio = algorithm.ratio(facts)
        seen_advantages = advantages[tokens]
        token_loss = algorithm.policy_loss(ratio.log_ratio, seen_advantages)
        surrogate = ratio.weight * token_loss.loss
        loss = self._terms(facts, tokens, surrogate, entropy, loss_weights)
        self._over_cap[tokens] = ratio.over_cap
        self._dropped[tokens] = facts.mask & (ratio.weight == 0)
        detached = Ratio(ratio.log_ratio.detach(), ratio.weight, ratio.over_cap)
        silent = token_loss._replace(loss=token_loss.loss.detach())
        self.seen.append(Seen(detached, silent, seen_advantages, facts.mask, entropy.detach()))
        return loss

    def _sampled_by(self, tokens: Tensor, start: Tensor) -> tuple[Tensor, Tensor | None]:
        """Behaviour logprobs [N] and loss weights [N] (None: all 1), hot tokens corrected."""
        behaviour = self._behaviour[tokens]
        weights = None if self._weights is None else self._weights[tokens]
        correct = self._algorithm.correct_hot
        if correct is None or not self._corrects:
            return behaviour, weights
        plain = torch.ones_like(behaviour) if weights is None else weights
        streams = correct(plain, behaviour, start, self._hot[tokens])
        self._hot_over_cap[tokens] = streams.over_cap
        return streams.behaviour, streams.weight

    def _terms(
        self,
        facts: Tokens,
        tokens: Tensor,
        surrogate: Tensor,
        entropy: Tensor,
        loss_weights: Tensor | None,
    ) -> Tensor:
        """The surrogate and whatever is added to it, each over its own tokens. A loss weight
        multiplies every term of its token except the likelihood of right answers."""
        algorithm, totals = self._algorithm, self._totals
        weights = algorithm.aggregate(
            facts.mask,
            facts.segment_ids,
            tokens=totals.policy_tokens,
            samples=totals.policy_samples,
            sample_tokens=self._sample_tokens,
        )
        weights = _weighted(weights, loss_weights)
        loss = weighted_sum(surrogate, weights)
        if algorithm.entropy_coef:
            share = token_mean_weights(facts.mask, global_tokens=totals.policy_tokens)
            share = _weighted(share, loss_weights)
            loss = loss + algorithm.entropy_coef * weighted_sum(entropy_bonus(entropy), share)
        if algorithm.positive_nll_coef:
            positive = self._positive[tokens]
            share = token_mean_weights(positive, global_tokens=totals.positive_tokens)
            likelihood = weighted_sum(positive_likelihood(facts.new), share)
            loss = loss + algorithm.positive_nll_coef * likelihood
        if algorithm.kl is not None and not algorithm.kl.in_reward:
            divergence = algorithm.kl.estimate(facts.new, self._reference[tokens])
            if self._kl_coef is None:
                loss = loss + algorithm.kl.coef * weighted_sum(divergence, weights)
            else:
                loss = loss + weighted_sum(self._kl_coef[tokens] * divergence, weights)
        return loss

    def _start_of(self, tokens: Tensor, now: Tensor) -> Tensor:
        """Logprobs at the update's start. A token without one gets that of its first forward pass,
        `now`."""
        start = torch.where(self._known[tokens], self._start[tokens], now)
        self._start[tokens] = start
        self._known[tokens] = True
        if not self.log.taken:
            self._exact[tokens] = True
        return start


def _weighted(shares: Tensor, loss_weights: Tensor | None) -> Tensor:
    """Shares [N] times the tokens' loss weights; the plain case multiplies nothing."""
    return shares if loss_weights is None else shares * loss_weights


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
