"""The value model's part of an update: values, then its optimizer steps or a fit.

In: finished trajectories, and the windows whose advantages need values. Out: values under the
weights of the update's start, and optimizer steps towards the targets, or a head that is fitted to
them. Promises: sequences that the first optimizer step runs forward are not run a second time for
their start values; targets and old values never change within the update.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.protocol.messages.control import Batch
from headrace.trajectory.logprob_statistics import START, STATISTICS, before_each
from learner.algorithms.aggregation import weighted_sum
from learner.algorithms.registry import ValueSlots
from learner.algorithms.segment_advantages import WindowAdvantages
from learner.batching.batch import LossCounts, PolicyBatch, ValueBatch
from learner.batching.packing import ranges
from learner.batching.segments import segment_ids, segment_lengths
from learner.batching.token_reads import (
    TokenReads,
    critic_sequences,
    reads_of,
    sampled_windows,
    with_cuts,
)
from learner.batching.trainable_tokens import Int64
from learner.device import RankContext
from learner.models.deepspeed_engine import TrainingEngine
from learner.models.feature_network import FeatureEngine
from learner.models.inference import infer
from learner.models.microbatches import MicroBatch
from learner.models.prefix_cache import PrefixCache
from learner.updates.model_update import ModelUpdate, StartOutputs
from learner.updates.token_statistics import Tally, tally_spread, tally_values, window_cuts


class CriticUpdate(ModelUpdate):
    """The critic's part of an update: `prepare`, `first_pass`, `values_of`, `train`.

    Attributes:
        start: [T] values of the finished trajectories' tokens at the update's start. targets: [T]
        the value targets.
    """

    name, prefix, loss_figure, stream = "value model", "critic", "vf_loss", 1
    most_parts: ClassVar[int | None] = None
    """Optimizer steps in one pass whatever is configured; None: as configured."""

    def __init__(
        self,
        slots: ValueSlots,
        engine: TrainingEngine,
        place: RankContext,
        batch: Batch,
        finished: ValueBatch,
        totals: LossCounts,
        *,
        parts: int,
        window: int,
        carried: PrefixCache | None = None,
    ) -> None:
        """`parts`: maximum optimizer steps per pass; `window`: maximum tokens of a window.

        Finished answers were cut there. `carried`: keys and values of the tokens before windows of
        unfinished answers; whole answers need none."""
        parts = self.most_parts or parts
        super().__init__(engine, finished.reads, place, batch, parts=parts, step="value step")
        self._slots, self._finished, self._totals = slots, finished, totals
        self._window, self._carried = window, carried
        self._ids = segment_ids(finished.segments)
        self._lengths = segment_lengths(finished.segments)
        nothing = torch.zeros_like(finished.rewards, dtype=place.dtype)
        self.start = StartOutputs(nothing, torch.zeros_like(nothing, dtype=torch.bool))
        self.targets = self._extra = nothing

    def prepare(self, windows: PolicyBatch | None, *, at_cuts: bool) -> None:
        """Compute the values that the advantages of `windows` and the targets need.

        Except for the sequences of the first optimizer step, which runs them itself."""
        own = set(self._finished.reads.trajectories)
        everything = [] if windows is None else windows.windows
        self._extra = self.targets[:0]
        if windows is not None:
            others = [w for w in everything if w.trajectory_id not in own]
            sequences = critic_sequences(windows.sequences)
            reads = reads_of(sequences, others, sampled_windows(sequences, others))
            if at_cuts:
                reads = with_cuts(reads, sequences, others)
            self._extra = self._values_of_others(reads, windows, at_cuts=at_cuts)
        old, known = self._values_of_own({w.trajectory_id for w in everything})
        self.start = StartOutputs(old, known)
        rewards, segments = self._finished.rewards, self._finished.segments
        self.targets = self._slots.targets(rewards, old, segments).targets

    def _values_of_others(
        self, reads: TokenReads, windows: PolicyBatch, *, at_cuts: bool
    ) -> Tensor:
        """[N] values of windows whose answers are not in this batch, then their cuts'."""
        every = range(len(reads.token_ids))
        return infer(self.engine, reads, every, self._place, log=self.log, carried=self._carried)

    def _values_of_own(self, asked: set[int]) -> tuple[Tensor, Tensor]:
        """[T] values of the finished answers' tokens, and [T] mask of those computed now.

        `asked`: the trajectories of windows."""
        rest = [
            s
            for s, t in enumerate(self._finished.reads.trajectories)
            if self._slots.targets_read_old
            or (self._dealt[t] > 0 and (self._slots.reads_old or t in asked))
        ]
        old = infer(self.engine, self._finished.reads, rest, self._place, log=self.log)
        return old, torch.from_numpy(self._finished.reads.within(rest)).to(self._place.device)

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """The value model's outputs for windows and for answers, and its targets."""
        seen = [self._extra, self.start.numbers, self.targets]
        return {"values and value targets": torch.cat(seen)}

    def values_of(self, windows: PolicyBatch, *, at_cuts: bool) -> tuple[Tensor, Tensor | None]:
        """Return values under the weights of the update's start.

        Returns:
            [T] V at each token of the windows, and [S] V(s_l) after each window that is cut if
            `at_cuts`: where the rest of the trajectory is known, just before the policy's next
            token (V(s_{l-1}) if it sampled none), else after the window's last position.
        """
        tokens, cuts = self._sources(windows, at_cuts=at_cuts)
        known = torch.cat([self.start.numbers, self._extra, self._extra.new_zeros(1)])
        return known[tokens], known[cuts] if at_cuts else None

    def loss(self, micro: MicroBatch) -> Tensor:
        """Run the pack forward; return the error against the targets."""
        pack, tokens = micro
        values = self.engine(pack)
        self.log.count(pack, reads=tokens.numel())
        old = self.start.first(tokens, values.detach(), exact=not self.log.taken)
        return self._error(values, old, tokens)

    def _error(self, values: Tensor, old: Tensor, tokens: Tensor) -> Tensor:
        weights = self._slots.aggregate(
            torch.ones_like(tokens, dtype=torch.bool),
            self._ids[tokens],
            tokens=self._totals.value_tokens,
            samples=self._totals.value_samples,
            sample_tokens=self._lengths,
        )
        return weighted_sum(self._slots.loss(values, old, self.targets[tokens]), weights)

    def tallies(self, seen: WindowAdvantages) -> list[Tally]:
        """Return the tallies of prediction errors, targets and values."""
        finished, old = self._finished, self.start.numbers
        known = self.start.known & old.isfinite()
        returns = self._slots.returns(finished.rewards.to(old.dtype), finished.segments).targets
        cuts = window_cuts(finished.numbers, finished.segments, window=self._window)
        values, all_of = old, known
        if seen.values is not None and self._totals.policy_tokens:
            values, all_of = seen.values, torch.ones_like(seen.values, dtype=torch.bool)
        return [
            tally_values(old, returns, known, finished.segments, cuts=cuts),
            tally_spread("critic/returns", self.targets, known),
            tally_spread("critic/values", values, all_of),
        ]

    def _sources(self, windows: PolicyBatch, *, at_cuts: bool) -> tuple[Tensor, Tensor]:
        """Indices of each token's and each cut's value in old + extra + [0].

        The entry for V(s_l) at the end of an answer is never read."""
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
        tokens, device = ranges(starts, counts), self._place.device
        return torch.from_numpy(tokens).to(device), torch.from_numpy(cuts).to(device)


