"""The training loop: steps, held-out figures, checkpoints, the report.

In: a recipe and its run folder, and somebody who watches. Out: the trained model's folder, lines of
metrics, a report. Promises: the order of examples depends on the seed and the step alone, so that a
resumed run trains what it would have trained; a request to stop is heard between two steps and
leaves a checkpoint; a step whose gradient is not finite is not applied.
"""

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
import torch
from safetensors.torch import save_file

from headrace.config.sections.reward_model import RankerConfig, RewardModelConfig
from headrace.data.image_processor import sees_images
from headrace.data.tokenizer import load_tokenizer
from headrace.errors import RunFailedError, UserError, first_line
from headrace.run_files.reward_model_run import (
    BEST,
    CHECKPOINTS,
    MODEL,
    EvaluationLine,
    RewardModelStatus,
    StepLine,
    append_line,
    forget_after,
    read_status,
    steps_and_evaluations,
    write_status,
)
from headrace.run_files.run_folder import read_manifest
from learner.process.checkpoint import newest, write_checkpoint
from rewards.models.encoding import PromptImages
from rewards.models.packing import LossUnit, UnitPack, packs_of
from rewards.models.training.examples import ExampleImages, Examples
from rewards.models.training.metrics import flat
from rewards.models.training.model import HF, STATE, RewardModel, positions_of
from rewards.models.training.objectives import Objective, build_objective
from rewards.models.training.report import write_report
from rewards.models.training.sources import read_examples

_KEPT = 2
MOST_DROPPED = 20
"""Number of consecutive non-finite steps that end the run."""


class TrainingObserver(Protocol):
    """Receives the training's progress."""

    def note(self, text: str) -> None:
        """Something worth a line."""

    def step(self, line: StepLine, steps: int) -> None:
        """A step was taken, of `steps`."""

    def evaluated(self, line: EvaluationLine) -> None:
        """The held-out examples were looked at."""


class StepResult(NamedTuple):
    """An optimizer step: mean loss, gradient norm before clipping, learning rate, tokens.

    `grad_norm` None: the step was not applied."""

    loss: float
    grad_norm: float | None
    lr: float
    tokens: int


class Trainee(Protocol):
    """The model in training, with its examples."""

    steps: int
    """Of the whole training."""
    examples: dict[str, int]
    """Number of examples, and of those left out, by name."""

    def take(self, step: int) -> StepResult:
        """Take the step that follows `step` others."""

    def evaluate(self) -> dict[str, Any]:
        """Figures on the held-out examples."""

    def state(self) -> dict[str, torch.Tensor]:
        """State that a resumed run needs beside the model."""

    def save(self, folder: Path, run_id: str) -> None:
        """Write the folder of the trained model."""


@dataclass(frozen=True)
class TrainingResult:
    """Result of a training. `model` None: it was interrupted."""

    model: Path | None
    step: int
    figures: dict[str, Any]


def train(
    config: RewardModelConfig,
    run_dir: Path,
    watch: TrainingObserver,
    *,
    should_stop: Callable[[], bool],
) -> TrainingResult:
    """Train from the newest checkpoint, or the start, until the end or `should_stop`.

    The caller holds the run."""
    status = replace_status(read_status(run_dir), status="starting", detail="")
    status = status if status.started_at else replace_status(status, started_at=time.time())
    write_status(run_dir, status)
    try:
        return TrainingLoop(config, run_dir, watch, status).run(should_stop)
    except BaseException as error:  # whatever ends it, the folder says so
        line = first_line(error)
        last = replace_status(read_status(run_dir), status="failed", detail=line)
        write_status(run_dir, last)
        raise


def replace_status(status: RewardModelStatus, /, **changes: Any) -> RewardModelStatus:
    """The status with other values, as of now."""
    return msgspec.structs.replace(status, at=time.time(), **changes)


def build_trainee(config: RewardModelConfig, resumed: Path | None) -> Trainee:
    """Build what a recipe trains, from its start or a checkpoint."""
    if isinstance(config.objective, RankerConfig):
        from rewards.models.training.ranker import SessionRankerTraining

        if config.training.patience is not None or config.training.from_scratch:
            raise UserError("training: patience and from_scratch do not go with a ranker")
        return SessionRankerTraining(config, config.objective, resumed)
    return PackedTraining(config, resumed)


