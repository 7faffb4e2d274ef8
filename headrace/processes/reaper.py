"""The reaper: ends a run's process groups when the run's supervisor is gone.

Runs as a program of its own (`python -I -S reaper.py`). In: lines `+PGID` and `-PGID` on standard
input, which only the supervisor holds open. Out: nothing. When the input ends, however the
supervisor died, every group that is still registered gets SIGTERM and, seconds later, SIGKILL. It
uses the standard library alone and ends itself right after.
"""

import os
import signal
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
