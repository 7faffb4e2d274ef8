"""The policy's part of an update: its loss and optimizer steps on the windows.

In: windows with their advantages. Out: optimizer steps, logprobs under the weights of the update's
start, and the terms of the loss. Promise: proximal logprobs are those of the update's start; the
first optimizer step computes those of its own tokens, and one pass before it computes the others,
only if the ratio or the correction of a hot token reads them.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headrace.protocol.messages.control import Batch
from learner.algorithms.aggregation import token_mean_weights, weighted_sum
from learner.algorithms.policy_losses import LossInputs, PolicyLoss
from learner.algorithms.ratios import Ratio, log_ratio
from learner.algorithms.registry import Algorithm
from learner.algorithms.segment_advantages import WindowAdvantages
from learner.batching.batch import LossCounts, PolicyBatch
from learner.batching.segments import segment_ids, segment_sums
from learner.batching.token_reads import with_earlier_tokens
from learner.device import RankContext
from learner.models.deepspeed_engine import TrainingEngine
from learner.models.inference import infer
from learner.models.microbatches import MicroBatch
from learner.models.prefix_cache import PrefixCache
from learner.updates.model_update import ModelUpdate, StartOutputs
from learner.updates.token_statistics import (
    Tally,
    tally_egae,
    tally_hot,
    tally_mismatch,
    tally_policy,
    tally_reference,
    tally_spread,
    tally_weights,
)


class LossTerms(NamedTuple):
    """Terms of N tokens' loss, [N] each, without gradient; surrogate unweighted."""

    ratio: Ratio
    surrogate: PolicyLoss
    advantages: Tensor
    mask: Tensor
    new: Tensor
    entropy: Tensor


def policy_loss(algorithm: Algorithm, given: LossInputs) -> tuple[Tensor, LossTerms]:
    """Sum the surrogate and the loss's other terms, each over its own tokens: a scalar with
    gradient, and what it is made of.

    A loss weight multiplies every term of its token except the likelihood of right answers."""
    x = algorithm.hot.correct(given)
    ratio = algorithm.ratio(x)
    surrogate = algorithm.policy_loss(ratio.log_ratio, x.advantages)
    weights = x.weights * algorithm.aggregate(
        x.mask, x.segment_ids,
        tokens=x.all_tokens, samples=x.all_samples, sample_tokens=x.segment_tokens,
    )  # fmt: skip
    loss = weighted_sum(ratio.weight * surrogate.loss, weights)
    if algorithm.entropy_coef:
        share = x.weights * token_mean_weights(x.mask, global_tokens=x.all_tokens)
        loss = loss + algorithm.entropy_coef * weighted_sum(-x.entropy, share)
    if algorithm.positive_nll_coef:
        # Over all tokens of the batch's right answers, 0 without any: VAPO Eq. 9-10, weight 0.1.
        share = token_mean_weights(x.right, global_tokens=x.all_right)
        loss = loss + algorithm.positive_nll_coef * weighted_sum(-x.new, share)
    if algorithm.kl is not None and not algorithm.kl.in_reward:
        divergence = algorithm.kl.estimate(x.new, x.reference)
        loss = loss + weighted_sum(x.kl_coef * divergence, weights)
    made_of = LossTerms(
        ratio=ratio._replace(log_ratio=ratio.log_ratio.detach()),
        surrogate=surrogate._replace(loss=surrogate.loss.detach()),
        advantages=x.advantages,
        mask=x.mask,
        new=x.new.detach(),
        entropy=x.entropy.detach(),
    )
    return loss, made_of


