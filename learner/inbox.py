"""Rank 0's conversation with the coordinator.

In: messages from the socket, signals, the clock. Out: one message after the other for the loop to
act on. Promises: it says Hello until the coordinator answers, says it again when the coordinator
has gone silent, and says Goodbye at the end; a request to end becomes a Shutdown between two
updates; heartbeats go on in a thread of their own.
"""

import os
import signal
import socket
import time
from collections.abc import Callable
from types import TracebackType

from headrace.config.process import TransportConfig
from headrace.errors import RunFailedError, UserError
from headrace.protocol.identity import identity_of
from headrace.protocol.messages import (
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    Refused,
    Shutdown,
    WeightRequest,
    Welcome,
)
from headrace.protocol.sockets import BlockingDealer, Link, Pulse

NAME = "learner-0"
_POLL_S = 0.25
_GREETING_S = 2.0


class Inbox:
    """The learner's socket; use it from the main thread as a context manager."""

    def __init__(
        self,
        address: str,
        transport: TransportConfig,
        *,
        update: Callable[[], int],
        resumed_from: str | None,
    ) -> None:
        """`update` tells which update the weights are from."""
        link = Link.from_config(transport, address)
        self._transport, self._update, self._resumed_from = transport, update, resumed_from
        identity = identity_of(NAME)
        self._dealer = BlockingDealer(link, identity)
        self._pulse = Pulse(link, identity, interval_s=transport.heartbeat_s)
        self._ending: str | None = None
        self._answered = False

    def __enter__(self) -> "Inbox":
        signal.signal(signal.SIGTERM, self._end)
        self._pulse.__enter__()
        self._hello()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        failed = None if error is None else f"{type(error).__name__}: {error}"
        self._dealer.send(Goodbye(failed=failed))
        self._pulse.__exit__(None, None, None)
        self._dealer.close()

    def send(self, message: Message) -> None:
        """To the coordinator."""
        self._dealer.send(message)

    def next(self, *, due: tuple[int, float] | None = None) -> Message:
        """The next message to act on. `due` names a version that waits and when it may be
        published; when that time comes, the answer is a WeightRequest for it. RunFailedError where
        the coordinator is silent for too long."""
        heard = greeted = time.monotonic()
        while True:
            if self._ending:
                return Shutdown(reason=self._ending)
            now = time.monotonic()
            if due is not None and now >= due[1]:
                return WeightRequest(version=due[0], offset=0)
            message = self._dealer.receive(_POLL_S)
            if isinstance(message, Refused):
                raise UserError(f"the coordinator refuses {NAME}: {message.reason}")
            if message is not None:
                heard = greeted = now
                self._answered = True
            if isinstance(message, Welcome):
                # Told and heard: for a coordinator that takes over, these weights were never away.
                self._resumed_from = None
            if message is not None and not isinstance(message, Heartbeat):
                return message
            if now - heard > self._transport.stall_timeout_s:
                raise RunFailedError(f"the coordinator has been silent for {now - heard:.0f} s")
            patience = self._transport.heartbeat_timeout_s if self._answered else _GREETING_S
            if now - greeted > max(_GREETING_S, patience):
                self._hello()
                greeted = now

    def _hello(self) -> None:
        self._dealer.send(
            Hello(
                role="learner",
                name=NAME,
                pid=os.getpid(),
                host=socket.gethostname(),
                update=self._update(),
                resumed_from=self._resumed_from,
            )
        )

    def _end(self, _number: int, _frame: object) -> None:
        self._ending = "asked to end"
