"""Stack dumps of all threads of a run's processes, to diagnose a run that hangs.

In: a request (`ask`), for process groups. Out: the stack of every thread of every process of theirs
that called `listen`, on its standard error, which is its log. Promise: a process that did not call
`listen` is left alone. Linux only: elsewhere nobody is asked.
"""

import faulthandler
import logging
import os
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

_STDERR = 2
_PROC = Path("/proc")


def log_and_listen() -> None:
    """Log to standard error from here on, and `listen`, as every role does when it starts."""
    format = "%(asctime)s %(levelname)s %(name)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=format)
    listen()


def listen() -> None:
    """Write the stacks to standard error whenever this process is asked, whatever it is doing."""
    faulthandler.register(signal.SIGUSR1, file=_STDERR, all_threads=True)


def ask(groups: Collection[int]) -> list[int]:
    """Ask every process of these process groups that listens; the pids of those asked."""
    asked = []
    for pid in members(groups):
        if _listens(pid):
            try:
                os.kill(pid, signal.SIGUSR1)
            except ProcessLookupError:
                continue
            asked.append(pid)
    return asked


def members(groups: Collection[int]) -> Iterator[int]:
    """The processes of these process groups, zombies among them."""
    for folder in _PROC.glob("[0-9]*"):
        pid = int(folder.name)
        try:
            if os.getpgid(pid) in groups:
                yield pid
        except ProcessLookupError:
            continue


def _listens(pid: int) -> bool:
    """Return whether a process catches the signal. It would die of it otherwise."""
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signal.SIGUSR1 - 1) & 1)
