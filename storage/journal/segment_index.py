"""Positions of frames in segments that were read before.

With them a reader of a few records need not read the whole file again. In: frames as they are read.
Out: a frame shortly before a row. A file that has changed, other than by growing, is forgotten.
Bounded: one position per megabyte, for a limited number of files. Checks of a journal use none.
"""

import bisect
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from storage.journal.record_batches import Frame, FrameStart

POSITION_BYTES = 2**20
"""Bytes from one known position to the next."""
MAX_FILES = 64


class _FileStamp(NamedTuple):
    inode: int
    size: int
    changed: int


@dataclass
class _IndexedFile:
    """The known positions of a file. `starts` are in order."""

    stamp: _FileStamp
    starts: list[FrameStart] = field(default_factory=list)


class SegmentIndex:
    """Known positions of several files; used by several threads."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, _IndexedFile] = OrderedDict()
        self._lock = threading.Lock()

    def start_before(self, path: Path, row: int) -> FrameStart | None:
        """The last known position at or before a row of a file; None where there is none. Positions
        of a file that has been replaced are dropped."""
        about = path.stat()
        now = _FileStamp(about.st_ino, about.st_size, about.st_mtime_ns)
        with self._lock:
            known = self._files.get(path)
            if known is None or not _is_the_same(known.stamp, now):
                known = self._files[path] = _IndexedFile(now)
            known.stamp = now
            self._files.move_to_end(path)
            if len(self._files) > MAX_FILES:
                self._files.popitem(last=False)
            place = bisect.bisect_right(known.starts, row, key=lambda start: start.rows)
            return known.starts[place - 1] if place else None

    def add(self, frame: Frame, rows: int) -> None:
        """Note a sound frame, which has `rows` before it in its file."""
        with self._lock:
            known = self._files.get(frame.path)
            last = known.starts[-1].position if known and known.starts else 0
            if known is not None and frame.position >= last + POSITION_BYTES:
                known.starts.append(FrameStart(frame.position, rows))


def _is_the_same(known: _FileStamp, now: _FileStamp) -> bool:
    return known.inode == now.inode and (known == now or known.size < now.size)
