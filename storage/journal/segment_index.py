"""Positions of frames in segments that were read before.

With them a reader of a few records need not read the whole file again. In: frames as they are read.
Out: a frame shortly before a row. A file that has changed, other than by growing, is forgotten.
Bounded: one position per megabyte, for a limited number of files. Checks of a journal use none.
"""

import bisect
import os
import threading
from collections import OrderedDict
from pathlib import Path

from storage.journal.record_batches import Frame, FrameStart

POSITION_BYTES = 2**20
"""Bytes from one known position to the next."""
MAX_FILES = 64


class SegmentIndex:
    """Known positions of several files; used by several threads."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, tuple[os.stat_result, list[FrameStart]]] = OrderedDict()
        """Each file as it was when it was last asked for, and its known positions in order."""
        self._lock = threading.Lock()

    def start_before(self, path: Path, row: int) -> FrameStart | None:
        """The last known position at or before a row of a file; None where there is none. Positions
        of a file that has been replaced are dropped."""
        now = path.stat()
        with self._lock:
            known, starts = self._files.pop(path, (now, []))
            if not _is_the_same(known, now):
                starts = []
            self._files[path] = now, starts
            if len(self._files) > MAX_FILES:
                self._files.popitem(last=False)
            place = bisect.bisect_right(starts, row, key=lambda start: start.rows)
            return starts[place - 1] if place else None

    def add(self, frame: Frame, rows: int) -> None:
        """Note a sound frame, which has `rows` before it in its file."""
        with self._lock:
            if known := self._files.get(frame.path):
                _, starts = known
                last = starts[-1].position if starts else 0
                if frame.position >= last + POSITION_BYTES:
                    starts.append(FrameStart(frame.position, rows))


def _is_the_same(known: os.stat_result, now: os.stat_result) -> bool:
    unchanged = (known.st_size, known.st_mtime_ns) == (now.st_size, now.st_mtime_ns)
    return known.st_ino == now.st_ino and (unchanged or known.st_size < now.st_size)
