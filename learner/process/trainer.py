"""Everything that a learner rank holds between updates: models, engines, and the way its weights go
out.

In: a run's configuration and folder. Out: answers to the coordinator's messages. Promises: starts
from the newest complete checkpoint of the run, else from the configured models; each update is
written down when it is in the weights, before anybody is told; what it publishes and what it saves
are whole models, whatever the ZeRO stage; with one rank a restored learner goes on to the bit.
"""

import gc
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from msgspec import to_builtins
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from headrace.config.device_defaults import BF16_STAGE, resolve_learner
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.host.disk import until_written
from headrace.host.work import Work
from headrace.protocol.messages.batches import Shard
from headrace.protocol.messages.control import (
    Batch,
    CheckpointDone,
    JournalEnd,
    Trouble,
    UpdateDone,
    WeightNotice,
)
from headrace.protocol.messages.diagnostics import TokenDiagnostics
from headrace.run_files.run_folder import read_manifest
from learner.algorithms.registry import build_algorithm
from learner.device import Place, claim_memory
from learner.models.deepspeed_engine import DeepSpeedEngine
from learner.models.family_check import may_share_rows
from learner.models.forward import PolicyNetwork, ValueNetwork
from learner.models.loading import as_in_files, has_flash, load_critic, load_policy
from learner.process.checkpoint import CRITIC, POLICY, STATE, newest, number_of, write_checkpoint
from learner.process.rank_broadcast import Relay
from learner.process.update_log import AppliedLog
from learner.process.weight_publishing import Publisher, bytes_of, weights_of
from learner.updates.update import Updater

# More than a report takes besides its diagnostics, and a window's diagnostics besides their arrays.
_REPORT_BYTES, _WINDOW_BYTES = 64 << 10, 512
_NO_OPINION = 2**62
_LOG = logging.getLogger("headrace.learner")


