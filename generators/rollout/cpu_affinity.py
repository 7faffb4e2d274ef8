"""CPU cores of a generator's front, and seconds of its work.

The front is the process beside vLLM's engine process: it sends sampled tokens on, with about a
tenth of the engine's work. In: whether it serves training or an evaluation. Out: the calling
thread's affinity. In training the front shares the engine's core, so that the learner has its own
to itself. In an evaluation the learner waits, and the front may use the learner's core as well: the
engine then has its core alone. The engine itself never moves.
"""

import os
import time
from collections.abc import Callable, Collection


class FrontCores:
    """Cores of a front in `training` and `evaluation`; without the latter they stay."""

    def __init__(self, training: Collection[int] = (), evaluation: Collection[int] = ()) -> None:
        self._training, self._evaluation = frozenset(training), frozenset(evaluation)
        self._now = self._training

    def serve(self, *, evaluation: bool) -> None:
        """Use the cores of an evaluation, or of training; OSError without one."""
        wanted = self._evaluation if evaluation else self._training
        if self._evaluation and wanted != self._now:
            os.sched_setaffinity(0, wanted)
            self._now = wanted


class WorkTime:
    """Stopwatch of a generator's busy, idle and paused seconds."""

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
        """Add a pause of live requests; without any it was idle time."""
        if self._live:
            self.pause_s += seconds

    @property
    def busy_s(self) -> float:
        """Seconds with live requests, pauses excluded."""
        self.set_live(self._live)
        return max(0.0, self._live_s - self.pause_s)

    @property
    def idle_s(self) -> float:
        """Seconds without live requests."""
        self.set_live(self._live)
        return self._since - self._began - self._live_s
