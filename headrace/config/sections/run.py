"""The root of a run's configuration, and the checks across sections."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field

from headrace.config.sections.algorithm import AlgorithmConfig
from headrace.config.sections.base import StrictModel
from headrace.config.sections.environment import EnvironmentConfig
from headrace.config.sections.generator import GeneratorConfig
from headrace.config.sections.learner import LearnerConfig
from headrace.config.sections.model import ModelConfig
from headrace.config.sections.process import (
    CheckpointConfig,
    DashboardConfig,
    EvaluationConfig,
    StopConfig,
    StorageConfig,
    TransportConfig,
    mask_password,
)
from headrace.config.sections.reward import RewardConfig
from headrace.config.sections.schedule import ScheduleConfig
from headrace.config.sections.task import TaskConfig, members


class RunConfig(StrictModel):
    """Everything a run is made from; saved as `resolved.json` in the run folder."""

    name: str = "run"
    """First part of the run's id."""

    root: str = "runs"
    """Folder that holds the run folders."""

    seed: int = Field(default=0, ge=0)
    """Seed of prompts, sampling and initialisation."""

    model: ModelConfig
    task: TaskConfig
    algorithm: AlgorithmConfig
    schedule: ScheduleConfig = ScheduleConfig()
    generator: GeneratorConfig = GeneratorConfig()
    reward: RewardConfig = RewardConfig()
    environment: EnvironmentConfig | None = None
    learner: LearnerConfig = LearnerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    stop: StopConfig = StopConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    storage: StorageConfig = StorageConfig()
    transport: TransportConfig = TransportConfig()
    dashboard: DashboardConfig = DashboardConfig()

    def public(self) -> "RunConfig":
        """The same with stars for a password: what other processes and terminals get to see."""
        if not self.storage.has_password:
            return self
        assert self.storage.database is not None
        storage = self.storage.model_copy(update={"database": mask_password(self.storage.database)})
        return self.model_copy(update={"storage": storage})

    @property
    def self_tests(self) -> bool:
        """Return whether generators answer a test prompt first; an evaluation is its own test."""
        return self.transport.self_test_s is not None and not self.evaluation.only

    @property
    def longest(self) -> int:
        """Maximum tokens of a sequence: the prompt and all that policy and environment write."""
        answered = self.task.max_prompt_length + self.task.max_response_length
        if self.environment is None:
            return answered
        longest = answered + self.environment.max_inserted
        return min(longest, self.environment.max_context or longest)

    @property
    def anchor_tokens(self) -> int:
        """Maximum tokens of an anchor, which the value model reads besides; 0: it reads none."""
        value = self.algorithm.value
        return self.task.max_response_length if value and value.context == "anchor" else 0

    @property
    def prefix_is_fresh(self) -> bool:
        """Return whether generators read every prefix with the weights that continue it. A stream
        without staleness works in rounds."""
        in_rounds = self.schedule.mode != "streaming" or self.schedule.max_staleness == 0
        return in_rounds or self.generator.kv_on_update == "recompute"

    @property
    def is_scored(self) -> bool:
        """Return whether reward workers score answers: not where an environment alone pays."""
        return self.environment is None or self.environment.scored

    def source_of(self, columns: Callable[[], Mapping[str, Any]]) -> str | None:
        """Return the source of a row with these columns; in a mixture one says its domain."""
        domain = str(columns().get("domain", "")) if self.reward.route.tasks else ""
        return self.reward.route_of(members(self.task).get(domain, self.task).kind, columns)

    @property
    def window(self) -> int:
        """Maximum tokens of a trajectory trained in one update (synchronous: the response)."""
        if self.schedule.mode == "synchronous" or self.schedule.window is None:
            return self.task.max_response_length
        return self.schedule.window

    def value_epochs(self, *, warms_up: bool) -> int:
        """Passes of the value model over its half of a batch; `warms_up`: it trains alone."""
        value = self.algorithm.value
        return value.warmup_epochs if warms_up and value else self.learner.value.epochs

    @property
    def publishes_copies(self) -> bool:
        """Return whether published weights are copies on every device, which stay as they are."""
        return self.schedule.publishes_behind or self.generator.weights == "broadcast"

    @property
    def chunk_tokens(self) -> int:
        """Maximum number of tokens per chunk."""
        return self.generator.chunk_tokens or min(self.window, 256)
