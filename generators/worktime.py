"""Where a generator's seconds go: busy (something is live), paused for weights, idle (the rest)."""

import time
from collections.abc import Callable


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