class PolicyUpdate(ModelUpdate):
    """The policy's part of an update: `prepare`, `set_advantages`, then `train`.

    Where the loss has the likelihood of right answers, the tokens of their earlier
    windows follow the windows' T tokens: E tokens that have a likelihood but neither ratio nor
    advantage.

    Attributes:
        start: [T + E] logprobs under the weights of the update's start. reference: [T] logprobs of
        the reference, None without one. seen: the tokens and loss terms of each micro-batch.
    """

    name, prefix, loss_figure, stream = "policy", "actor", "pg_loss", 0

    def __init__(
        self,
        algorithm: Algorithm,
        engine: TrainingEngine,
        place: RankContext,
        batch: Batch,
        windows: PolicyBatch,
        totals: LossCounts,
        *,
        parts: int,
        carried: PrefixCache | None = None,
    ) -> None:
        """`parts`: maximum optimizer steps per pass. `carried`: keys before the windows."""
        reads = windows.reads
        if algorithm.positive_nll_coef != 0.0:
            reads = with_earlier_tokens(reads, windows.sequences, windows.windows)
        super().__init__(engine, reads, place, batch, parts=parts, step="step", carried=carried)
        self._algorithm, self._windows, self._totals = algorithm, windows, totals
        self._carried = carried
        ids = segment_ids(windows.segments)
        self._segment_tokens = segment_sums(windows.mask, ids, windows.segments.finished.numel())
        behaviour = windows.behaviour.to(place.dtype)
        self._tokens = {
            "behaviour": self._with_earlier(behaviour, 0.0),
            "versions": self._with_earlier(windows.versions, batch.version),
            "mask": self._with_earlier(windows.mask, False),
            "hot": self._with_earlier(windows.hot & windows.mask, False),
            "right": self._with_earlier(windows.right[ids], True),
            "weights": self._with_earlier(_of_each(windows.weights, 1.0, behaviour), 0.0),
            "kl_coef": self._with_earlier(_of_each(windows.kl_coef, 0.0, behaviour), 0.0),
            "segment_ids": self._with_earlier(ids, 0),
        }
        nothing = torch.zeros_like(self._tokens["behaviour"])
        self.start = StartOutputs(nothing, torch.zeros_like(nothing, dtype=torch.bool))
        # Set later: the reference's logprobs and the advantages.
        self._tokens |= {"reference": nothing, "advantages": nothing}
        self.reference: Tensor | None = None
        self._size = behaviour.numel()
        self.seen: list[tuple[Tensor, LossTerms]] = []

    def prepare(self, reference: Callable[..., Any] | None, carried: PrefixCache | None) -> None:
        """Compute `reference`'s logprobs, and proximal ones but the first step's.

        That is the starting policy, if the algorithm has a divergence; `carried`: its keys."""
        algorithm, reads = self._algorithm, self._reads
        # A collective: whether this rank has hot tokens does not decide.
        if algorithm.uses_proximal or algorithm.hot.reads_start:
            asked = np.arange(len(reads.trajectories))
            if not algorithm.uses_proximal:
                asked = np.unique(reads.sequence_of[self._tokens["hot"].cpu().numpy()])
            later = [int(s) for s in asked if self._dealt[reads.trajectories[s]] > 0]
            self.start = StartOutputs(
                infer(self.engine, reads, later, self._place, log=self.log, carried=self._carried),
                torch.from_numpy(reads.within(later)).to(self._place.device),
            )
        if reference is not None:
            own = self._windows.reads
            everything = range(len(own.token_ids))
            self.reference = infer(
                reference, own, everything, self._place, log=self.log, carried=carried
            )
            self._tokens["reference"] = self._with_earlier(self.reference, 0.0)

    def set_advantages(self, advantages: Tensor) -> None:
        """Set the windows' advantages [T]."""
        self._tokens["advantages"] = self._with_earlier(advantages, 0.0)

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """Loss weights, the generator's and the reference's logprobs, and rewards."""
        windows, mask = self._windows, self._windows.mask
        nothing = windows.rewards[:0]
        return {
            "loss weights": nothing if windows.weights is None else windows.weights[mask],
            "generator's logprobs": windows.behaviour[mask],
            "rewards": windows.rewards,
            "reference's logprobs": nothing if self.reference is None else self.reference[mask],
        }

    def loss(self, micro: MicroBatch) -> Tensor:
        """Run the pack forward; return its `policy_loss`."""
        pack, tokens = micro
        gradient = self._algorithm.entropy_coef != 0.0
        new, entropy = self.engine(pack, entropy_gradient=gradient)
        if self._carried is not None:
            self._carried.store(pack.layout.past)
        self.log.count(pack, reads=int((tokens < self._size).sum()))
        given = LossInputs(
            new=new,
            entropy=entropy,
            start=self.start.first(tokens, new.detach(), exact=not self.log.taken),
            learner_version=self._batch.version,
            segment_tokens=self._segment_tokens,
            all_tokens=self._totals.policy_tokens,
            all_samples=self._totals.policy_samples,
            all_right=self._totals.positive_tokens,
            **{name: column[tokens] for name, column in self._tokens.items()},
        )
        loss, made_of = policy_loss(self._algorithm, given)
        self.seen.append((tokens, made_of))
        return loss

    def tallies(self, seen: WindowAdvantages) -> list[Tally]:
        """Return the tallies of loss terms, weights, and mismatch of learner and sampler."""
        windows, size = self._windows, self._size
        start, known, exact = (
            x[:size] for x in (self.start.numbers, self.start.known, self.start.exact)
        )
        behaviour = windows.behaviour.to(start.dtype)
        # A hot token's sampler is another one on purpose: its ratio says nothing of age or engine.
        known = windows.mask & ~windows.hot & known & start.isfinite()
        difference = log_ratio(start, behaviour, known)
        read = self.read()
        over_cap = self._of_tokens(lambda terms: terms.ratio.over_cap)
        dropped = self._of_tokens(lambda terms: terms.mask & (terms.ratio.weight == 0))
        weights = Ratio(difference, torch.where(known, difference.exp(), 0.0), over_cap)
        tallies = [
            tally_policy(*read),
            tally_weights(weights, start, behaviour, known, dropped=dropped),
            tally_mismatch(start, behaviour, known & windows.same_version & exact),
            tally_hot(
                start, behaviour, windows.hot,
                known=exact, trained=windows.mask, cap=self._algorithm.hot.cap,
            ),
            tally_spread("critic/advantages", seen.advantages, windows.mask),
        ]  # fmt: skip
        if self.reference is not None:
            tallies.append(tally_reference(start, self.reference, known))
        if seen.values is not None:
            tallies.append(tally_egae(seen.values, seen.raw, windows.segments))
        return tallies

    def read(self) -> LossTerms:
        """Return the terms of all tokens of a loss, in the order of computation."""
        nothing, never = self.start.numbers[:0], self._windows.mask[:0]
        ratios, losses, *others = zip(
            LossTerms(
                Ratio(nothing, nothing, never), PolicyLoss(nothing, never, never, never),
                nothing, never, nothing, nothing,
            ),
            *(terms for _, terms in self.seen),
            strict=True,
        )  # fmt: skip
        return LossTerms(
            Ratio(*map(torch.cat, zip(*ratios, strict=True))),
            PolicyLoss(*map(torch.cat, zip(*losses, strict=True))),
            *map(torch.cat, others),
        )

    def _of_tokens(self, get: Callable[[LossTerms], Tensor]) -> Tensor:
        """[T] bool, by each token's last loss; False where it was in none."""
        found = torch.zeros_like(self._tokens["mask"])
        for tokens, terms in self.seen:
            found[tokens] = get(terms)
        return found[: self._size]

    def _with_earlier(self, x: Tensor, fill: float) -> Tensor:
        """[T + E] x [T] and `fill` for the E tokens behind it."""
        missing = self._reads.position_of.size - x.numel()
        return torch.cat([x, x.new_full((missing,), fill)])


def _of_each(x: Tensor | float | None, otherwise: float, like: Tensor) -> Tensor:
    """[T] x in the type of `like`, or that number; None: `otherwise`."""
    if isinstance(x, Tensor):
        return x.to(like.dtype)
    return torch.full_like(like, otherwise if x is None else x)
