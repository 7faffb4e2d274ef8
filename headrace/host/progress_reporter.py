"""Progress of a process in finished units of work, reported to the coordinator.

In: stages with counts, or a stage alone around a long call without steps of its own. Out:
`Progress` in the place of heartbeats. Promises: nothing is sent unless a count has moved or a wait
goes on; what has moved is sent at least every 30 seconds and ten times in a stall time-out.

The progress of a long call (loading, capturing graphs, writing, hashing) is measured by the bytes
that this process and its descendants have read, written, or touched in memory for the first time.
CPU time does not measure it: a rank that waits for ever for another one spins.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from msgspec.structs import replace

from headrace.protocol.messages.control import Heartbeat, Progress
from headrace.protocol.transport.sockets import Link, sending_heartbeats

MAX_INTERVAL_S, STALL_SHARE = 30.0, 0.1
"""Progress is reported after this many seconds, or this share of the stall time-out."""
_MOVED = "MiB moved"


class ProgressReporter:
    """Current stage of a process: `at` and `moving` record it, `heartbeats` sends it.

    `between`: called at each unit, in the thread that reports it. `wait`: for what, since when."""

    def __init__(self, stall_timeout_s: float = 300.0) -> None:
        self._every_s = min(MAX_INTERVAL_S, stall_timeout_s * STALL_SHARE)
        self._now = self._said = Progress(stage="")
        self._known: dict[int, int] = {}
        self._bytes, self._looked_at = 0, 0.0
        self.between: Callable[[], object] = lambda: None
        self.wait: tuple[str, float] | None = None

    def at(self, stage: str, done: int = 0, total: int = 0, unit: str = "") -> None:
        """Finished units of a stage; an empty stage: nothing is under way."""
        self._now = Progress(stage=stage, done=done, total=total, unit=unit)
        self.between()

    @contextmanager
    def moving(self, stage: str) -> Iterator[None]:
        """A stage without steps of its own."""
        self._known, self._bytes, self._looked_at = _moved_bytes(), 0, time.monotonic()
        self.at(stage, unit=_MOVED)
        try:
            yield
        finally:
            self.at("")

    def heartbeats(
        self, link: Link, name: str, heartbeat_s: float | None = None
    ) -> AbstractContextManager[None]:
        """Send progress within; where there is none, heartbeats (None: nothing)."""
        every_s = min(self._every_s, heartbeat_s or MAX_INTERVAL_S)
        beat = None if heartbeat_s is None else Heartbeat()
        return sending_heartbeats(link, name, interval_s=every_s, says=lambda: self.news() or beat)

    def news(self) -> Progress | None:
        """Return the progress to send; None where nothing has moved since the last time."""
        now = self._now
        if now.unit == _MOVED:
            # A look costs some kilobytes of /proc: rare enough never to sum to a MiB.
            if time.monotonic() - self._looked_at >= self._every_s:
                now_known, self._looked_at = _moved_bytes(), time.monotonic()
                self._bytes += sum(n - self._known.get(pid, 0) for pid, n in now_known.items())
                self._known |= now_known  # A process unreadable once is not new later.
            now = replace(now, done=self._bytes >> 20)
        if (wait := self.wait) is not None:
            waited = f"waiting {time.monotonic() - wait[1]:.0f} s for {wait[0]}"
            now = replace(now, stage=f"{now.stage}, {waited}".removeprefix(", "))
        if now == self._said:
            return None
        self._said = now
        return now


def _moved_bytes() -> dict[int, int]:
    """Return the bytes moved so far by each readable process of the tree."""
    found: dict[int, int] = {}
    left, page = [os.getpid()], os.sysconf("SC_PAGE_SIZE")
    while left:
        folder = Path("/proc", str(left.pop()))
        try:
            counts = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            children = [path.read_text() for path in folder.glob("task/*/children")]
        except OSError:
            continue
        faults = int(fields[7]) + int(fields[9])  # minor and major, proc(5)
        found[int(folder.name)] = int(counts["rchar"]) + int(counts["wchar"]) + page * faults
        left += map(int, " ".join(children).split())
    return found
