"""Everything that a learner rank holds between updates: models, engines, and the way its weights go
out.

In: a run's configuration and folder. Out: answers to the coordinator's messages. Promises: starts
from the newest complete checkpoint of the run, else from the configured models; each update is
logged once it is in the weights, before any message about it is sent; what it publishes and what it
saves are whole models at any ZeRO stage; with one rank a restored learner goes on to the bit.
"""

import gc
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from msgspec.structs import replace
from torch import Tensor

from headrace.config.device_defaults import resolve_learner
from headrace.config.sections.run import RunConfig
from headrace.data.media import MediaStore
from headrace.host.hardware import has_bfloat16
from headrace.host.progress_reporter import ProgressReporter
from headrace.protocol.messages import control as m
from headrace.protocol.messages.batches import Shard
from headrace.protocol.messages.diagnostics import TokenDiagnostics
from headrace.run_files.run_folder import MEDIA
from learner.algorithms.registry import build_algorithm
from learner.device import claim_memory
from learner.process.checkpoint import CRITIC, POLICY, RANKER
from learner.process.checkpointing import Checkpoints, Position
from learner.process.model_set import ModelSet
from learner.process.rank_broadcast import Relay
from learner.process.update_log import AppliedLog
from learner.process.weight_publishing import Publication, Publisher
from learner.ranking import versions as rankers
from learner.updates.ranker_update import RankerPart
from learner.updates.update import Updater

# More than a report takes besides its diagnostics, and a window's diagnostics besides their arrays.
_REPORT_BYTES, _WINDOW_BYTES = 64 << 10, 512
_LOG = logging.getLogger("headrace.learner")


