"""Reads that take long, of runs that go on: not asked for again at every record.

In: a read and what it is of. Out: its value. Whatever took t seconds of the processor is good for
`REST` times t, so that a page of a live run, however large, spends a small share of the time on it;
what takes a tenth of a second is as fresh as the page. A value of another status is never given, so
that what a run ended with is exact.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

REST = 20.0
LEAST_S = 0.2
"""What takes less is asked for whenever something was written."""
MOST = 128
Key = tuple[Any, ...]


@dataclass
class _CachedValue:
    """A value, what it is of, when it was read (monotonic) and the processor seconds of that."""

    stamp: str = ""
    status: str = ""
    value: Any = None
    at: float = 0.0
    took: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class ThrottledReads:
    """Values by key; the ones that were not asked for longest are let go."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock, self._used = clock, used
        self._kept: OrderedDict[Key, _CachedValue] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, key: Key, stamp: str, status: str, ask: Callable[[], Any]) -> Any:
        """Return the value under the key as of `stamp`, which nobody may change.

        Of a run of this `status` it may be an older one whose rest is not over."""
        with self._lock:
            kept = self._kept.setdefault(key, _CachedValue())
            self._kept.move_to_end(key)
            while len(self._kept) > MOST:
                self._kept.popitem(last=False)
        with kept.lock:
            rests = kept.took > LEAST_S and self._clock() - kept.at < REST * kept.took
            if kept.stamp == stamp or (kept.stamp and kept.status == status and rests):
                return kept.value
            before = self._used()
            kept.value = ask()
            kept.stamp, kept.status = stamp, status
            kept.at, kept.took = self._clock(), self._used() - before
            return kept.value
