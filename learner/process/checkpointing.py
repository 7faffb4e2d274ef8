"""Saving and restoring of a rank's models and optimizers.

In: a `ModelSet` and its position. Out: whole checkpoints in the run's folder, and engines as they
were. Promises: all ranks take the same one, and those of a host read its files once; with one rank
a restored learner goes on to the bit.
"""

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from msgspec import convert, to_builtins
from safetensors.torch import load_file, save_file
from torch import Tensor

from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.host.disk import until_written
from headrace.host.progress_reporter import ProgressReporter
from headrace.protocol.messages.control import JournalEnd
from headrace.run_files.run_folder import read_manifest
from learner.models.deepspeed_engine import DeepSpeedEngine
from learner.models.feature_network import FeatureEngine
from learner.process.checkpoint import STATE, newest, number_of, write_checkpoint
from learner.process.model_set import ModelSet
from learner.process.rank_broadcast import RankRelay
from learner.process.weight_publishing import bytes_of
from learner.process.write_behind import Tell, WriteBehind

_NO_OPINION = 2**62
_POLL_S = 0.05


@dataclass
class WeightPosition:
    """Position of weights in a run.

    `update`: the last one in them (0: the starting policy). `batch_id`: its batch; None before
    the first one. `skipped`: why that was broken off. `lineage`: of that update. `version`: under
    which they are published."""

    update: int = 0
    lineage: int = 0
    batch_id: int | None = None
    version: int = 0
    skipped: str | None = None


class RankCheckpoints:
    """The checkpoints of one rank.

    `passed_over`: those that were not whole, and why. `writing`: what is written behind updates."""

    def __init__(
        self,
        root: Path,
        config: RunConfig,
        *,
        rank: int,
        relay: RankRelay,
        reads: bool,
        work: ProgressReporter,
        tell: Tell,
    ) -> None:
        """`reads`: this rank checks which of them are whole. `tell`: see `WriteBehind`."""
        self._root, self._config, self._rank = root, config, rank
        self._relay, self._reads, self._work = relay, reads, work
        self.passed_over: list[str] = []
        self._tell = tell
        # Rank 0 waits for the files of the others, while these wait to hear of it.
        self.writing = WriteBehind[Path | None]("checkpoint", tell, fatal=rank > 0)

    def newest(self, among: Callable[[int, int | None], bool] | None = None) -> Path | None:
        """Find the newest whole checkpoint. A collective; one rank of each host reads."""
        number = _NO_OPINION
        if self._reads:
            with self._work.moving("checking the checkpoints"):
                found = newest(self._root, among=among, passed_over=self.passed_over)
            number = -1 if found is None else number_of(found)
        number = self._relay.least(number)
        return None if number < 0 else self._root / f"step_{number}"

    def newest_of(self, line: Sequence[tuple[int, int | None]]) -> Path | None:
        """Find the newest whole one whose update and batch are on the line.

        None: the line begins with the starting model. UserError: neither is there."""
        found = self.newest(lambda update, batch_id: (update, batch_id) in line)
        if found is None and (0, None) not in line:
            raise UserError(
                f"no whole checkpoint in {self._root} can be gone back to: bring back step_"
                f"{min(line)[0]} or a later one of this run, or start a new run"
            )
        return found

    def save(
        self,
        models: ModelSet,
        position: WeightPosition,
        journal: JournalEnd | None,
        *,
        resumed_from: Path | None,
        behind: bool,
    ) -> Path | None:
        """Write a checkpoint, or begin to write copies: then None, and `writing` has its path.

        A collective. Each rank writes its own state, which rank 0 moves into the checkpoint."""
        assert self.writing.written(None) is None, "nobody took the last checkpoint"
        shelf, learner = self._root / ".ranks", self._config.learner
        if self._rank == 0:
            shutil.rmtree(shelf, ignore_errors=True)  # of a learner that was killed
        self._relay.least(0)
        update = position.update
        with self._work.moving(f"copying what the checkpoint of update {update} holds"):
            states = {
                f"{name}-{self._rank}.safetensors": engine.state() | {"rng": torch.get_rng_state()}
                for name, engine in models.engines.items()
                if self._rank == 0 or learner.zero_stage
            }
            whole = models.whole()
        ranks = learner.ranks if learner.zero_stage else 1
        wanted = [f"{name}-{rank}.safetensors" for name in models.engines for rank in range(ranks)]
        facts = asdict(position) | {
            "journal": journal and to_builtins(journal),
            "ranks": learner.ranks,
            "zero_stage": learner.zero_stage,
            "steps": {name: engine.steps for name, engine in models.engines.items()},
            "resumed_from": str(resumed_from) if resumed_from else None,
        }

        def fill(folder: Path) -> None:
            for name, model in whole.items():
                models.save(name, folder / name, model)
            shutil.copytree(shelf, folder / STATE, copy_function=_same_file)

        def await_all() -> None:
            # Of a single name NFS may say for half a minute that it is not there; it lists anew.
            while not set(wanted) <= set(os.listdir(shelf)):
                time.sleep(_POLL_S)

        def write(tell: Tell, work: ProgressReporter | None = None) -> Path | None:
            for name, state in states.items():
                _shelve(state, shelf / name, tell)
            if self._rank:
                return None
            # What the disks of other ranks lack, these tell their logs alone.
            text = f"the disk of {shelf} to take the files of all ranks"
            until_written(await_all, shelf, 0, tell=lambda told: tell(told and text))
            path = write_checkpoint(
                self._root, facts.pop("update"), fill, facts=facts,
                keep_last=self._config.checkpoint.keep_last,
                needs=sum(bytes_of(model.weights) for model in whole.values()),
                tell=tell, work=work,
            )  # fmt: skip
            shutil.rmtree(shelf)
            return path

        if behind:
            self.writing.begin(write)
            return None
        with self._work.moving(f"writing the checkpoint of update {update}"):
            path = write(self._tell, self._work)
        self._relay.least(0)
        return path

    def restore(
        self, path: Path, engines: Mapping[str, DeepSpeedEngine | FeatureEngine]
    ) -> WeightPosition:
        """Restore optimizers and random numbers from the checkpoint.

        UserError where they were cut into other shares than this learner's."""
        manifest, learner = read_manifest(path), self._config.learner
        ranks, stage = manifest["ranks"], manifest["zero_stage"]
        if learner.zero_stage and (ranks, stage) != (learner.ranks, learner.zero_stage):
            raise UserError(
                f"{path} was written by {ranks} ranks at ZeRO stage {stage}; its optimizer state "
                "is cut that way: set learner.ranks and learner.zero_stage to these"
            )
        for name, engine in engines.items():
            rank = self._rank if learner.zero_stage else 0
            state = load_file(path / STATE / f"{name}-{rank}.safetensors")
            torch.set_rng_state(state.pop("rng"))
            engine.load_state(state)
        return convert(manifest, WeightPosition)


def _shelve(state: dict[str, Tensor], path: Path, tell: Tell) -> None:
    def attempt() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        save_file(state, partial)
        partial.rename(path)

    until_written(attempt, path.parent, bytes_of(state), tell=tell)


def _same_file(source: str, target: str) -> str:
    """Link the file, or copy it where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        return str(shutil.copyfile(source, target))
    return target
