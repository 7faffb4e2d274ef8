"""Full or closed disks: errors that pass by themselves, and waiting until they have.

In: a write, the place it goes to, about how many bytes it is. Out: its result, or
StorageBlockedError with one line that names place and bytes. Promises: an error of another kind is
raised as it is; waiting has no time limit, even for a slow disk; the caller is notified once when a
wait begins, with its cause, and once when it ends.
"""

import errno
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from headrace.errors import StorageBlockedError

T = TypeVar("T")
RETRY_S = 2.0
SLOW_S = 60.0
"""Seconds after which a write that goes on is reported."""
RETRY_FULL_S = 60.0
"""Seconds until a write is tried on a seemingly full disk: some file systems do not say."""
FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
WAIT_PREFIX = "waits: "
"""Beginning of the line by which a starting process says that it waits for a disk or for SQL."""
_CLOSED = {
    errno.EROFS: "is read-only",
    errno.EACCES: "may not be written",
    errno.EPERM: "may not be written",
}
_FOREIGN = re.compile(r"\(os error (\d+)\)")
"""Form in which libraries written in Rust report the error of a system call."""


@contextmanager
def writing(place: Path, needs: int) -> Iterator[None]:
    """Turn errors that pass into StorageBlockedError."""
    try:
        yield
    except Exception as error:  # of libraries, too, whose errors are of no common kind
        text = _problem(_number(error), place, needs)
        if text is None:
            raise
        raise StorageBlockedError(text) from error


def lack_of_room(place: Path, needs: int) -> str | None:
    """Return why a write of this many bytes cannot succeed now, as far as known beforehand."""
    return _problem(errno.ENOSPC, place, needs) if _free(place) < needs else None


def sync(path: Path) -> None:
    """Put a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def until_written(
    write: Callable[[], T], place: Path, needs: int, *, tell: Callable[[str], None]
) -> T:
    """Call `write` until the disk takes it; return its result. A failed call must leave nothing
    behind. `tell` receives the cause of a wait, and an empty text at its end, maybe from another
    thread."""
    told: list[str] = []

    def say(text: str) -> None:
        if not told:
            told.append(text)
            tell(text)

    slow = f"the disk of {place} to take {needs:,} bytes, not done in {SLOW_S:.0f} s"
    tried_at = time.monotonic()
    while True:
        problem = lack_of_room(place, needs)
        if problem is None or time.monotonic() - tried_at >= RETRY_FULL_S:
            tried_at = time.monotonic()
            try:
                with writing(place, needs), _after(SLOW_S, lambda: say(slow)):
                    result = write()
            except StorageBlockedError as error:
                problem = str(error)
            else:
                if told:
                    tell("")
                return result
        assert problem is not None
        say(problem)
        time.sleep(RETRY_S)


@contextmanager
def _after(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    """Call a function if the block takes this many seconds, and never after its end."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    driver = getattr(error, "orig", error)  # what SQLAlchemy's errors are made from
    if getattr(driver, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return errno.ENOSPC
    found = _FOREIGN.search(str(error))
    return int(found[1]) if found else None


def _problem(number: int | None, place: Path, needs: int) -> str | None:
    if number in FULL_ERRNOS:
        free = _free(place)
        left = "" if free == float("inf") else f", and {free:,.0f} are free"
        return f"room for {needs:,} bytes in {place}{left}"
    if number in _CLOSED:
        return f"{place}, which {_CLOSED[number]}, to take {needs:,} bytes"
    return None


def _free(place: Path) -> float:
    """Return the free bytes at a present or future place; infinite if not known."""
    for folder in (place, *place.parents):
        try:
            found = os.statvfs(folder)
        except FileNotFoundError:
            continue
        except OSError:
            break
        # The blocks kept for root are no room, even for root: often it may not use them.
        return found.f_bavail * found.f_frsize if found.f_blocks else float("inf")
    return float("inf")
