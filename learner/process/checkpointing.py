"""Saving and restoring of a rank's models and optimizers.

In: a `ModelSet` and its position. Out: whole checkpoints in the run's folder, and engines as they
were. Promises: all ranks take the same one, and those of a host read its files once; with one rank
a restored learner goes on to the bit.
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from msgspec import to_builtins
from safetensors.torch import load_file, save_file
from torch import Tensor

from headrace.config.device_defaults import MIN_BF16_ZERO_STAGE
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.host.disk import until_written
from headrace.host.progress_reporter import ProgressReporter
from headrace.protocol.messages.control import JournalEnd
from headrace.run_files.run_folder import read_manifest
from learner.models.deepspeed_engine import DeepSpeedEngine
from learner.models.feature_network import FeatureEngine
from learner.process.checkpoint import POLICY, STATE, newest, number_of, write_checkpoint
from learner.process.model_set import ModelSet
from learner.process.rank_broadcast import RankRelay
from learner.process.weight_publishing import bytes_of

_NO_OPINION = 2**62
Tell = Callable[[str], None]


@dataclass
class WeightPosition:
    """Position of weights in a run.

    `update`: the last one in them (0: the starting policy). `batch_id`: its batch; None where that
    is not known. `lineage`: of that update. `version`: under which they are published."""

    update: int = 0
    lineage: int = 0
    batch_id: int | None = None
    version: int = 0


class RankCheckpoints:
    """The checkpoints of one rank. `passed_over`: those that were not whole, and why."""

    def __init__(
        self,
        root: Path,
        config: RunConfig,
        *,
        rank: int,
        relay: RankRelay,
        reads: bool,
        work: ProgressReporter,
    ) -> None:
        """`reads`: this rank checks which of them are whole."""
        self._root, self._config, self._rank = root, config, rank
        self._relay, self._reads, self._work = relay, reads, work
        self.passed_over: list[str] = []

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
        places = dict(line)

        def is_on_line(update: int, batch_id: int | None) -> bool:
            known = places.get(update)
            return update in places and (known is None or batch_id in (None, known))

        found = self.newest(is_on_line)
        if found is None and 0 not in places:
            raise UserError(
                f"no whole checkpoint in {self._root} can be gone back to: bring back step_"
                f"{min(places)} or a later one of this run, or start a new run"
            )
        return found

    def save(
        self,
        models: ModelSet,
        position: WeightPosition,
        journal: JournalEnd | None,
        *,
        resumed_from: Path | None,
        tell: Tell,
    ) -> Path:
        """Write a checkpoint: each rank its own state, which rank 0 moves into it."""
        shelf, learner = self._root / ".ranks", self._config.learner
        with self._work.moving(f"writing the checkpoint of update {position.update}"):
            for name, engine in models.engines.items():
                if self._rank == 0 or learner.zero_stage:
                    state = engine.state() | {"rng": torch.get_rng_state()}
                    _shelve(state, shelf / f"{name}-{self._rank}.safetensors", tell)
            whole = models.whole_weights()
            # Ranks wait here for one another's disks, for as long as these take.
            self._relay.least(0)
            if self._rank == 0:

                def fill(folder: Path) -> None:
                    for name, weights in whole.items():
                        models.save(name, folder / name, weights)
                    shutil.copytree(shelf, folder / STATE, copy_function=_same_file)

                facts = asdict(position) | {
                    "journal": journal and to_builtins(journal),
                    "ranks": learner.ranks,
                    "zero_stage": learner.zero_stage,
                    "steps": {name: engine.steps for name, engine in models.engines.items()},
                    "resumed_from": str(resumed_from) if resumed_from else None,
                }
                write_checkpoint(
                    self._root, facts.pop("update"), fill, facts=facts,
                    keep_last=self._config.checkpoint.keep_last,
                    needs=sum(map(bytes_of, whole.values())), tell=tell, work=self._work,
                )  # fmt: skip
                shutil.rmtree(shelf)
            self._relay.least(0)
        return self._root / f"step_{position.update}"

    def restore(
        self, path: Path, engines: Mapping[str, DeepSpeedEngine | FeatureEngine]
    ) -> WeightPosition:
        """Restore optimizers and random numbers from the checkpoint.

        UserError where they were cut into other shares than this learner's."""
        manifest, learner = read_manifest(path), self._config.learner
        ranks, stage = manifest["ranks"], manifest["zero_stage"]
        if learner.precision == "bfloat16" and stage < MIN_BF16_ZERO_STAGE:
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
        for name, engine in engines.items():
            rank = self._rank if learner.zero_stage else 0
            state = load_file(path / STATE / f"{name}-{rank}.safetensors")
            torch.set_rng_state(state.pop("rng"))
            engine.load_state(state)
        return WeightPosition(
            update=int(manifest["update"]),
            lineage=int(manifest["lineage"]),
            batch_id=manifest.get("batch_id"),
            version=int(manifest["version"]),
        )


def _shelve(state: dict[str, Tensor], path: Path, tell: Tell) -> None:
    def attempt() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(state, path)

    until_written(attempt, path.parent, bytes_of(state), tell=tell)


def _same_file(source: str, target: str) -> str:
    """Link the file, or copy it where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        return str(shutil.copyfile(source, target))
    return target
