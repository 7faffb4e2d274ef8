"""Heartbeats from a thread and a socket of their own (`IDENTITY#pulse`), so that a process in a
long step is not taken for dead."""

import contextlib
import threading

from headrace.errors import RunFailedError
from headrace.protocol.messages.control import Heartbeat
from headrace.protocol.transport.identity import PULSE_SUFFIX
from headrace.protocol.transport.sockets import BlockingDealer, Link


class Pulse(contextlib.AbstractContextManager["Pulse"]):
    """Heartbeats from a thread of its own."""

    def __init__(self, link: Link, name: str, *, interval_s: float) -> None:
        self._link, self._name, self._interval_s = link, name, interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> "Pulse":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(timeout=3.0)

    def _beat(self) -> None:
        dealer = BlockingDealer(self._link, self._name + PULSE_SUFFIX)
        try:
            with contextlib.suppress(RunFailedError):  # The other socket says so.
                while not self._stop.is_set():
                    dealer.send(Heartbeat())
                    self._stop.wait(self._interval_s)
        finally:
            dealer.close()
