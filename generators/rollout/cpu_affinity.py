"""Where a generator's seconds go, and which cores the front of a generator uses. The front is the
process beside vLLM's engine process: it takes in what the engine sampled and sends it on, with
about a tenth of the engine's work.

In: whether what it serves is training or an evaluation. Out: the calling thread's affinity. In
training the front shares the engine's core, so that the learner has its own to itself. In an
evaluation the learner waits, and the front may use the learner's core as well: the engine then has
its core alone. The engine itself never moves.
"""

import os
import time
from collections.abc import Callable, Collection


class FrontCores:
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


class WorkTime:
    """A stopwatch switched by the number of live requests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._since = clock()
        self._live = False
        self._live_s = 0.0
        self.pause_s = 0.0

    def set_live(self, live: bool) -> None:
        """Note whether any request is live from now on."""
        now = self._clock()
        if self._live:
            self._live_s += now - self._since
        self._since, self._live = now, live

    def add_pause(self, seconds: float) -> None:
        """Live requests stood still for so long; with none live this was idle time."""
        if self._live:
            self.pause_s += seconds

    @property
    def busy_s(self) -> float:
        """Seconds with live requests, pauses excluded."""
        self.set_live(self._live)
        return max(0.0, self._live_s - self.pause_s)

    @property
    def idle_s(self) -> float:
        """Seconds with nothing to generate."""
        self.set_live(self._live)
        return self._since - self._began - self._live_s
