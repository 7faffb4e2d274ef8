"""Heartbeats from a thread and a socket of their own (`IDENTITY#pulse`), so that a process in a
long step is not taken for dead."""

import contextlib
import threading
from collections.abc import Callable

from headrace.errors import RunFailedError
from headrace.protocol.messages.control import Heartbeat, Message
from headrace.protocol.transport.identity import PULSE_SUFFIX
from headrace.protocol.transport.sockets import BlockingDealer, Link

Says = Callable[[], Message | None]


class Pulse(contextlib.AbstractContextManager["Pulse"]):
    """Heartbeats from a thread of its own, or what `says` gives instead; None: nothing."""

    def __init__(self, link: Link, name: str, *, interval_s: float, says: Says = Heartbeat) -> None:
        self._link, self._name, self._interval_s, self._says = link, name, interval_s, says
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
                    if (message := self._says()) is not None:
                        dealer.send(message)
                    self._stop.wait(self._interval_s)
        finally:
            dealer.close()
