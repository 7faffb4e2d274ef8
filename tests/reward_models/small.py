"""Small trainings of each objective, from the policy that ships with the project."""

from collections.abc import Callable
from pathlib import Path

from headrace.config.load import load_reward_model
from headrace.config.reward_model import RewardModelConfig
from headrace.reward_model_run import EvaluationLine, StepLine
from headrace.run_folder import locked, make_run_folder
from reward_models.training import Outcome, train

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes" / "reward-models"
MODELS = ROOT / "recipes" / "models"
SMALL = {
    "bradley-terry": ("data.max_terms=3", "training.batch=16"),
    "pairwise": ("data.max_terms=2", "training.batch=12"),
    "lines": ("data.min_terms=2", "data.max_terms=3", "training.batch=24"),
}
"""What makes a recipe small enough for a test."""


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
    """The recipe of an objective, made small."""
    return load_reward_model(
        RECIPES / f"{name}.toml",
        [
            f'root="{root}"',
            "data.examples=1000",
            "data.eval_limit=64",
            f"training.steps={steps}",
            "training.warmup_steps=3",
            f"training.evaluate_every={steps}",
            *SMALL[name],
            *overrides,
        ],
    )


def run(
    config: RewardModelConfig,
    run_dir: Path | None = None,
    *,
    watch: Silence | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[Path, Outcome]:
    """Train, in a new run folder unless there is one to go on with."""
    run_dir = run_dir or make_run_folder(config)
    with locked(run_dir):
        return run_dir, train(config, run_dir, watch or Silence(), should_stop=should_stop)
