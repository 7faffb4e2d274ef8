"""The coordinator's parts, built together: each has its own side of the run."""

from dataclasses import dataclass

from coordinator.dispatch.prompts import Prompts
from coordinator.hub import Hub
from coordinator.rollouts.episodes import Episodes
from coordinator.rollouts.evaluation import Evaluation
from coordinator.rollouts.generation import Generation
from coordinator.rollouts.intake import Intake
from coordinator.scoring.score_requests import Scoring
from coordinator.startup_check import SelfTest
from coordinator.training.gauges import Gauges
from coordinator.training.learner_updates import Training


@dataclass(frozen=True)
class Parts:
    """Built once, in `build_parts`."""

    prompts: Prompts
    intake: Intake
    gauges: Gauges
    scoring: Scoring
    generation: Generation
    training: Training
    evaluation: Evaluation
    self_test: SelfTest
    episodes: Episodes | None


def build_parts(hub: Hub, prompts: Prompts) -> Parts:
    """Parts that share one hub."""
    gauges = Gauges(hub)
    generation = Generation(hub, prompts)
    scoring = Scoring(hub, prompts)
    return Parts(
        prompts=prompts,
        intake=Intake(hub, prompts.vocabulary),
        gauges=gauges,
        scoring=scoring,
        generation=generation,
        training=Training(hub, generation, gauges),
        evaluation=Evaluation(hub, prompts, generation, scoring.source_of),
        self_test=SelfTest(hub, prompts, scoring.source_of),
        episodes=None if hub.config.environment is None else Episodes(hub, prompts),
    )