class LeastSquaresUpdate(CriticUpdate):
    """A `CriticUpdate` that refits a head on a frozen model's features (not T-PPO's).

    `train` adds the finished answers and solves once, whatever the epochs."""

    engine: FeatureEngine
    most_parts = 1

    def _values_of_others(
        self, reads: TokenReads, windows: PolicyBatch, *, at_cuts: bool
    ) -> Tensor:
        seen = infer(
            self.engine, reads, range(len(reads.token_ids)), self._place,
            log=self.log, carried=self._carried, width=(self.engine.network.width,),
        )  # fmt: skip
        own = set(self._finished.reads.trajectories)
        starts = [w.confidence or START for w in windows.windows]
        every = self._statistics(windows.behaviour, windows.hot, windows.sampled.lengths, starts)
        pairs = zip(every, windows.windows, strict=True)
        each = [x for x, window in pairs if window.trajectory_id not in own]
        rows = [x[:-1] for x in each] + ([x[-1:] for x in each] if at_cuts else [])
        return self.engine.head.values(self._beside(seen, rows))

    def _values_of_own(self, asked: set[int]) -> tuple[Tensor, Tensor]:
        finished = self._finished
        size = (finished.rewards.numel(), self.engine.network.width)
        seen = torch.zeros(size, dtype=self._place.dtype, device=self._place.device)
        for micros in self._plan:
            for pack, tokens in micros:
                seen[tokens] = self.engine(pack).to(seen.dtype)
                self.log.count(pack, reads=tokens.numel())
        lengths = np.diff(np.array(finished.answers, np.int64))
        every = self._statistics(finished.behaviour, finished.hot, lengths, [START] * lengths.size)
        self._features = self._beside(seen, [x[:-1] for x in every])
        values = self.engine.head.values(self._features)
        return values, torch.ones_like(values, dtype=torch.bool)

    def first_pass(self, *, sound: bool) -> None:
        """Do nothing: `prepare` has computed everything."""

    def train(self, *, epochs: int, sound: bool) -> None:
        """Add the answers and solve; do nothing if the inputs are not `sound`."""
        totals, log = self._totals, self.log
        if not totals.value_tokens:
            return
        log.planned = 1
        every = torch.arange(self.targets.numel(), device=self._place.device)
        log.losses.append(self._error(self.start.numbers, self.start.numbers, every))
        if not sound:
            log.dropped += 1
            return
        finished, head = self._finished, self.engine.head
        groups = np.repeat(np.array(finished.groups, np.int64), np.diff(finished.answers))
        numbers = torch.from_numpy(groups).to(every.device)
        products = self._place.total(head.products(self._features, self.targets, numbers))
        head.refit(products, keep=math.exp(-totals.value_samples / self.engine.memory))
        self.engine.steps += 1
        log.applied += 1

    def _beside(self, features: Tensor, statistics: Sequence[npt.NDArray[np.float32]]) -> Tensor:
        """[N, F + STATISTICS] features with the statistics beside them."""
        beside = np.concatenate([np.zeros((0, STATISTICS), np.float32), *statistics])
        return torch.cat([features, torch.from_numpy(beside).to(features)], dim=1)

    @staticmethod
    def _statistics(
        behaviour: Tensor, hot: Tensor, lengths: Int64, starts: Sequence[list[float]]
    ) -> list[npt.NDArray[np.float32]]:
        """[n + 1, STATISTICS] logprob statistics of each window or answer."""
        logprobs = torch.where(hot, 0.0, behaviour).cpu().numpy()
        pieces = np.split(logprobs, np.cumsum(lengths)[:-1]) if lengths.size else []
        return [before_each(*piece) for piece in zip(pieces, starts, strict=True)]


def critic_update_class(engine: TrainingEngine) -> type[CriticUpdate]:
    """Return the class of the value model's part of an update with this engine."""
    return LeastSquaresUpdate if isinstance(engine, FeatureEngine) else CriticUpdate
