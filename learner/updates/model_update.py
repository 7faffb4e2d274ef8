"""Base of a model's part of an update: its tokens are dealt to optimizer steps.

Steps are taken one after the other until one is dropped. In: the reads that have a loss, and the
subclass's loss of each micro-batch. Out: optimizer steps, and tallies of figures. Promises: all
ranks take the same steps in the same order; a model whose inputs are not sound is run forward once,
which gives its figures, and stays as it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from headrace.protocol.messages.control import Batch
from learner.algorithms.segment_advantages import WindowAdvantages
from learner.batching.token_reads import TokenReads
from learner.device import RankContext
from learner.models.deepspeed_engine import StepLog, TrainingEngine
from learner.models.microbatches import MicroBatch, OptimizerSteps
from learner.models.prefix_cache import PrefixCache
from learner.updates.token_statistics import Tally


class StartOutputs:
    """Logprobs or values of N tokens under the weights of the update's start.

    Attributes:
        numbers: [N]; 0 where no pass has read the token. known: [N] bool, where one has. exact: [N]
        bool, the number is really of the update's start; elsewhere it is that of the token's first
        forward pass, some optimizer steps later.
    """

    def __init__(self, numbers: Tensor, known: Tensor) -> None:
        self.numbers, self.known, self.exact = numbers, known, known.clone()

    def first(self, tokens: Tensor, now: Tensor, *, exact: bool) -> Tensor:
        """[M] the numbers of some tokens; a token that has none gets that of `now`, [M]."""
        found = torch.where(self.known[tokens], self.numbers[tokens], now.to(self.numbers.dtype))
        self.numbers[tokens] = found
        self.exact[tokens] |= ~self.known[tokens] & exact
        self.known[tokens] = True
        return found


class ModelUpdate(ABC):
    """One model's part of one update.

    Attributes:
        engine: the model. log: its optimizer steps so far.
    """

    name: ClassVar[str]
    """The name in messages to users."""
    prefix: ClassVar[str]
    """The prefix of its figures."""
    loss_figure: ClassVar[str]
    """The figure of its loss."""
    stream: ClassVar[int]
    """The stream of the seed by which tokens are dealt."""

    def __init__(
        self, engine: TrainingEngine, reads: TokenReads, place: RankContext, batch: Batch, *,
        parts: int, step: str, carried: PrefixCache | None = None,
    ) -> None:  # fmt: skip
        """`reads`: the tokens with a loss. `parts`: maximum optimizer steps per pass.

        `step`: a step's name in progress reports. `carried`: keys and values before the reads."""
        self.engine, self._reads, self._place, self._batch = engine, reads, place, batch
        self.log = StepLog(place.work, f"update {batch.update}: {step}")
        self._steps, self._parts = OptimizerSteps(reads, place, parts=parts, carried=carried), parts
        self._deal(epoch=0)
        self._first_is_accumulated = False

    @property
    @abstractmethod
    def inputs(self) -> Mapping[str, Tensor]:
        """Inputs of the loss known before the first step, by name; must be finite."""

    @abstractmethod
    def loss(self, micro: MicroBatch) -> Tensor:
        """Return the micro-batch's summand of the loss of one optimizer step."""

    @abstractmethod
    def tallies(self, seen: WindowAdvantages) -> list[Tally]:
        """Return this rank's summands of the update's figures; `seen`: the advantages."""

    def first_pass(self, *, sound: bool) -> None:
        """Accumulate the gradient of the first optimizer step; `sound` as in `train`.

        This also computes its tokens' numbers of the update's start."""
        if self._plan:
            self._accumulate(self._plan[0], sound=sound)
            self._first_is_accumulated = True

    def train(self, *, epochs: int, sound: bool) -> None:
        """Take all optimizer steps of the update, up to the first that is dropped.

        None where the inputs are not `sound`, which all ranks know alike."""
        self.log.planned = epochs * len(self._plan)
        for epoch in range(epochs):
            if epoch and self._parts > 1:
                self._deal(epoch=epoch)
            for micros in self._plan:
                if not self._first_is_accumulated:
                    self._accumulate(micros, sound=sound)
                self._first_is_accumulated = False
                if not sound:
                    self.log.dropped += 1
                    return
                if not self.log.step(self.engine):
                    return

    def _deal(self, *, epoch: int) -> None:
        seed = [self._place.seed, self._batch.update, self.stream, epoch]
        self._dealt = self._steps.deal(seed=seed)
        self._plan = self._steps.cut(self._dealt)

    def _accumulate(self, micros: Sequence[MicroBatch], *, sound: bool) -> None:
        for i, micro in enumerate(micros):
            with torch.set_grad_enabled(sound):
                loss = self.loss(micro) * len(self._plan)
            self.log.losses.append(loss.detach())
            if sound:
                self.engine.backward(loss, last=i == len(micros) - 1)