class Trainer:
    """One rank's models and what becomes of them. All ranks call the same methods in the same
    order.

    Attributes:
        models: policy, value model and reference. position: the update whose weights they have.
        checkpoints, publication: how the weights go to the disk and to generators. resumed_from:
        the checkpoint the weights are from, or None. notices: for the coordinator, with the next
            answer. tell: receives what a disk lacks that this rank writes to, and an empty text
            when it goes on.
    """

    def __init__(
        self,
        config: RunConfig,
        run_dir: Path,
        *,
        rank: int,
        device: torch.device,
        relay: Relay | None = None,
        reads_checkpoints: bool = True,
        work: ProgressReporter | None = None,
    ) -> None:
        """Build or restore; UserError where a model cannot be had. `reads_checkpoints`: this rank
        finds out which of them are whole; the others, on its host, take its word. `work`: receives
        this rank's progress."""
        self._work = work or ProgressReporter()
        self._images = MediaStore(run_dir / MEDIA)
        self.tell: Callable[[str], None] = _LOG.warning
        self.notices: list[m.Trouble] = []
        # A launcher has chosen already; a rank that somebody starts by hand chooses alike.
        on_gpu = device.type == "cuda"
        config = resolve_learner(config, on_gpu=on_gpu, bfloat16=has_bfloat16()).config
        if device.type == "cuda":
            claim_memory(config, device)
        self._config, self._rank, self._device = config, rank, device
        self._run_dir = run_dir
        self._applied = AppliedLog(run_dir, rank=rank)
        self.checkpoints = Checkpoints(
            run_dir / "checkpoints", config, rank=rank, work=self._work,
            relay=relay or Relay(rank=rank, world=config.learner.ranks), reads=reads_checkpoints,
        )  # fmt: skip
        self._build(self.checkpoints.newest())

    def go_back(self, line: Sequence[tuple[int, int | None]]) -> None:
        """Go on with the newest checkpoint whose update and batch are on the line, else with the
        starting model where that is. UserError: there is none."""
        found = self.checkpoints.newest_of(line)
        _LOG.warning("going back to %s", found or "the starting model")
        del self._updater, self.models
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        self._build(found)

    def _build(self, checkpoint: Path | None) -> None:
        """Models, engines and where they stand, from a checkpoint or from the start."""
        config, self.resumed_from = self._config, checkpoint
        torch.manual_seed(config.seed)
        algorithm = build_algorithm(
            config.algorithm,
            window=config.window,
            max_length=config.task.max_response_length,
            fire=config.generator.fire,
        )
        with self._work.moving("loading the models"):
            models = self.models = ModelSet(
                config, algorithm, checkpoint,
                rank=self._rank, device=self._device, work=self._work,
                read_image=self._images.read,
            )  # fmt: skip
            self.position = Position()
            if checkpoint is not None:
                self.position = self.checkpoints.restore(checkpoint, models.engines)
        self._updater = Updater(
            algorithm,
            models.engines[POLICY],
            models.engines.get(CRITIC),
            config.learner,
            models.place,
            reference=models.reference,
            ranker=self._ranker_training(),
        )
        self.publication = Publication(config.learner.publish_min_interval_s)

    def _ranker_training(self) -> RankerPart | None:
        settings, models = self._config.learner.ranker, self.models
        source = self._config.reward.ranker()
        if settings is None or models.ranker is None or source is None:
            return None
        return RankerPart(
            models.ranker, models.engines[RANKER], settings, models.tokenizer.decode,
            reads_history=bool(source.options.get("reads_history", True)),
        )  # fmt: skip

    def is_next(self, batch: m.Batch) -> bool:
        """Whether a batch is the next update of the lineage that these weights are on."""
        at = self.position
        return (batch.lineage, batch.update) == (at.lineage, at.update + 1)

    def train(self, batch: m.Batch, shard: Shard, publisher: Publisher | None) -> m.UpdateDone:
        """One update on this rank's share, its publication and its checkpoint. `publisher` on rank
        0."""
        outcome = self._updater.run(batch, shard)
        self._work.at("")
        metrics, skipped, at = outcome.metrics, outcome.skipped, self.position
        self._applied.write(batch, shard, after=at.batch_id, skipped=skipped, tell=self.tell)
        at.update, at.lineage, at.batch_id = batch.update, batch.lineage, batch.batch_id
        notice = None
        if outcome.policy_moved and skipped is None:
            began = time.perf_counter()
            at.version = batch.publish_as
            notice = self.publish(publisher, at_once=False)
            metrics["timing_s/publish"] = time.perf_counter() - began
        checkpoint = None
        if batch.checkpoint:
            began = time.perf_counter()
            checkpoint = self.checkpoint(batch.lineage, batch.journal).path
            metrics["timing_s/checkpoint"] = time.perf_counter() - began
        return m.UpdateDone(
            batch_id=batch.batch_id,
            update=batch.update,
            lineage=batch.lineage,
            metrics=metrics,
            diagnostics=outcome.diagnostics if self._config.storage.token_diagnostics else [],
            notice=notice,
            checkpoint=checkpoint,
            skipped=skipped,
        )

    def report(self, reports: list[m.UpdateDone]) -> m.UpdateDone:
        """Rank 0's report of an update to the coordinator, from the reports of all ranks."""
        return joined(reports, max_bytes=int(self._config.transport.max_message_mib * 2**20))

    def announce(
        self, lineage: int, version: int, publisher: Publisher | None
    ) -> m.WeightNotice | None:
        """Publish the weights as they are, under `version`."""
        self.position.lineage, self.position.version = lineage, version
        return self.publish(publisher, at_once=True)

    def publish(self, publisher: Publisher | None, *, at_once: bool) -> m.WeightNotice | None:
        """Publish the newest version, or leave it waiting where the last one is too young."""
        version = self.position.version
        with self._work.moving(f"publishing version {version}"):
            weights = self.models.published_weights()
            ranker = None if self.models.ranker is None else self.models.ranker_weights()
            if not self.publication.goes_out(version, publisher is not None, at_once=at_once):
                return None
            assert publisher is not None
            notice = publisher.publish(weights, version=version, update=self.position.update)
            return replace(notice, ranker=self._publish_ranker(version, ranker))

    def _publish_ranker(
        self, version: int, weights: dict[str, Tensor] | None
    ) -> m.ModelVersion | None:
        settings, ranker = self._config.learner.ranker, self.models.ranker
        if weights is None or settings is None or ranker is None:
            return None
        # The newest, those that may still score, and one that is being asked for now.
        keep = settings.max_staleness + 2
        return rankers.publish(
            ranker, weights, self._run_dir, version=version, keep=keep, tell=self.tell
        )

    def checkpoint(self, lineage: int, journal: m.JournalEnd | None) -> m.CheckpointDone:
        """Write a checkpoint now. The lineage may have changed since the last batch."""
        self.position.lineage = lineage
        # What is carried over is not part of it, so whoever goes on does without, too.
        self._updater.forget()
        path = self.checkpoints.save(
            self.models, self.position, journal, resumed_from=self.resumed_from, tell=self.tell
        )
        return m.CheckpointDone(update=self.position.update, path=str(path))


def joined(reports: list[m.UpdateDone], *, max_bytes: int) -> m.UpdateDone:
    """Rank 0's report with the diagnostics of all ranks, as many windows' as fit into a message of
    `max_bytes`; the log says how many did not."""
    every = [d for report in reports for d in report.diagnostics]
    room = max_bytes - _REPORT_BYTES
    kept: list[TokenDiagnostics] = []
    for diagnostics in every:
        room -= _WINDOW_BYTES + sum(column.nbytes for column in diagnostics.columns.values())
        if room < 0:
            _LOG.warning(
                "token diagnostics of %d of %d windows left out of update %d: the report would be "
                "over transport.max_message_mib", len(every) - len(kept), len(every),
                reports[0].update,
            )  # fmt: skip
            break
        kept.append(diagnostics)
    return replace(reports[0], diagnostics=kept)