class Trainer:
    """One rank's models and engines. All ranks call the same methods in the same order.

    Attributes:
        update: the last one in the weights (0: the starting policy). batch_id: the batch that was
        trained in it; None where it is not known. lineage: the line of updates that it is on.
        resumed_from: the checkpoint the weights are from, or None. policy_bytes: about the size of
        a published version. passed_over: checkpoints that were not whole. notices: what the
        coordinator is to be told with the next answer. tell: hears what a disk lacks that this rank
        writes to, and an empty text when it goes on.
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
        work: Work | None = None,
    ) -> None:
        """Build or restore; UserError where a model cannot be had. `reads_checkpoints`: this rank
        finds out which of them are whole; the others, on its host, take its word. `work`: is told
        how far this rank is."""
        self._relay = relay or Relay(rank=rank, world=config.learner.ranks)
        self._reads_checkpoints, self._work = reads_checkpoints, work or Work()
        self.passed_over: list[str] = []
        self.tell: Callable[[str], None] = _LOG.warning
        self.notices: list[Trouble] = []
        # A launcher has chosen already; a rank that somebody starts by hand chooses alike.
        config = resolve_learner(config, on_gpu=device.type == "cuda").config
        if device.type == "cuda":
            claim_memory(config, device)
        self._config, self._rank, self._device = config, rank, device
        self._root = run_dir / "checkpoints"
        self._applied = AppliedLog(run_dir, rank=rank)
        found = self._newest()
        with self._work.moving("loading the models"):
            self._build(found)

    def _newest(self, among: Callable[[int, int | None], bool] | None = None) -> Path | None:
        """The newest whole checkpoint. A collective; one rank of each host reads the files."""
        number = _NO_OPINION
        if self._reads_checkpoints:
            with self._work.moving("checking the checkpoints"):
                found = newest(self._root, among=among, passed_over=self.passed_over)
            number = -1 if found is None else number_of(found)
        number = self._relay.least(number)
        return None if number < 0 else self._root / f"step_{number}"

    def go_back(self, line: Sequence[tuple[int, int | None]]) -> None:
        """Go on with the newest checkpoint whose update and batch are on the line, else with the
        starting model where that is. UserError: there is none."""
        places = dict(line)

        def is_on_line(update: int, batch_id: int | None) -> bool:
            known = places.get(update)
            return update in places and (known is None or batch_id in (None, known))

        found = self._newest(is_on_line)
        if found is None and 0 not in places:
            raise UserError(
                f"no whole checkpoint in {self._root} can be gone back to: bring back step_"
                f"{min(places)} or a later one of this run, or start a new run"
            )
        _LOG.warning("going back to %s", found or "the starting model")
        del self._updater, self._engines, self._models, self._policy_model
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        with self._work.moving("loading the models"):
            self._build(found)

    def _build(self, checkpoint: Path | None) -> None:
        """Models, engines and where they stand, from a checkpoint or from the start."""
        config, learner, device = self._config, self._config.learner, self._device
        self.resumed_from = checkpoint
        torch.manual_seed(config.seed)
        models = config.model
        if self.resumed_from:
            models = models.model_copy(
                update={
                    "path": str(self.resumed_from / POLICY),
                    "critic_path": str(self.resumed_from / CRITIC),
                }
            )
        dtype = torch.bfloat16 if learner.precision == "bfloat16" else torch.float32
        autocast = torch.bfloat16 if learner.precision == "bf16_autocast" else None
        grouped = config.schedule.num_generations > 1
        own_attention = learner.context == "carried" or (grouped and learner.share_prompts is True)
        self._policy_model = load_policy(
            models,
            dtype=dtype,
            device=device,
            own_attention=own_attention or learner.context == "frozen",
        )
        self._tokenizer = AutoTokenizer.from_pretrained(config.model.path)
        policy = PolicyNetwork(
            self._policy_model,
            logits_chunk=learner.logits_chunk_tokens,
            temperature=config.generator.temperature,
            autocast=autocast,
            wide_head=models.head_precision == "float32",
        )
        shares_rows = may_share_rows(policy)
        if not shares_rows and learner.context != "full":
            raise UserError(
                f"learner.context = {learner.context!r} knows keys and values alone, and "
                f"{self._policy_model.config.model_type} has layers with a state: take 'full'"
            )
        self._engines = {POLICY: DeepSpeedEngine(policy, learner.policy, learner)}
        self._models: dict[str, PreTrainedModel] = {POLICY: self._policy_model}
        algorithm = build_algorithm(
            config.algorithm,
            window=config.window,
            max_length=config.task.max_response_length,
            fire=config.generator.fire,
        )
        if algorithm.value is not None:
            self._models[CRITIC] = load_critic(
                models, dtype=dtype, device=device, own_attention=own_attention
            )
            critic = ValueNetwork(self._models[CRITIC], autocast=autocast)
            self._engines[CRITIC] = DeepSpeedEngine(critic, learner.value, learner)
        if learner.gradient_checkpointing:
            for model in self._models.values():
                model.gradient_checkpointing_enable({"use_reentrant": False})
                model.train()
        place = Place(
            device=device,
            rank=self._rank,
            world=learner.ranks,
            budget=learner.micro_batch_tokens if shares_rows else 1,
            seed=config.seed,
            forward_together=learner.zero_stage == 3,
            shares_openings=grouped
            and shares_rows
            and learner.share_prompts is not False
            and (own_attention or not has_flash(device)),
            work=self._work,
        )
        reference = None
        if algorithm.kl is not None:
            # The run's own model, not the checkpoint's: what is diverged from never changes.
            start = load_policy(
                config.model, dtype=dtype, device=device, own_attention=own_attention
            )
            start.requires_grad_(False)
            reference = PolicyNetwork(
                start,
                logits_chunk=learner.logits_chunk_tokens,
                temperature=config.generator.temperature,
                autocast=autocast,
                wide_head=models.head_precision == "float32",
            )
        self._updater = Updater(
            algorithm,
            self._engines[POLICY],
            self._engines.get(CRITIC),
            learner,
            place,
            reference=reference,
        )
        self.update, self.lineage = 0, 0
        self.batch_id: int | None = None
        self._version = 0
        self._journal: JournalEnd | None = None
        self._published_at = float("-inf")
        self.waiting: int | None = None
        if self.resumed_from:
            self._restore(self.resumed_from)
        # Of a parameter that ZeRO 3 has partitioned, nothing but its size is here.
        self.policy_bytes = sum(
            getattr(p, "ds_numel", p.numel()) * p.element_size() for p in policy.parameters()
        )

    def is_next(self, batch: Batch) -> bool:
        """Whether a batch is the next update of the lineage that these weights are on."""
        return (batch.lineage, batch.update) == (self.lineage, self.update + 1)

    def train(self, batch: Batch, shard: Shard, publisher: Publisher | None) -> UpdateDone:
        """One update on this rank's share, its publication and its checkpoint. `publisher` on rank
        0."""
        outcome = self._updater.run(batch, shard)
        self._work.at("")
        metrics = outcome.metrics
        self._applied.write(
            batch, shard, after=self.batch_id, skipped=outcome.skipped, tell=self.tell
        )
        self.update, self.lineage = batch.update, batch.lineage
        self.batch_id = batch.batch_id
        notice = None
        if outcome.policy_moved and outcome.skipped is None:
            began = time.perf_counter()
            self._version = batch.publish_as
            notice = self.publish(publisher, at_once=False)
            metrics["timing_s/publish"] = time.perf_counter() - began
        checkpoint = None
        if batch.checkpoint:
            began = time.perf_counter()
            self._journal = batch.journal
            checkpoint = str(self._save())
            metrics["timing_s/checkpoint"] = time.perf_counter() - began
        return UpdateDone(
            batch_id=batch.batch_id,
            update=batch.update,
            lineage=batch.lineage,
            metrics=metrics,
            diagnostics=outcome.diagnostics if self._config.storage.token_diagnostics else [],
            notice=notice,
            checkpoint=checkpoint,
            skipped=outcome.skipped,
        )

    def report(self, reports: list[UpdateDone]) -> UpdateDone:
        """What rank 0 tells the coordinator of an update, from the reports of all ranks."""
        return joined(reports, max_bytes=int(self._config.transport.max_message_mib * 2**20))

    def announce(self, version: int, publisher: Publisher | None) -> WeightNotice | None:
        """Publish the weights as they are, under `version`."""
        self._version = version
        return self.publish(publisher, at_once=True)

    def publish(self, publisher: Publisher | None, *, at_once: bool) -> WeightNotice | None:
        """Publish the newest version, or leave it waiting where the last one is too young."""
        with self._work.moving(f"publishing version {self._version}"):
            weights = self._published_weights()
            due = self._published_at + self._config.learner.publish_min_interval_s
            if publisher is None or (not at_once and time.monotonic() < due):
                self.waiting = self._version
                return None
            self.waiting = None
            self._published_at = time.monotonic()
            return publisher.publish(weights, version=self._version, update=self.update)

    @property
    def due_at(self) -> float | None:
        """When the version that waits may go out (time.monotonic), None if none waits."""
        if self.waiting is None:
            return None
        return self._published_at + self._config.learner.publish_min_interval_s

    def checkpoint(self, lineage: int, journal: JournalEnd | None) -> CheckpointDone:
        """Write a checkpoint now. The lineage may have changed since the last batch."""
        self.lineage, self._journal = lineage, journal
        return CheckpointDone(update=self.update, path=str(self._save()))

    def whole_weights(self) -> dict[str, dict[str, Tensor]]:
        """The weights of each model as they are. All ranks ask together."""
        whole = {}
        for name, engine in self._engines.items():
            with engine.whole_parameters():
                whole[name] = weights_of(self._models[name].state_dict(), dtype=None)
        return whole

    def _published_weights(self) -> dict[str, Tensor]:
        wanted = torch.bfloat16 if self._config.generator.dtype == "bfloat16" else None
        with self._engines[POLICY].whole_parameters():
            return weights_of(as_in_files(self._policy_model), dtype=wanted)

    def _save(self) -> Path:
        """Every rank writes its own state beside the checkpoint, and rank 0 moves all of them into
        it. What is carried over is not part of it, so whoever goes on does without, too."""
        self._updater.forget()
        shelf = self._root / ".ranks"
        with self._work.moving(f"writing the checkpoint of update {self.update}"):
            for name, engine in self._engines.items():
                if self._rank == 0 or self._config.learner.zero_stage:
                    state = engine.state() | {"rng": torch.get_rng_state()}
                    self._shelve(state, shelf / f"{name}-{self._rank}.safetensors")
            whole = self.whole_weights()
            # Ranks wait here for one another's disks, for as long as these take.
            self._relay.least(0)
            if self._rank == 0:
                self._gather(shelf, whole)
            self._relay.least(0)
        return self._root / f"step_{self.update}"

    def _shelve(self, state: dict[str, Tensor], path: Path) -> None:
        def attempt() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(state, path)

        until_written(attempt, path.parent, bytes_of(state), tell=self.tell)

    def _gather(self, shelf: Path, whole: dict[str, dict[str, Tensor]]) -> None:
        def fill(folder: Path) -> None:
            for name, weights in whole.items():
                self._models[name].save_pretrained(folder / name, state_dict=weights)
                self._tokenizer.save_pretrained(folder / name)
            shutil.copytree(shelf, folder / STATE, copy_function=_same_file)

        steps = {name: engine.steps for name, engine in self._engines.items()}
        facts = {
            "version": self._version,
            "journal": self._journal and to_builtins(self._journal),
            "ranks": self._config.learner.ranks,
            "zero_stage": self._config.learner.zero_stage,
            "steps": steps,
            "lineage": self.lineage,
            "batch_id": self.batch_id,
            "resumed_from": str(self.resumed_from) if self.resumed_from else None,
        }
        write_checkpoint(
            self._root,
            self.update,
            fill,
            facts=facts,
            keep_last=self._config.checkpoint.keep_last,
            needs=sum(map(bytes_of, whole.values())),
            tell=self.tell,
            work=self._work,
        )
        shutil.rmtree(shelf)

    def _restore(self, path: Path) -> None:
        manifest, learner = read_manifest(path), self._config.learner
        ranks, stage = manifest["ranks"], manifest["zero_stage"]
        if learner.precision == "bfloat16" and stage < BF16_STAGE:
            raise UserError(
                f"{path} was written in bfloat16 at ZeRO stage {stage} by an earlier version, "
                "whose optimizer state does not fit this one's: begin a new run with "
                f"model.path={path / POLICY}"
            )
        if learner.zero_stage and (ranks, stage) != (learner.ranks, learner.zero_stage):
            raise UserError(
                f"{path} was written by {ranks} ranks at ZeRO stage {stage}; its optimizer state "
                "is cut that way: set learner.ranks and learner.zero_stage to these"
            )
        for name, engine in self._engines.items():
            rank = self._rank if learner.zero_stage else 0
            state = load_file(path / STATE / f"{name}-{rank}.safetensors")
            torch.set_rng_state(state.pop("rng"))
            engine.load_state(state)
        self.update = int(manifest["update"])
        self.batch_id = manifest.get("batch_id")
        self.lineage = int(manifest["lineage"])
        self._version = int(manifest["version"])


def _same_file(source: str, target: str) -> str:
    """The file under a second name, or a copy where a file system has no second names."""
    try:
        os.link(source, target)
    except OSError:
        return str(shutil.copyfile(source, target))
    return target


def joined(reports: list[UpdateDone], *, max_bytes: int) -> UpdateDone:
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
