"""The value half of one update: values for the advantages, then the critic's optimizer steps.

In: finished trajectories, and the windows whose advantages need values. Out: values under the
weights of the update's start, and optimizer steps towards the targets. Promises: sequences that the
first optimizer step runs forward are not run a second time for their start values; targets and old
values never change within the update.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from headrace.protocol.messages.control import Batch
from learner.algorithms.aggregation import weighted_sum
from learner.algorithms.registry import ValueSlots
from learner.algorithms.segment_advantages import WindowAdvantages
from learner.batching.batch import PolicyHalf, Totals, ValueHalf
from learner.batching.packing import ranges
from learner.batching.segments import segment_ids, segment_lengths
from learner.batching.token_reads import as_the_critic_reads, reads_of, sampled_windows, with_cuts
from learner.device import Place
from learner.models.deepspeed_engine import Engine
from learner.models.inference import infer
from learner.models.microbatches import MicroBatch
from learner.models.prefix_cache import PrefixCache
from learner.updates.model_update import ModelUpdate, StartOutputs
from learner.updates.token_statistics import Tally, tally_spread, tally_values, window_cuts


class CriticUpdate(ModelUpdate):
    """The critic's part of one update: `prepare`, `first_pass`, `values_of`, then `train`.

    Attributes:
        start: [T] values of the finished trajectories' tokens at the update's start. targets: [T]
        what the critic should have said.
    """

    name, prefix, loss_figure, stream = "value model", "critic", "vf_loss", 1

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
        window: int,
        carried: PrefixCache | None = None,
    ) -> None:
        """`parts`: most optimizer steps in one pass over the trajectories. `window`: most tokens of
        a window, where a finished answer was cut before. `carried`: keys and values of what stands
        before windows of unfinished answers; whole answers need none."""
        super().__init__(engine, finished.reads, place, batch, parts=parts, step="value step")
        self._slots, self._finished, self._totals = slots, finished, totals
        self._window, self._carried = window, carried
        self._ids = segment_ids(finished.segments)
        self._lengths = segment_lengths(finished.segments)
        nothing = torch.zeros_like(finished.rewards, dtype=place.dtype)
        self.start = StartOutputs(nothing, torch.zeros_like(nothing, dtype=torch.bool))
        self.targets = self._extra = nothing

    def prepare(self, windows: PolicyHalf | None, *, at_cuts: bool) -> None:
        """Run forward what the advantages of `windows` and the targets need, except for the
        sequences of the first optimizer step, which runs them itself."""
        own = set(self._finished.reads.trajectories)
        everything = [] if windows is None else windows.windows
        asked = {w.trajectory_id for w in everything}
        self._extra = self.targets[:0]
        if windows is not None:
            others = [w for w in everything if w.trajectory_id not in own]
            sequences = as_the_critic_reads(windows.sequences)
            reads = reads_of(sequences, others, sampled_windows(sequences, others))
            if at_cuts:
                reads = with_cuts(reads, sequences, others)
            self._extra = infer(
                self.engine,
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
        old = infer(self.engine, self._finished.reads, rest, self._place, log=self.log)
        known = torch.from_numpy(self._finished.reads.within(rest)).to(self._place.device)
        self.start = StartOutputs(old, known)
        rewards, segments = self._finished.rewards, self._finished.segments
        self.targets = self._slots.targets(rewards, old, segments).targets

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """What the value model has said of windows, and is to say of answers."""
        return {"values and value targets": torch.cat([self._extra, self.targets])}

    def values_of(self, windows: PolicyHalf, *, at_cuts: bool) -> tuple[Tensor, Tensor | None]:
        """Values under the weights of the update's start.

        Returns:
            [T] V at each token of the windows, and [S] V(s_l) after each window that is cut if
            `at_cuts`: where the rest of the trajectory is known, just before the policy's next
            token (V(s_{l-1}) if it wrote none), else after the window's last position.
        """
        tokens, cuts = self._sources(windows, at_cuts=at_cuts)
        known = torch.cat([self.start.numbers, self._extra, self._extra.new_zeros(1)])
        return known[tokens], known[cuts] if at_cuts else None

    def loss(self, micro: MicroBatch) -> Tensor:
        """Forward, and the error against the targets."""
        pack, tokens = micro
        values = self.engine(pack)
        self.log.count(pack, reads=tokens.numel())
        old = self.start.first(tokens, values.detach(), exact=not self.log.taken)
        weights = self._slots.aggregate(
            torch.ones_like(tokens, dtype=torch.bool),
            self._ids[tokens],
            tokens=self._totals.value_tokens,
            samples=self._totals.value_samples,
            sample_tokens=self._lengths,
        )
        return weighted_sum(self._slots.loss(values, old, self.targets[tokens]), weights)

    def tallies(self, seen: WindowAdvantages) -> list[Tally]:
        """How well it predicts, and what it was to predict."""
        finished, old = self._finished, self.start.numbers
        known = self.start.known & old.isfinite()
        cuts = window_cuts(finished.positions, finished.segments, window=self._window)
        values, all_of = old, known
        if seen.values is not None and self._totals.policy_tokens:
            values, all_of = seen.values, torch.ones_like(seen.values, dtype=torch.bool)
        return [
            tally_values(old, self.targets, known, finished.segments, cuts=cuts),
            tally_spread("critic/returns", self.targets, known),
            tally_spread("critic/values", values, all_of),
        ]

    def _sources(self, windows: PolicyHalf, *, at_cuts: bool) -> tuple[Tensor, Tensor]:
        """Where each token's and each cut's value stands in old + extra + [0]; what stands for
        V(s_l) at the end of an answer is never read."""
        offsets = self._finished.answers
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
