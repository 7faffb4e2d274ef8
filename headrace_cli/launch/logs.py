"""Logs of a run's processes: their output passes through here into files.

In: the end of a pipe into which a process prints. Out: its log file, the last lines from memory,
the line that says why it ended. Promises: characters that nobody sees are escapes
(`headrace.errors.visible`); a disk that takes nothing neither holds up nor ends a process that
prints; what the file lacks then is kept in memory and written when there is room, and of very much
the first part is left out, with a line that says so.
"""

import codecs
import contextlib
import os
import select
import threading
from pathlib import Path
from typing import IO

from headrace.errors import visible
from headrace.host.disk import RETRY_S

MAX_WAITING_BYTES = 1 << 20
"""Maximum bytes that wait for room on the disk."""
_TAIL_BYTES = 64 << 10
_ERROR, _TRACEBACK = "error: ", "Traceback (most recent call last)"


class ProcessLog(threading.Thread):
    """Log of one life of a process. It ends by itself when no process has the pipe any more."""

    def __init__(self, path: Path, source: IO[bytes]) -> None:
        super().__init__(name=f"log {path.name}", daemon=True)
        self._path, self._source = path, source
        self._waiting, self._left_out, self._last = b"", 0, b""
        self._ended = threading.Event()
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self.start()

    def run(self) -> None:
        """Pass on until the pipe is closed, then until the file has everything."""
        while True:
            patience = RETRY_S if self._waiting else None
            if select.select([self._source], [], [], patience)[0]:
                data = os.read(self._source.fileno(), 64 << 10)
                if not data:
                    break
                self._take(data)
            self._write()
        self._source.close()
        self._write()
        self._ended.set()
        pause = threading.Event()
        while self._waiting:
            pause.wait(RETRY_S)
            self._write()

    def end(self, timeout_s: float) -> None:
        """Wait for an ended process's rest in the pipe, which its descendants may keep open."""
        self._ended.wait(timeout_s)

    def tail(self, lines: int) -> str:
        """The last lines."""
        return last_lines(self._last, lines)

    def _take(self, data: bytes) -> None:
        data = visible(self._decoder.decode(data).replace("\r", "\n")).encode()
        self._last = (self._last + data)[-_TAIL_BYTES:]
        self._waiting += data
        if (over := len(self._waiting) - MAX_WAITING_BYTES) > 0:
            self._waiting, self._left_out = self._waiting[over:], self._left_out + over

    def _write(self) -> None:
        """Put into the file what it takes, behind a line on what was left out before."""
        left = self._left_out
        line = f"[{left:,} bytes left out: the disk took none]\n" if left else ""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._waiting = append_some(self._path, line.encode() + self._waiting)
            self._left_out = 0


def append_some(path: Path, data: bytes) -> bytes:
    """Append bytes to a file; those that a full disk did not take. OSError: it took none."""
    if not data:
        return data
    with path.open("ab", buffering=0) as file:
        return data[file.write(data) :]


def last_lines(data: bytes, lines: int) -> str:
    """The last lines of what was printed."""
    return "\n".join(data.decode(errors="replace").rstrip().splitlines()[-lines:])


def log_tail(path: Path, lines: int) -> str:
    """The last lines of a log file; empty where there is none."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return last_lines(log.read(), lines)
    except OSError:
        return ""


def first_cause(text: str) -> str:
    """Return a process's own reason for its end: the line that it began with `error: `, else the
    exception of its last traceback, else its last line; empty where it printed nothing."""
    lines = [line for line in text.splitlines() if line.strip()]
    for place in range(len(lines) - 1, -1, -1):
        if lines[place].startswith(_ERROR):
            return lines[place].removeprefix(_ERROR)
        if lines[place].startswith(_TRACEBACK):
            raised = (line for line in lines[place + 1 :] if not line.startswith(" "))
            return next(raised, lines[-1])
    return lines[-1] if lines else ""
