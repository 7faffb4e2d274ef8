"""A large run that goes on while its pages are looked at.

In: a run that `dashboard_run` made. Out: the same run with a sample a second and an update every
few, written as its coordinator would, and ended again.
"""

import json
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.dashboard_run import STARTED, Ledger, Made, Size
from headrace.protocol import records as r
from storage import queries
from storage.run_store import RunStore


class Living:
    """Let a run that is whole go on while the block lasts: a sample a second, an update every few.
    `samples` counts what was written."""

    def __init__(self, run_dir: Path, size: Size, *, every_s: float = 1.0, update: int = 5) -> None:
        self._run_dir, self._size = run_dir, size
        self._every_s, self._each = every_s, update
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live)
        self.samples = 0
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        self._store = RunStore.open(self._run_dir)
        line = queries.run_line(self._run_dir)
        self._number = line.updates
        self._at = (line.started_at or STARTED) + line.wall_s
        self._made = Made(self._size, Ledger(queries.latest_metrics(self._run_dir, "ledger/")))
        said = json.dumps({"pid": os.getpid()})
        (self._run_dir / "coordinator.json").write_text(said)
        self._store.append([r.RunPhase(at=self._at, phase="training")])
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is None:
            end = r.RunPhase(at=self._at + 1.0, phase="finished", detail="updates")
            self._store.append([end])
        self._store.close()
        (self._run_dir / "coordinator.json").unlink()
        if self.error is not None:
            raise self.error

    def _live(self) -> None:
        try:
            while not self._stop.wait(self._every_s):
                self._at += self._every_s
                records: list[r.Record] = [self._made.sample(self._number, self._at)]
                self.samples += 1
                if self.samples % self._each == 0:
                    self._number += 1
                    records += self._made.update(self._number)
                    self._at = max(self._at, records[-1].at)
                self._store.append(records)
        except Exception as error:  # the boundary of the thread: the block's end raises it
            self.error = error
