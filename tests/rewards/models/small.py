"""Small trainings of each objective, from a policy that ships with the project.

What they learn is plain to see, so that fifty steps suffice: an answer that shows its working is
better than one that does not, and a line of one term is good, one of two terms is not.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from headrace.config.loading.recipe import load_reward_model
from headrace.config.sections.reward_model import FileDataConfig, RewardModelConfig
from headrace.run_files.reward_model_run import EvaluationLine, StepLine
from headrace.run_files.run_folder import locked, make_run_folder
from rewards.models.training.train import TrainingResult, train
from tasks.procedural.chain_sums import write_direct, write_fine, write_prompt, write_steps

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ROOT / "recipes" / "reward-models"
MODELS = ROOT / "recipes" / "models"
EXAMPLES = 400


class Silence:
    """A watch that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[StepLine] = []
        self.evaluations: list[EvaluationLine] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, line: StepLine, steps: int) -> None:
        self.steps.append(line)

    def evaluated(self, line: EvaluationLine) -> None:
        self.evaluations.append(line)


def small(name: str, root: Path, *overrides: str, steps: int = 50) -> RewardModelConfig:
    """The recipe of an objective with other data and fewer steps."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / "examples.jsonl"
    rows = labels() if name == "lines" else preferences()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = load_reward_model(
        RECIPES / f"{name}.toml",
        [
            f'root="{root}/runs"',
            f"training.steps={steps}",
            f"training.evaluate_every={steps}",
            "training.batch=12",
            "training.warmup_steps=3",
            *overrides,
        ],
    )
    data = FileDataConfig(kind="file", path=str(path), eval_fraction=0.15, eval_limit=48)
    return config.model_copy(update={"data": data})


def preferences() -> Iterator[dict[str, Any]]:
    """Answers with and without their working."""
    for digits in _problems():
        yield {
            "prompt": write_prompt(digits),
            "chosen": write_fine(digits),
            "rejected": write_direct(digits),
        }


def labels() -> Iterator[dict[str, Any]]:
    """Answers with a line of one term and a line of two, in either order."""
    for number, digits in enumerate(_problems()):
        jumps = [1, 2] if number % 2 else [2, 1]
        first, second, last = write_steps(digits, jumps).split(";")
        yield {
            "prompt": write_prompt(digits),
            "lines": [first, second, last],
            "labels": [1 if jump == 1 else -1 for jump in jumps] + [None],
        }


def _problems() -> Iterator[list[int]]:
    rng = Random(0)
    for _ in range(EXAMPLES):
        yield [rng.randint(1, 9) for _ in range(3)]


def run(
    config: RewardModelConfig,
    run_dir: Path | None = None,
    *,
    watch: Silence | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[Path, TrainingResult]:
    """Train, in a new run folder unless there is one to go on with."""
    run_dir = run_dir or make_run_folder(config)
    with locked(run_dir):
        return run_dir, train(config, run_dir, watch or Silence(), should_stop=should_stop)