class TrainingLoop:
    """A training in progress."""

    def __init__(
        self,
        config: RewardModelConfig,
        run_dir: Path,
        watch: TrainingObserver,
        status: RewardModelStatus,
    ) -> None:
        self._config, self._run_dir, self._watch = config, run_dir, watch
        resumed = newest(run_dir / CHECKPOINTS)
        self._trainee = build_trainee(config, resumed)
        self._steps = self._trainee.steps
        self._step, self._tokens, self._seconds, self._dropped = 0, 0, 0.0, 0
        if resumed is not None:
            facts = read_manifest(resumed)
            self._step = int(facts["update"])
            self._tokens, self._seconds = int(facts["tokens"]), float(facts["train_time_s"])
        forget_after(run_dir, self._step)
        self._figures: dict[str, Any] = {}
        self._best: dict[str, Any] = {}
        _, evaluations = steps_and_evaluations(run_dir)
        self._held_out = [line.figures for line in evaluations]
        """Figures of all evaluations of the run."""
        self._status = replace_status(status, status="training", step=self._step, steps=self._steps)
        self._kept_at = self._step if resumed is not None else -1
        told = [f"{number} {name}" for name, number in self._trainee.examples.items()]
        watch.note(f"examples: {', '.join(told).replace('_', ' ')}; {self._steps} steps")

    def run(self, should_stop: Callable[[], bool]) -> TrainingResult:
        """Take the steps that are left."""
        config = self._config.training
        if not self._held_out:
            self._evaluate()
        before = self._held_out[0]  # of a resumed run those at its first start
        while self._step < self._steps and not self._is_over():
            if should_stop():
                return self._interrupted()
            self._take_step()
            if self._step % config.evaluate_every == 0 and self._step < self._steps:
                self._evaluate()
            if self._step % config.checkpoint_every == 0 and self._step < self._steps:
                self._checkpoint()
        if not self._is_over():
            self._evaluate()
        self._checkpoint()
        return self._finished(before)

    def _is_over(self) -> bool:
        """Return whether the held-out loss has not fallen for `patience` evaluations."""
        patience = self._config.training.patience
        return patience is not None and self._evaluations_since_best() >= patience

    def _evaluations_since_best(self) -> int:
        found = [figures.get("loss") for figures in self._held_out]
        losses = [math.inf if loss is None else loss for loss in found]
        return len(losses) - 1 - losses.index(min(losses)) if losses else 0

    def _take_step(self) -> None:
        began = time.perf_counter()
        taken = self._trainee.take(self._step)
        self._step += 1
        self._tokens += taken.tokens
        self._seconds += time.perf_counter() - began
        self._dropped = 0 if taken.grad_norm is not None else self._dropped + 1
        if self._dropped >= MOST_DROPPED:
            raise RunFailedError(
                f"{MOST_DROPPED} steps in a row had a loss or a gradient that is not finite; lower "
                "training.lr or take another engine.precision"
            )
        line = StepLine(
            step=self._step,
            loss=taken.loss if math.isfinite(taken.loss) else None,
            grad_norm=taken.grad_norm,
            lr=taken.lr,
            tokens=self._tokens,
            train_time_s=self._seconds,
            at=time.time(),
        )
        append_line(self._run_dir, line)
        self._write_status("training")
        self._watch.step(line, self._steps)

    def _evaluate(self) -> None:
        self._figures = self._trainee.evaluate()
        line = EvaluationLine(self._step, flat(self._figures), self._seconds, time.time())
        self._held_out.append(line.figures)
        if self._config.training.patience is not None and not self._evaluations_since_best():
            self._best = self._figures
            self._trainee.save(self._run_dir / BEST, self._run_dir.name)
        append_line(self._run_dir, line)  # behind the model: with a line it is not evaluated again
        self._watch.evaluated(line)

    def _checkpoint(self) -> None:
        """Write everything that a resumed run needs under checkpoints/step_N."""
        if self._kept_at == self._step:
            return

        def fill(folder: Path) -> None:
            self._trainee.save(folder / HF, self._run_dir.name)
            (folder / STATE).mkdir()
            state = self._trainee.state() | {"rng": torch.get_rng_state()}
            save_file(state, folder / STATE / "engine.safetensors")

        facts = {"tokens": self._tokens, "train_time_s": self._seconds}
        root = self._run_dir / CHECKPOINTS
        write_checkpoint(root, self._step, fill, facts=facts, keep_last=_KEPT)
        self._kept_at = self._step

    def _interrupted(self) -> TrainingResult:
        self._checkpoint()
        self._write_status("interrupted", f"interrupted after {self._step} of {self._steps} steps")
        return TrainingResult(None, self._step, self._figures)

    def _finished(self, before: dict[str, float | None]) -> TrainingResult:
        out = self._config.out
        folder = (self._run_dir / MODEL if out is None else Path(out)).resolve()
        after, best = self._figures, self._run_dir / BEST
        if self._config.training.patience is None:
            self._trainee.save(folder, self._run_dir.name)
        else:
            after = self._best or self._held_out[-1 - self._evaluations_since_best()]
            shutil.copytree(best, folder, dirs_exist_ok=True)
        write_report(
            self._run_dir,
            {
                "run_id": self._run_dir.name,
                "objective": self._config.objective.kind,
                "start": self._config.model.path,
                "model": str(folder),
                "seed": self._config.seed,
                "steps": self._steps,
                "tokens": self._tokens,
                "train_time_s": self._seconds,
                "examples": self._trainee.examples,
                "before": before,
                "after": after,
            },
        )
        self._write_status("finished")
        shutil.rmtree(best, ignore_errors=True)
        return TrainingResult(folder, self._step, after)

    def _write_status(self, status: str, detail: str = "") -> None:
        self._status = replace_status(self._status, status=status, step=self._step, detail=detail)
        write_status(self._run_dir, self._status)


