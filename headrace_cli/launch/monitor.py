"""A monitor's view of a running run: ask for its status, send it a command.

In: the address in the run's `coordinator.json`. Out: `Status` messages. Nothing here blocks beyond
its time limit, and the answer of an absent coordinator is None, not an error.
"""

import contextlib
import json
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Literal

from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.protocol.messages.control import Command, Hello, Status, StatusRequest
from headrace.protocol.transport.endpoints import identity_of
from headrace.protocol.transport.sockets import BlockingDealer, Link
from headrace.run_files.run_folder import COORDINATOR_FILE
from headrace_cli.launch.keys import link_of

ANSWER_S = 5.0
"""Maximum seconds that a busy coordinator may take to answer."""


def coordinator_of(run_dir: Path) -> tuple[str, int] | None:
    """(address, pid) in a run's coordinator.json, or None; a wildcard host becomes loopback."""
    try:
        data = json.loads((run_dir / COORDINATOR_FILE).read_text())
        address, pid = str(data["address"]), int(data["pid"])
    except (OSError, ValueError, KeyError):
        return None
    return address.replace("//0.0.0.0:", "//127.0.0.1:"), pid


def announced_at(run_dir: Path) -> tuple[int, int] | None:
    """Return a mark that changes with each announcement of a coordinator; None without any."""
    try:
        found = (run_dir / COORDINATOR_FILE).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


class Monitor:
    """One connection to a coordinator. One thread only."""

    def __init__(self, config: RunConfig, address: str) -> None:
        name = f"monitor-{os.getpid()}-{secrets.token_hex(4)}"
        link = Link(address, config.transport.max_bytes, config.transport.curve_keys)
        self._dealer = BlockingDealer(link, identity_of(name))
        self._hello = Hello(
            role="monitor", name=name, pid=os.getpid(), host=socket.gethostname()[:255]
        )
        self._dealer.send(self._hello)

    def request_status(self) -> None:
        """Ask for a status; the answer comes by `latest_status`."""
        self._send(StatusRequest())

    def latest_status(self, timeout_s: float = 0.0) -> Status | None:
        """Return the newest status that has arrived, waiting at most this long for one."""
        deadline = time.monotonic() + timeout_s
        newest: Status | None = None
        while True:
            wait = 0.0 if newest else max(0.0, deadline - time.monotonic())
            message = self._dealer.receive(wait)
            if message is None:
                return newest
            if isinstance(message, Status):
                newest = message

    def send_command(self, action: Literal["stop", "interrupt"]) -> None:
        self._send(Command(action=action))

    def close(self) -> None:
        self._dealer.close()

    def _send(self, message: StatusRequest | Command) -> None:
        """Send a Hello and then the message: the coordinator answers only processes that sent
        Hello, and forgets silent ones after a while."""
        self._dealer.send(self._hello)
        self._dealer.send(message)


def waits_of(run_dir: Path, config: RunConfig) -> dict[str, float] | None:
    """Return what a run waits for, with the seconds since that moved; None without an answer."""
    try:
        opened = Monitor(config, link_of(run_dir).address)
    except UserError:  # none that this host reaches, or another user's keys
        return None
    with contextlib.closing(opened) as monitor:
        monitor.request_status()
        status = monitor.latest_status(ANSWER_S)
    return None if status is None else status.waits
