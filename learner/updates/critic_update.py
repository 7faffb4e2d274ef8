"""The value half of one update: values for the advantages, then the critic's optimizer steps.

In: finished trajectories, and the windows whose advantages need values. Out: values under the
weights of the update's start, and optimizer steps towards the targets. Promises: sequences that the
first optimizer step runs forward are not run a second time for their start values; targets and old
values never change within the update.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headrace.protocol.messages.control import Batch
from learner.algorithms.aggregation import weighted_sum
from learner.algorithms.registry import ValueSlots
from learner.batching.batch import PolicyHalf, Totals, ValueHalf
from learner.batching.packing import ranges
from learner.batching.segments import segment_ids, segment_lengths
from learner.batching.token_reads import as_the_critic_reads, reads_of, sampled_windows, with_cuts
from learner.device import Place
from learner.models.deepspeed_engine import Engine, StepLog
from learner.models.inference import infer
from learner.models.microbatches import MicroBatch, Steps
from learner.models.prefix_cache import Carried

STREAM = 1


class CriticUpdate:
    """The critic's part of one update: `begin`, `first_pass`, `values_of`, then `train`.

    Attributes:
        old: [T] values of the finished trajectories' tokens at the update's start. known: [T] bool,
        where `old` holds a value; elsewhere nothing has needed one yet. targets: [T] what the
        critic should have said. log: the optimizer steps.
    """

    def __init__(
        self,
        slots: ValueSlots,
        engine: Engine,
        place: Place,
        batch: Batch,
        finished: ValueHalf,
        totals: Totals,
        *,
        parts: int,
        carried: Carried | None = None,
    ) -> None:
        """`parts`: most optimizer steps in one pass over the trajectories. `carried`: keys and
        values of what stands before windows of unfinished answers; whole answers need none."""
        self._slots, self._engine, self._place = slots, engine, place
        self._update, self._finished, self._totals = batch.update, finished, totals
        self._parts, self._carried = parts, carried
        self._steps = Steps(finished.reads, place, parts=parts)
        self._dealt, self._plan = self._deal(epoch=0)
        self._ids = segment_ids(finished.segments)
        self._first_is_accumulated = False
        self.old = torch.zeros_like(finished.rewards, dtype=place.dtype)
        self.known = torch.zeros_like(finished.rewards, dtype=torch.bool)
        self.targets = self.old
        self.log = StepLog(place.work, f"update {batch.update}: value step")

    def begin(self, windows: PolicyHalf | None, *, at_cuts: bool) -> None:
        """Run forward what the advantages of `windows` and the targets need, except for the
        sequences of the first optimizer step, which runs them itself."""
        own = set(self._finished.reads.trajectories)
        everything = [] if windows is None else windows.windows
        asked = {w.trajectory_id for w in everything}
        self._extra = self.old[:0]
        if windows is not None:
            others = [w for w in everything if w.trajectory_id not in own]
            sequences = as_the_critic_reads(windows.sequences)
            reads = reads_of(sequences, others, sampled_windows(sequences, others))
            if at_cuts:
                reads = with_cuts(reads, sequences, others)
            self._extra = infer(
                self._engine,
                reads,
                range(len(reads.token_ids)),
                self._place,
                log=self.log,
                carried=self._carried,
            )
        rest = [
            s
            for s, t in enumerate(self._finished.reads.trajectories)
            if self._slots.targets_read_old
            or (self._dealt[t] > 0 and (self._slots.reads_old or t in asked))
        ]
        self.old = infer(self._engine, self._finished.reads, rest, self._place, log=self.log)
        self.known = torch.from_numpy(self._finished.reads.within(rest)).to(self._place.device)
        self.targets = self._slots.targets(
            self._finished.rewards, self.old, self._finished.segments
        ).targets

    @property
    def inputs(self) -> Tensor:
        """[N] what is known before the first step and must be finite."""
        return torch.cat([self._extra, self.targets])

    def first_pass(self, *, sound: bool) -> None:
        """Accumulate the gradient of the first optimizer step, which also gives the start values of
        its sequences. `sound` is False where an input is not finite: the gradient then becomes NaN,
        so that all ranks throw this step away."""
        if self._plan:
            self._accumulate(self._plan[0], sound=sound)
            self._first_is_accumulated = True

    def values_of(self, windows: PolicyHalf, *, at_cuts: bool) -> tuple[Tensor, Tensor | None]:
        """Values under the weights of the update's start.

        Returns:
            [T] V at each token of the windows, and [S] V(s_l) after each window that is cut if
            `at_cuts`: where the rest of the trajectory is known, just before the policy's next
            token (V(s_{l-1}) if it wrote none), else after the window's last position.
        """
        tokens, cuts = self._sources(windows, at_cuts=at_cuts)
        known = torch.cat([self.old, self._extra, self._extra.new_zeros(1)])
        return known[tokens], known[cuts] if at_cuts else None

    def train(self, *, epochs: int) -> None:
        """Take all optimizer steps of the update, up to the first that is thrown away."""
        self.log.planned = epochs * len(self._plan)
        for epoch in range(epochs):
            if epoch and self._parts > 1:
                _, self._plan = self._deal(epoch=epoch)
            for micros in self._plan:
                if not self._first_is_accumulated:
                    self._accumulate(micros)
                self._first_is_accumulated = False
                if not self.log.take(self._engine):
                    return

    def _deal(self, *, epoch: int) -> tuple[dict[int, int], list[list[MicroBatch]]]:
        dealt = self._steps.deal(seed=self._place.seed_of(self._update, STREAM, epoch))
        return dealt, self._steps.cut(dealt)

    def _accumulate(self, micros: Sequence[MicroBatch], *, sound: bool = True) -> None:
        segments, totals = self._finished.segments, self._totals
        scale = len(self._plan) if sound else math.nan
        lengths = segment_lengths(segments)
        for i, (pack, tokens) in enumerate(micros):
            values = self._engine(pack)
            self.log.count(pack, reads=tokens.numel())
            before = self.old[tokens]
            old = torch.where(self.known[tokens], before, values.detach().to(before.dtype))
            self.old[tokens] = old
            self.known[tokens] = True
            loss = self._slots.loss(values, old, self.targets[tokens])
            weights = self._slots.aggregate(
                torch.ones_like(tokens, dtype=torch.bool),
                self._ids[tokens],
                tokens=totals.value_tokens,
                samples=totals.value_samples,
                sample_tokens=lengths,
            )
            total = weighted_sum(loss, weights * scale)
            self.log.losses.append(total.detach())
            self._engine.backward(total, last=i == len(micros) - 1)

    def _sources(self, windows: PolicyHalf, *, at_cuts: bool) -> tuple[Tensor, Tensor]:
        """Where each token's and each cut's value stands in old + extra + [0]; what stands for
        V(s_l) at the end of an answer is never read."""
        offsets = self._finished.segments.cu_lengths.tolist()
        own = {t: s for s, t in enumerate(self._finished.reads.trajectories)}
        counts = windows.sampled.lengths
        next_extra = offsets[-1]
        next_cut = next_extra + sum(
            count
            for window, count in zip(windows.windows, counts.tolist(), strict=True)
            if window.trajectory_id not in own
        )
        starts = np.empty(counts.size, np.int64)
        cuts = np.empty(counts.size, np.int64)
        for i, (window, count) in enumerate(zip(windows.windows, counts.tolist(), strict=True)):
            answer = own.get(window.trajectory_id)
            if answer is None:
                starts[i], cuts[i] = next_extra, next_cut
                next_extra += count
                next_cut += at_cuts
            else:
                cut = offsets[answer] + window.length
                starts[i] = cut - count
                cuts[i] = cut if cut < offsets[answer + 1] else max(cut - 1, offsets[answer])
        device = self._place.device
        return torch.from_numpy(ranges(starts, counts)).to(device), torch.from_numpy(cuts).to(
            device
        )