class PackedTraining:
    """A causal model in the learner's engine, its examples packed."""

    def __init__(self, config: RewardModelConfig, resumed: Path | None) -> None:
        """UserError where examples or model cannot be had."""
        trust = config.model.trust_remote_code
        tokenizer = load_tokenizer(config.model.path, trust_remote_code=trust)
        examples, images = read_examples(config), None
        read_image: Callable[[str], bytes] | None = None
        if sees_images(config.model.path):
            files = ExampleImages()
            read_image, images = files.read, PromptImages(config.model.path, files.read)
            examples = examples.each(files.named)
        self._config, self._objective = config, build_objective(config, tokenizer, images)
        limit = min(config.data.max_tokens, positions_of(config) or config.data.max_tokens)
        found = encode_examples(config, self._objective, examples, limit=limit)
        self._training, self._held_out = found
        self.examples = {
            "training": len(self._training),
            "held_out": len(self._held_out),
            "too_long": len(examples.training) - len(self._training),
            "ties": examples.ties,
        }
        training = config.training
        visits = len(self._training) * training.epochs
        self.steps = training.steps or max(1, math.ceil(visits / training.batch))
        is_scalar = self._objective.is_scalar
        self._model = RewardModel(
            config, tokenizer, is_scalar=is_scalar, steps=self.steps, resumed=resumed,
            read_image=read_image,
        )  # fmt: skip
        if not self._model.shares_rows and any(len(unit.rows) > 1 for unit in self._held_out):
            raise UserError(f"{config.model.path}: its layers have a state, and pairs share a row")
        self.state, self.save = self._model.engine.state, self._model.save

    def take(self, step: int) -> StepResult:
        """A step on a batch of units."""
        config, model = self._config, self._model
        units = batch_of(self._training, step, config.training.batch, config.seed)
        packs = self._packs(units)
        weight = sum(unit.weight for unit in units)
        lr, losses = model.engine.lr, []
        for number, pack in enumerate(packs, start=1):
            loss = self._objective.loss(model.engine(pack.pack), pack) / weight
            model.engine.backward(loss, last=number == len(packs))
            losses.append(loss.detach())
        done = model.engine.step()
        return StepResult(
            float(torch.stack(losses).sum()),
            done.grad_norm if done.applied else None,
            lr,
            sum(unit.tokens for unit in units),
        )

    @torch.no_grad()
    def evaluate(self) -> dict[str, Any]:
        """Figures of the held-out units under the present weights."""
        judged: list[tuple[float, ...]] = []
        seen: list[LossUnit] = []
        for pack in self._packs(self._held_out):
            judged += self._objective.judge(self._model.engine(pack.pack), pack)
            seen += pack.units
        return self._objective.figures(judged, seen)

    def _packs(self, units: Sequence[LossUnit]) -> list[UnitPack]:
        model = self._model
        budget = self._config.engine.micro_batch_tokens if model.shares_rows else 1
        return packs_of(units, budget=budget, device=model.device, images=model.images)


def encode_examples(
    config: RewardModelConfig, objective: Objective, examples: Examples[Any], *, limit: int
) -> tuple[list[LossUnit], list[LossUnit]]:
    """Encode examples, and held-out ones, with outputs and at most `limit` tokens; UserError for an
    empty side."""
    found = [objective.unit(example, training=True) for example in examples.training]
    held = (objective.unit(example, training=False) for example in examples.held_out)
    kept_out = list(islice((u for u in held if fits(u, limit)), config.data.eval_limit))
    training = [u for u in found if fits(u, limit)]
    if not training or not kept_out:
        raise UserError(
            f"{len(training)} examples to learn from and {len(kept_out)} held-out ones have at "
            f"most {limit} tokens, which is data.max_tokens or all that the model has positions for"
        )
    return training, kept_out


def fits(unit: LossUnit, limit: int) -> bool:
    """Return whether a unit can be trained: it has outputs, and no row is too long."""
    return 0 < unit.longest <= limit and unit.reads > 0


U = TypeVar("U")


def batch_of(units: Sequence[U], step: int, size: int, seed: int) -> list[U]:
    """Return a step's distinct units, in an endless stream of shuffled epochs."""
    count, first = len(units), step * size
    places = [
        _order(seed, position // count, count)[position % count]
        for position in range(first, first + size)
    ]
    return [units[place] for place in dict.fromkeys(places)]


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, count: int) -> list[int]:
    return np.random.default_rng([seed, epoch]).permutation(count).tolist()
