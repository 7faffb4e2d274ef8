"""A learner rank's state: models, engines, publishing and checkpoints.

In: a run's configuration and folder. Out: answers to the coordinator's messages. Promises: starts
from the newest complete checkpoint of the run, else from the configured models; each update is
logged once it is in the weights, before any message about it is sent; it publishes and saves whole
models at any ZeRO stage; with one rank a restored learner goes on to the bit.
"""

import gc
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
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
from headrace.protocol.messages.diagnostics import REPORT_BYTES, WINDOW_BYTES, TokenDiagnostics
from headrace.run_files.run_folder import MEDIA
from learner.algorithms.registry import algorithm_of
from learner.device import claim_memory
from learner.process.checkpoint import CRITIC, POLICY, RANKER
from learner.process.checkpointing import RankCheckpoints, WeightPosition
from learner.process.model_set import ModelSet
from learner.process.rank_broadcast import RankRelay
from learner.process.update_log import UpdateLog
from learner.process.weight_publishing import (
    SHORT_S,
    PublishingSchedule,
    WeightPublisher,
    publish_ranker,
)
from learner.updates.ranker_update import RankerSetup
from learner.updates.update import Updater

_LOG = logging.getLogger("headrace.learner")


class Trainer:
    """One rank's models and training. All ranks call the same methods in one order.

    Attributes:
        models: policy, value model and reference. position: the update whose weights they have.
        checkpoints, publication: of the weights. resumed_from: the checkpoint the weights are from,
        or None. notices: for the coordinator, with the next answer. tell: receives what a disk
        lacks that this rank writes to, and an empty text when it goes on.
    """

    def __init__(
        self,
        config: RunConfig,
        run_dir: Path,
        *,
        rank: int,
        device: torch.device,
        relay: RankRelay | None = None,
        reads_checkpoints: bool = True,
        work: ProgressReporter | None = None,
    ) -> None:
        """Build or restore; UserError where a model cannot be loaded.

        `reads_checkpoints`: this rank checks which of them are whole; the others on its host rely
        on it. `work`: receives this rank's progress."""
        self._work = work or ProgressReporter()
        self._images = MediaStore(run_dir / MEDIA)
        self.tell: Callable[[str], None] = _LOG.warning
        self.send: Callable[[m.Message], None] = lambda message: None
        self.notices: list[m.Trouble] = []
        # A launcher has chosen already; a rank that is started by hand chooses alike.
        on_gpu = device.type == "cuda"
        config = resolve_learner(config, on_gpu=on_gpu, bfloat16=has_bfloat16()).config
        if device.type == "cuda":
            claim_memory(config, device)
        self._config, self._rank, self._device = config, rank, device
        self._run_dir = run_dir
        self._is_reported = True
        """Whether the coordinator has the report of every update of which something is being
        written."""
        self._update_log = UpdateLog(run_dir, rank=rank)
        self._relay = relay or RankRelay(rank=rank, world=config.learner.ranks)
        self.checkpoints = RankCheckpoints(
            run_dir / "checkpoints", config, rank=rank, work=self._work, reads=reads_checkpoints,
            relay=self._relay, tell=lambda text: self.tell(text),
        )  # fmt: skip
        self._checkpoint: int | None = None
        """The update of the checkpoint that the coordinator waits for."""
        self._build(self.checkpoints.newest())

    def go_back(self, line: Sequence[tuple[int, int | None]]) -> None:
        """Restore the newest checkpoint on the line, else the starting model if on it.

        The line has updates and their batches. UserError: there is none."""
        with self.writing():
            self.checkpoints.writing.written(None)
        self._checkpoint = None
        found = self.checkpoints.newest_of(line)
        _LOG.warning("going back to %s", found or "the starting model")
        while self.models.engines:  # a loop's variable would keep the last one
            self.models.engines.popitem()[1].free()
        del self._updater, self.models
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        self._build(found)

    def _build(self, checkpoint: Path | None) -> None:
        """Build models, engines and position, from a checkpoint or from the start."""
        config, self.resumed_from = self._config, checkpoint
        torch.manual_seed(config.seed)
        algorithm = algorithm_of(config)
        with self._work.moving("loading the models"):
            models = self.models = ModelSet(
                config, checkpoint, rank=self._rank, device=self._device, work=self._work,
                read_image=self._images.read,
            )  # fmt: skip
            self.position = WeightPosition()
            if checkpoint is not None:
                self.position = self.checkpoints.restore(checkpoint, models.engines)
            self._relay.least(0)  # a rank with a slow disk still sends its progress
        self._updater = Updater(
            algorithm,
            models.engines[POLICY],
            models.engines.get(CRITIC),
            config.learner,
            models.place,
            reference=models.reference,
            ranker=self._ranker_training(),
        )
        self.publication = PublishingSchedule(config.learner.publish_min_interval_s)

    def _ranker_training(self) -> RankerSetup | None:
        settings, models = self._config.learner.ranker, self.models
        source = self._config.reward.ranker()
        if settings is None or models.ranker is None or source is None:
            return None
        return RankerSetup(
            models.ranker, models.engines[RANKER], settings, models.tokenizer,
            reads_history=bool(source.options.get("reads_history", True)),
        )  # fmt: skip

    def is_next(self, batch: m.Batch) -> bool:
        """Return whether a batch is the next update of these weights' lineage."""
        at = self.position
        return (batch.lineage, batch.update) == (at.lineage, at.update + 1)

    def train(
        self, batch: m.Batch, shard: Shard, publisher: WeightPublisher | None
    ) -> m.UpdateDone:
        """Run one update on this rank's share, its publication and its checkpoint."""
        # The coordinator names the version published last; a later one may still be written.
        version = max(batch.version, self.position.version)
        outcome = self._updater.run(replace(batch, version=version), shard)
        self._work.at("")
        metrics, skipped, at = outcome.metrics, outcome.skipped, self.position
        self._update_log.write(batch, shard, after=at.batch_id, skipped=skipped, tell=self.tell)
        at.update, at.lineage = batch.update, batch.lineage
        at.batch_id, at.skipped = batch.batch_id, skipped
        notice = follows = None
        if outcome.policy_moved and skipped is None:
            began = time.perf_counter()
            at.version = batch.publish_as
            notice = self.publish(publisher, at_once=False)
            follows = at.version if notice is None else None
            metrics["timing_s/publish"] = time.perf_counter() - began
        checkpoint = None
        if batch.checkpoint:
            began = time.perf_counter()
            behind = self._config.schedule.publishes_behind
            done = self.checkpoint(batch.lineage, batch.journal, behind=behind)
            checkpoint = None if done is None else done.path
            metrics["timing_s/checkpoint"] = time.perf_counter() - began
        return m.UpdateDone(
            batch_id=batch.batch_id,
            update=batch.update,
            lineage=batch.lineage,
            metrics=metrics,
            diagnostics=outcome.diagnostics if self._config.storage.token_diagnostics else [],
            notice=notice,
            follows=follows,
            checkpoint=checkpoint,
            skipped=skipped,
        )

    def report(self, reports: list[m.UpdateDone]) -> m.UpdateDone:
        """Join the reports of all ranks to rank 0's report to the coordinator."""
        return join_reports(reports, max_bytes=self._config.transport.max_bytes)

    def announce(
        self, lineage: int, version: int, publisher: WeightPublisher | None
    ) -> m.WeightNotice | None:
        """Publish the weights as they are, under `version`."""
        # A coordinator to which this learner is new does not wait for its checkpoint.
        self._checkpoint = None
        self.position.lineage, self.position.version = lineage, version
        return self.publish(publisher, at_once=True)

    def publish(self, publisher: WeightPublisher | None, *, at_once: bool) -> m.WeightNotice | None:
        """Publish the newest version, or leave it waiting if the last one is too recent.

        Not `at_once` it may go on being written while the next update trains: then the result is
        None as well, and `send` gets the notice from `announce_written`."""
        version, update = self.position.version, self.position.update
        # A version of a line that is given up is announced no more.
        self._is_reported &= not at_once
        with self.publishing():
            if publisher is not None:
                if (late := publisher.behind.written(None)) and not at_once:
                    self.send(late)
                publisher.withdraw()
            # Rank 0 may have waited for a disk, for longer than the others wait in a gather.
            self._relay.least(0)
            weights = self.models.published_weights(update)
            ranker = None if self.models.ranker is None else self.models.ranker_weights()
            if not self.publication.goes_out(publisher is not None, at_once=at_once):
                return None
            assert publisher is not None
            if self._config.schedule.publishes_behind and not at_once and ranker is None:
                publisher.begin(weights, version=version, update=update)
                notice = publisher.behind.written(SHORT_S)
                self._is_reported = notice is not None
                return notice
            notice = publisher.publish(weights, version=version, update=update)
            return replace(notice, ranker=self._publish_ranker(version, ranker))

    def publishing(self) -> AbstractContextManager[None]:
        """The stage of progress in which a version is copied or written."""
        return self._work.moving(f"publishing version {self.position.version}")

    def writing(self) -> AbstractContextManager[None]:
        """The stage of progress in which this learner waits for what is written behind updates."""
        if self.checkpoints.writing.is_writing:
            return self._work.moving("writing the last checkpoint")
        return self.publishing()

    def announce_written(self, publisher: WeightPublisher, *, reported: bool = False) -> bool:
        """Send the notice of a version or a checkpoint that was written behind its update, if it
        is; return whether one is still being written.

        `reported`: the coordinator has the report of that update, so it may be."""
        self._is_reported |= reported
        if self._is_reported:
            if notice := publisher.behind.written():
                self.send(notice)
            self._announce_checkpoint(0.0)
        return publisher.behind.is_writing or self.checkpoints.writing.is_writing

    def _announce_checkpoint(self, timeout_s: float | None) -> None:
        path = self.checkpoints.writing.written(timeout_s)
        if path is not None and self._checkpoint is not None:
            self.send(m.CheckpointDone(update=self._checkpoint, path=str(path)))
            self._checkpoint = None

    def _publish_ranker(
        self, version: int, weights: dict[str, Tensor] | None
    ) -> m.ModelVersion | None:
        settings, ranker = self._config.learner.ranker, self.models.ranker
        if weights is None or settings is None or ranker is None:
            return None
        # The newest, those that may still score, and one that is being asked for now.
        keep = settings.max_staleness + 2
        return publish_ranker(
            ranker, weights, self._run_dir, version=version, keep=keep, tell=self.tell
        )

    def checkpoint(
        self, lineage: int, journal: m.JournalEnd | None, *, behind: bool = False
    ) -> m.CheckpointDone | None:
        """Write a checkpoint now. The lineage may have changed since the last batch.

        `behind`: it goes on being written while the next update trains; then the result is None,
        and `send` gets it from `announce_written`. The next one waits for it."""
        with self.writing():
            self._announce_checkpoint(None)
        self.position.lineage = lineage
        # Carried keys are not part of it, so this learner goes on without them, too.
        self._updater.forget()
        path = self.checkpoints.save(
            self.models, self.position, journal, resumed_from=self.resumed_from, behind=behind
        )
        path = path or self.checkpoints.writing.written(SHORT_S)
        if path is None:
            self._checkpoint, self._is_reported = self.position.update, False
            return None
        return m.CheckpointDone(update=self.position.update, path=str(path))


def join_reports(reports: list[m.UpdateDone], *, max_bytes: int) -> m.UpdateDone:
    """Add the diagnostics of all ranks to rank 0's report.

    As many windows' as fit into a message of `max_bytes`; the log says how many did not."""
    every = [d for report in reports for d in report.diagnostics]
    room = max_bytes - REPORT_BYTES
    kept: list[TokenDiagnostics] = []
    for diagnostics in every:
        room -= WINDOW_BYTES + sum(column.nbytes for column in diagnostics.columns.values())
        if room < 0:
            _LOG.warning(
                "token diagnostics of %d of %d windows left out of update %d: the report would be "
                "over transport.max_message_mib", len(every) - len(kept), len(every),
                reports[0].update,
            )  # fmt: skip
            break
        kept.append(diagnostics)
    return replace(reports[0], diagnostics=kept)
