"""The reaper: ends process groups whose parent process has died.

A supervisor has one for the processes of its run, a reward worker one for its scoring children and
what these started. It runs as a program of its own (`python -I -S process_reaper.py`). In: lines
`+PGID` and `-PGID` on standard input, which only its owner holds open. Out: nothing. When the input
ends, however the owner died, every group that is still registered gets SIGTERM and, seconds later,
SIGKILL. It uses the standard library alone and ends itself right after. A reaper that is killed
ends nobody; its owner starts another one when it notices (`renew`, or anything else it says).
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

GRACE_S = 5.0
_PR_SET_PDEATHSIG = 1


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel for this signal when the parent's thread that started this process ends."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # It may have died before the request was made.
    if os.getppid() != parent:
        os._exit(1)


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


class ProcessReaper:
    """The owner's end of a reaper."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process = _start()

    def register(self, group: int) -> None:
        """End this group when the owner is gone."""
        self._groups.add(group)
        self._send_or_replace(f"+{group}\n")

    def unregister(self, group: int) -> None:
        """Forget an ended group: its number may become another's."""
        self._groups.discard(group)
        self._send_or_replace(f"-{group}\n")

    def renew(self) -> None:
        """Start another reaper where this one was killed."""
        if self._process.poll() is not None:
            self._replace()

    def close(self) -> None:
        """End registered groups and the reaper."""
        self.renew()
        self._process.communicate()  # which closes its input

    def _send_or_replace(self, line: str) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                return self._send(line)
        self._replace()

    def _replace(self) -> None:
        """Start another reaper with all registered groups."""
        self._process.communicate()
        self._process = _start()
        self._send("".join(f"+{group}\n" for group in self._groups))

    def _send(self, lines: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(lines.encode())
        self._process.stdin.flush()


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


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
