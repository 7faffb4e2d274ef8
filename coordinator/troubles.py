"""Troubles: what a user should know while it lasts, or at the end.

Comes in: what the learner says, what the recorder waits for. Goes out: incidents for the run's
history, lines for whoever watches, and what the run waits for now. Promises: the same text is told
once; what is kept, and how much is written, is bounded.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

KEPT = 20
"""So many a monitor is told."""
MOST = 1000
"""So many are written down in a coordinator's life."""
Level = Literal["info", "warning", "error"]


class Wait(NamedTuple):
    """What somebody waits for, since a time of the monotonic clock."""

    text: str
    since: float


@dataclass
class Troubles:
    """`write` takes a level, a kind and a text, and puts them into the run's history."""

    write: Callable[[Level, str, str], None]
    waits: dict[str, Wait] = field(default_factory=dict)
    """What each process waits for, by its name."""
    newest: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT))
    _told: set[str] = field(default_factory=set)
    _written: int = 0

    def tell(self, kind: str, text: str, level: Level = "warning") -> None:
        """Something happened."""
        if text in self._told or self._written >= MOST:
            return
        self._told.add(text)
        self._written += 1
        self.newest.append(text)
        self.write(level, kind, text)

    def wait(self, name: str, kind: str, text: str) -> None:
        """A process waits for this from now on; for nothing any more where the text is empty."""
        before = self.waits.pop(name, None)
        if text:
            self.waits[name] = Wait(text, before.since if before else time.monotonic())
        if text and not before:
            self._told.discard(f"{name} waits: {text}")
            self.tell(kind, f"{name} waits: {text}", "error")
        elif before and not text:
            self._told.discard(f"{name} goes on")
            self.tell(kind, f"{name} goes on", "info")
