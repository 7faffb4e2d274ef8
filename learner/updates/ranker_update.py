"""The ranker's part of an update: training on the clicks of answers that ended.

In: a shard whose windows bring the rows of their prompts, and the policy's tokenizer. Out:
optimizer steps on whole lists of candidates, with the policy's answer as their query, in padded
batches. Promises: an answer is learnt from in the update that trains its last window and in no
other; all ranks take the same steps; a row without a click is left out and counted.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from headrace.config.sections.learner import RankerTraining
from headrace.data.sessions import RankedList, clean_list, ranked_list_of
from headrace.data.tokenizer import decoded
from headrace.errors import UserError
from headrace.protocol.messages.batches import Shard
from learner.device import RankContext
from learner.models.deepspeed_engine import StepLog, TrainingEngine
from learner.ranking.encoding import TokenRow
from learner.ranking.losses import pointwise
from learner.ranking.model import BATCH, SessionRanker

STREAM = 2
"""Stream of the seed that deals candidates; policy and value model have 0 and 1."""
Example = tuple[TokenRow, int]


@dataclass(frozen=True)
class RankerSetup:
    """Ranker, engine and settings of all updates. `tokenizer`: the policy's.

    `reads_history`: as the reward calls the ranker."""

    ranker: SessionRanker
    engine: TrainingEngine
    config: RankerTraining
    tokenizer: Any
    reads_history: bool


class RankerUpdate:
    """`train`, then `figures`. `log`: optimizer steps so far."""

    name = "ranker"

    def __init__(self, part: RankerSetup, place: RankContext, shard: Shard, *, update: int) -> None:
        ranker, config = part.ranker, part.config
        self._ranker, self._engine, self._config = ranker, part.engine, config
        self._place, self._seed = place, [place.seed, update, STREAM]
        self.log = StepLog(place.work, f"update {update}: ranker step")
        self.log.planned = config.epochs * config.minibatches
        found = list(clicked_lists(shard, part.tokenizer))
        sound = [ranked for ranked in found if ranked is not None]
        order = np.random.default_rng(self._seed).permutation(len(sound))  # the longest come first
        self._lists = [sound[i] for i in order[: config.lists]]
        self._left_out = len(found) - len(sound)
        self._examples: list[Example] = [
            (ranker.row(ranked, i, reads_history=part.reads_history), label)
            for ranked in self._lists
            for i, label in enumerate(ranked.labels)
        ]

    def train(self, *, sound: bool) -> None:
        """Take all optimizer steps, up to the first that is dropped; none if not `sound`."""
        if not sound:
            return
        self._ranker.model.train()
        for epoch in range(self._config.epochs):
            order = np.random.default_rng([*self._seed, epoch]).permutation(len(self._examples))
            for part in np.array_split(order, self._config.minibatches):
                total = int(self._place.total(torch.tensor(part.size, device=self._place.device)))
                if total and not self._step([self._examples[i] for i in part], total):
                    return

    def _step(self, examples: Sequence[Example], total: int) -> bool:
        """Step on this rank's share of `total` examples; return whether it was applied."""
        parts = [examples[first : first + BATCH] for first in range(0, len(examples), BATCH)]
        # ZeRO 2 reduces in every backward pass, so that all ranks take as many.
        own = torch.tensor(len(parts), device=self._place.device)
        passes = max(1, int(self._place.largest(own)))
        for number in range(passes):
            part = parts[number] if number < len(parts) else []
            # Ranks without an example go through the same collectives.
            rows = [row for row, _ in part] or [self._ranker.encoder.session([])]
            scores = self._engine(**self._ranker.batch(rows)).logits[:, 0]
            labels = [label for _, label in part] or [0]
            losses = pointwise(scores, torch.tensor(labels, device=scores.device))
            loss = losses.sum() / total * bool(part)
            self.log.losses.append(loss.detach())
            self._engine.backward(loss, last=number == passes - 1)
        return self.log.step(self._engine)

    def figures(self) -> dict[str, float]:
        """Return figures by metric name, the same on all ranks."""
        log, device = self.log, self._place.device
        loss = torch.stack(log.losses).sum().double() if log.losses else torch.zeros(()).double()
        counts = torch.tensor([len(self._lists), self._left_out]).double()
        sums = self._place.total(torch.cat([loss.cpu().reshape(1), counts]).to(device)).tolist()
        figures = {
            "ranker/lists": sums[1], "ranker/left_out": sums[2],
            "ranker/steps": float(log.applied), "ranker/lr": self._engine.lr,
        }  # fmt: skip
        if log.taken:
            figures["ranker/loss"] = sums[0] / log.taken
        if log.grad_norm is not None:
            figures["ranker/grad_norm"] = log.grad_norm
        return figures


def clicked_lists(shard: Shard, tokenizer: Any) -> Iterator[RankedList | None]:
    """Yield each ending answer's list, with its last turn as query; None: none to learn from."""
    for window in shard.windows:
        if not window.row:
            continue
        sequence = shard.sequences[window.sequence]
        start, end = sequence.sampled[-1]  # The last turn: what the reward reads.
        ids = sequence.token_ids[sequence.opening + start : sequence.opening + end]
        text = decoded(tokenizer, ids.tolist())
        try:
            ranked = replace(ranked_list_of(json.loads(window.row), "the row"), query=text)
        except UserError:
            yield None
            continue
        ranked, lacks = clean_list(ranked)
        yield None if lacks else ranked
