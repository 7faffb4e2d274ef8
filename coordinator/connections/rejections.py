"""What peers may cause again and again: each is counted, and few are written down.

Comes in: who sent what is refused, of which kind, and why; or what a peer's message makes the
coordinator write. Goes out: a count by kind, and lines for the run's history. Promises: in a period
(a minute) at most FIRST rejections of one sender and kind and MOST in all, and at most OF_A_KIND
lines of any other kind, then one line that says how many more there were; memory does not grow with
the number of messages or of senders.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

FIRST = 3
"""Lines for one sender and kind in a period."""
MOST = 20
"""Lines in a period, the summary apart."""
OF_A_KIND = 30
"""Incidents of one kind in a period."""
COMINGS = 1000
"""Comings and goings of processes in a period."""
PERIOD_S = 60.0
LONGEST = 300
"""Characters of a sender's name or of a reason that are kept."""


@dataclass
class RejectionLog:
    """`write` takes a kind and a text; `clock` gives seconds."""

    write: Callable[[str, str], None]
    clock: Callable[[], float] = time.monotonic
    counts: Counter[str] = field(default_factory=Counter)
    """All rejections of this process so far, by kind."""
    before: int = 0
    """Those of the coordinators before it."""
    _lines: Counter[tuple[str, str]] = field(default_factory=Counter)
    _unsaid: Counter[str] = field(default_factory=Counter)
    _began: float | None = None

    @property
    def total(self) -> int:
        """All rejections so far."""
        return self.before + self.counts.total()

    def count(self, kind: str) -> None:
        """Count a rejection and write nothing, because such rejections happen in healthy runs
        too."""
        self.counts[kind] += 1

    def add(self, sender: str, kind: str, text: str, number: int = 1) -> None:
        """Count a rejection, or a number of equal ones, and write a line about it while the period
        has lines left."""
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
        """Write the summary of the period if the period is over. Callers call this now and then."""
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
    """How often something of a kind is written in a period; kinds are names in the program."""

    clock: Callable[[], float] = time.monotonic
    _seen: Counter[str] = field(default_factory=Counter)
    _unsaid: Counter[str] = field(default_factory=Counter)
    _began: float | None = None

    def passes(self, kind: str, most: int = OF_A_KIND) -> bool:
        """Whether one more of the kind is written; else it is counted for the summary."""
        if self._began is None:
            self._began = self.clock()
        self._seen[kind] += 1
        if self._seen[kind] <= most:
            return True
        self._unsaid[kind] += 1
        return False

    def summary(self, *, at_once: bool = False) -> str | None:
        """How many were not written, where the period is over (or `at_once`) and there were some; a
        new period begins then."""
        if self._began is None or not (at_once or self.clock() - self._began >= PERIOD_S):
            return None
        parts = ", ".join(f"{n} {kind}" for kind, n in sorted(self._unsaid.items()))
        self._seen.clear()
        self._unsaid.clear()
        self._began = None
        return f"more of the same happened: {parts}" if parts else None
