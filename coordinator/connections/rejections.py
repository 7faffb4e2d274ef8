"""Rate limits of what peers cause: all rejections are counted, few are recorded.

In: the sender, kind and reason of a rejection; the kind of an incident that a peer caused. Out: a
count by kind, and lines for the run's history. Promises: in a period (a minute) at most FIRST
rejections per sender and kind and MOST in all, and at most OF_A_KIND lines of any other kind, then
one line with the number of further ones; memory does not grow with the number of messages or
senders.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

FIRST = 3
"""Maximum number of lines per sender and kind in a period."""
MOST = 20
"""Maximum number of lines in a period, the summary apart."""
OF_A_KIND = 30
"""Maximum number of incidents of one kind in a period."""
COMINGS = 1000
"""Maximum number of records of processes that come and go in a period."""
PERIOD_S = 60.0
LONGEST = 300
"""Maximum number of characters of a sender's name or of a reason."""


@dataclass
class RejectionLog:
    """Rejections by kind; `write` takes a kind and a text, `clock` gives seconds."""

    write: Callable[[str, str], None]
    clock: Callable[[], float] = time.monotonic
    counts: Counter[str] = field(default_factory=Counter)
    """All rejections of this process so far, by kind."""
    before: int = 0
    """Number of rejections of earlier coordinators."""
    _lines: Counter[tuple[str, str]] = field(default_factory=Counter)
    _unsaid: Counter[str] = field(default_factory=Counter)
    _began: float | None = None

    @property
    def total(self) -> int:
        """Number of all rejections so far."""
        return self.before + self.counts.total()

    def count(self, kind: str) -> None:
        """Count a rejection that healthy runs have too, and write nothing."""
        self.counts[kind] += 1

    def add(self, sender: str, kind: str, text: str, number: int = 1) -> None:
        """Count a number of equal rejections; write a line if the period has any left."""
        self.write_summary_if_due()
        self.counts[kind] += number
        if self._began is None:
            self._began = self.clock()
        key = (sender[:LONGEST], kind)
        if self._lines.total() >= MOST or self._lines[key] >= FIRST:
            self._unsaid[kind] += number
            return
        self._lines[key] += 1
        self.write(kind, f"{key[0]}: {text[:LONGEST]}")

    def write_summary_if_due(self) -> None:
        """Write the period's summary if it is over. Callers call this now and then."""
        if self._began is not None and self.clock() - self._began >= PERIOD_S:
            self.close()

    def close(self) -> None:
        """Write the unreported rejections and reset the counts."""
        if self._unsaid:
            parts = ", ".join(f"{n} {kind}" for kind, n in sorted(self._unsaid.items()))
            self.write("messages_rejected", f"more of the same were rejected: {parts}")
        self._lines.clear()
        self._unsaid.clear()
        self._began = None


@dataclass
class RepeatLimiter:
    """Limit of the incidents of one kind per period; kinds are names in the program."""

    clock: Callable[[], float] = time.monotonic
    _seen: Counter[str] = field(default_factory=Counter)
    _unsaid: Counter[str] = field(default_factory=Counter)
    _began: float | None = None

    def passes(self, kind: str, most: int = OF_A_KIND) -> bool:
        """Return whether another one of the kind is written; else count it."""
        if self._began is None:
            self._began = self.clock()
        self._seen[kind] += 1
        if self._seen[kind] <= most:
            return True
        self._unsaid[kind] += 1
        return False

    def summary(self, *, at_once: bool = False) -> str | None:
        """Return the numbers of unwritten ones, if any, where the period is over, or `at_once`.

        A period that is over is followed by a new one."""
        over = self._began is not None and self.clock() - self._began >= PERIOD_S
        if not (at_once or over):
            return None
        parts = ", ".join(f"{n} {kind}" for kind, n in sorted(self._unsaid.items()))
        self._unsaid.clear()
        if over:
            self._seen.clear()
            self._began = None
        return f"more of the same happened: {parts}" if parts else None
