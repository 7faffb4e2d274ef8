"""Versions of a ranker that the run trains along, and their choice for each score.

In: versions as the learner publishes them. Out: the version that a score item names. Promises:
nothing is requested before there is a version; one version scores all answers of a group; a score
by a version that is more than `learner.ranker.max_staleness` behind the newest is requested again.
"""

from collections import deque
from collections.abc import Iterable
from pathlib import Path

from coordinator.connections.peers import ScoreKey
from headrace.config.sections.run import RunConfig
from headrace.protocol.messages.control import ModelVersion
from headrace.run_files.run_folder import RANKERS
from headrace.trajectory.trajectories import Trajectory


class RankerVersions:
    """Versions of the one reward source whose ranker is trained along, if any."""

    def __init__(self, config: RunConfig, run_dir: str) -> None:
        training = None if config.evaluation.only else config.learner.ranker
        kinds = {} if training is None else config.reward.each()
        self._source = next((name for name, s in kinds.items() if s.kind == "ranker"), None)
        most = 1 if training is None else training.max_staleness + 1
        self._recent: deque[ModelVersion] = deque(maxlen=most)
        self._asked: dict[ScoreKey, ModelVersion] = {}
        self._folder = Path(run_dir) / RANKERS

    def published(self, version: ModelVersion | None) -> None:
        """Score with this version from now on."""
        if version is not None:
            self._recent.append(version)

    def ready(self, source: str) -> bool:
        """Return whether a source can be asked for scores."""
        return source != self._source or bool(self._recent)

    def choose(self, ask: ScoreKey, group: Iterable[Trajectory]) -> ModelVersion | None:
        """Return the version that scores an answer, or the answers of its group."""
        if ask.source != self._source:
            return None
        scored = next((t.reward_model for t in group if t.reward_model), None)
        version = self._recent[-1] if scored is None else self._read(scored)
        self._asked[ask] = version
        return version

    def is_outdated(self, ask: ScoreKey) -> bool:
        """Return whether a score came from a version that is too old by now."""
        version = self._asked.pop(ask, None)
        return version is not None and version not in self._recent

    def _read(self, named: str) -> ModelVersion:
        number, _, digest = named.partition("-")
        path = str(self._folder / f"v{number}")
        return ModelVersion(version=int(number), path=path, digest=digest)
