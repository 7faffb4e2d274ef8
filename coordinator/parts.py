"""Parts of the coordinator, built together; each has its own side of the run."""

from dataclasses import dataclass

from coordinator.dispatch.prompts import Prompts
from coordinator.hub import Hub
from coordinator.rollouts.along import AlongEvaluation
from coordinator.rollouts.episodes import EpisodeManager
from coordinator.rollouts.evaluation import Evaluator
from coordinator.rollouts.generation import Generation
from coordinator.rollouts.intake import ChunkIntake
from coordinator.scoring.score_requests import Scoring
from coordinator.startup_check import SelfTest
from coordinator.training.gauges import Gauges
from coordinator.training.learner_updates import LearnerUpdates


@dataclass(frozen=True)
class Parts:
    """Parts of one coordinator, built once, in `build_parts`."""

    prompts: Prompts
    intake: ChunkIntake
    gauges: Gauges
    scoring: Scoring
    generation: Generation
    training: LearnerUpdates
    evaluation: Evaluator
    along: AlongEvaluation
    self_test: SelfTest
    episodes: EpisodeManager | None


def build_parts(hub: Hub, prompts: Prompts) -> Parts:
    """Build the parts of a coordinator, which share one hub."""
    gauges = Gauges(hub)
    generation = Generation(hub, prompts)
    scoring = Scoring(hub, prompts)
    return Parts(
        prompts=prompts,
        intake=ChunkIntake(hub, prompts.vocabulary),
        gauges=gauges,
        scoring=scoring,
        generation=generation,
        training=LearnerUpdates(hub, generation, gauges),
        evaluation=Evaluator(hub, prompts, generation, scoring.source_of),
        along=AlongEvaluation(hub, generation, gauges.carry),
        self_test=SelfTest(hub, prompts, scoring.source_of),
        episodes=None if hub.config.environment is None else EpisodeManager(hub, prompts),
    )
