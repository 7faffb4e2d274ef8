"""The reaper: ends process groups when whoever started them is gone.

A supervisor has one for the processes of its run, a reward worker one for its scoring children and
what these started. It runs as a program of its own (`python -I -S reaper.py`). In: lines `+PGID`
and `-PGID` on standard input, which only its owner holds open. Out: nothing. When the input ends,
however the owner died, every group that is still registered gets SIGTERM and, seconds later,
SIGKILL. It uses the standard library alone and ends itself right after.
"""

import os
import signal
import subprocess
import sys
import time

GRACE_S = 5.0


def signal_groups(groups: set[int], number: int) -> set[int]:
    """Signal process groups; returns those that still exist."""
    alive = set()
    for group in groups:
        try:
            os.killpg(group, number)
        except (ProcessLookupError, PermissionError):
            continue
        alive.add(group)
    return alive


class Reaper:
    """The owner's end of a reaper."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", __file__]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        """End this group when the owner is gone."""
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """This group is ended: its number may become another's."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """End what is still watched, and the reaper."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()


def main() -> None:
    """Wait for the end of the input, then end what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    groups = signal_groups(groups, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while groups and time.monotonic() < deadline:
        time.sleep(0.05)
        groups = signal_groups(groups, 0)
    signal_groups(groups, signal.SIGKILL)


if __name__ == "__main__":
    main()
