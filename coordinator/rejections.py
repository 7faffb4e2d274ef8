"""Rejected messages: each is counted, and few are written down.

Comes in: who sent what is refused, of which kind, and why. Goes out: a count by kind, and lines for
the run's history. Promises: in a period (a minute) at most FIRST lines for one sender and kind and
MOST lines in all, then one line that says how many more there were; memory does not grow with the
number of messages or of senders.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

FIRST = 3
"""Lines for one sender and kind in a period."""
MOST = 20
"""Lines in a period, the summary apart."""
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

    def add(self, sender: str, kind: str, text: str) -> None:
        """Count a rejection, and write a line about it while the period has lines left."""
        self.tell()
        self.counts[kind] += 1
        if self._began is None:
            self._began = self.clock()
        key = (sender[:LONGEST], kind)
        if self._lines.total() >= MOST or self._lines[key] >= FIRST:
            self._unsaid[kind] += 1
            return
        self._lines[key] += 1
        self.write(kind, f"{key[0]}: {text[:LONGEST]}")

    def tell(self) -> None:
        """Write the summary of the period if the period is over. Callers call this now and then."""
        if self._began is not None and self.clock() - self._began >= PERIOD_S:
            self.close()

    def close(self) -> None:
        """Write what has not been said yet, and begin anew."""
        if self._unsaid:
            parts = ", ".join(f"{n} {kind}" for kind, n in sorted(self._unsaid.items()))
            self.write("messages_rejected", f"more of the same were rejected: {parts}")
        self._lines.clear()
        self._unsaid.clear()
        self._began = None
