"""Which cores the front of a generator uses. The front is the process beside vLLM's engine process:
it takes in what the engine sampled and sends it on, with about a tenth of the engine's work.

In: whether what it serves is training or an evaluation. Out: the calling thread's affinity. In
training the front shares the engine's core, so that the learner has its own to itself. In an
evaluation the learner waits, and the front may use the learner's core as well: the engine then has
its core alone. The engine itself never moves.
"""

import os
from collections.abc import Collection


class Cores:
    """Cores of a front. `training` and `evaluation`: what it may use meanwhile; without the latter
    it always keeps what it has."""

    def __init__(self, training: Collection[int] = (), evaluation: Collection[int] = ()) -> None:
        self._training, self._evaluation = frozenset(training), frozenset(evaluation)
        self._now = self._training

    def serve(self, *, evaluation: bool) -> None:
        """From now on the front serves an evaluation, or training. OSError when a core is not to be
        had."""
        wanted = self._evaluation if evaluation else self._training
        if self._evaluation and wanted != self._now:
            os.sched_setaffinity(0, wanted)
            self._now = wanted
