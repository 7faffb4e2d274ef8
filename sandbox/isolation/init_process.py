"""A cell's init process: it reaps, sums memory, and reports the program's end.

In the layer `namespaces` it is the first process of the cell, so that its end takes everything
with it that runs in the cell, however it was started. No program can signal, trace or read it.
"""

import contextlib
import json
import os
import select
import signal
import socket
from typing import Any

from sandbox.checker import NOTHING_TO_CHECK

EVERY_S = 0.05
"""Seconds between two sums of memory."""
WAITED_FOR = (signal.SIGCHLD,)


def keep(
    orders: socket.socket,
    checker: int,
    program: int,
    *,
    processes: int,
    watched: list[int] | None,
    memory_bytes: int,
) -> dict[str, Any]:
    """Return the report when the cell is to end.

    Program or checks have ended, they hold too much memory, or nobody waits outside any more.
    `processes` is an open /proc; `watched` its entries that count, None for all but the first.
    SIGCHLD has to be blocked."""
    line = select.poll()
    line.register(orders, select.POLLRDHUP)
    codes: dict[int, int] = {}
    cause: str | None = None
    while cause is None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
        if codes.get(checker, NOTHING_TO_CHECK) != NOTHING_TO_CHECK:
            break
        if len(codes.keys() & {checker, program}) == 2:
            break
        if line.poll(0):
            cause = "abandoned"
        elif resident_bytes(processes, watched) > memory_bytes:
            cause = "memory"
        else:
            signal.sigtimedwait(WAITED_FOR, EVERY_S)
    return {"exit": codes.get(program), "examiner": codes.get(checker), "cause": cause}


def resident_bytes(processes: int, watched: list[int] | None) -> int:
    """Bytes that these processes hold and no file backs."""
    names = [str(number) for number in watched or ()]
    if watched is None:
        names = [name for name in os.listdir(processes) if name.isdigit() and name != "1"]
    total = 0
    for name in names:
        # It may have ended since it was listed.
        with contextlib.suppress(OSError):
            descriptor = os.open(f"{name}/status", os.O_RDONLY, dir_fd=processes)
            try:
                text = os.read(descriptor, 4096)
            finally:
                os.close(descriptor)
            for line in text.splitlines():
                if line.startswith((b"RssAnon:", b"RssShmem:")):
                    total += int(line.split()[1]) * 1024
    return total


def report(orders: socket.socket, message: dict[str, Any]) -> None:
    """Send a report outside, if anything still listens."""
    with contextlib.suppress(OSError):
        orders.sendall(json.dumps(message).encode() + b"\n")
