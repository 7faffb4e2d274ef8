"""Rank 0's connection to the coordinator.

In: messages from the socket, signals, the clock. Out: one message after the other for the loop.
Promises: it sends Hello until the coordinator answers, again when the coordinator is silent, and
Goodbye at the end; messages from before the answer to the last Hello are void; a request to end
becomes a Shutdown between two updates; heartbeats go on in a thread of their own.
"""

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from headrace.config.sections.process import TransportConfig
from headrace.errors import RunFailedError, UserError
from headrace.host.progress_reporter import ProgressReporter
from headrace.protocol.messages import control as m
from headrace.protocol.transport.endpoints import identity_of
from headrace.protocol.transport.sockets import BlockingDealer, Link

_LOG = logging.getLogger("headrace.learner")
NAME, ASKED = "learner-0", "asked to end"
_POLL_S, _WRITING_S = 0.25, 0.02
_GREETING_S = 2.0


class WeightOrigin(NamedTuple):
    """Origin of a learner's weights, as its Hello says it."""

    update: int
    batch_id: int | None
    resumed_from: str | None
    skipped: str | None = None


class Inbox:
    """The learner's socket; use it from the main thread as a context manager."""

    def __init__(
        self,
        link: Link,
        transport: TransportConfig,
        *,
        weights: Callable[[], WeightOrigin],
        work: ProgressReporter,
        ranks: int = 1,
    ) -> None:
        """`weights` returns the learner's present weights, `work` reports its progress."""
        self._transport, self._weights, self._ranks = transport, weights, ranks
        self._announced: str | None = None
        """The restored checkpoint that a coordinator has acknowledged."""
        self._greetings = 0
        identity = identity_of(NAME)
        self._dealer = BlockingDealer(link, identity)
        self._pulse = work.heartbeats(link, identity, transport.heartbeat_s)
        self._ending: str | None = None
        self._answered = self._awaits_answer = False

    def __enter__(self) -> "Inbox":
        signal.signal(signal.SIGTERM, self._end)
        self._pulse.__enter__()
        self.greet()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # torch raises it when another rank is gone: all start again, and the run goes on.
        is_lost = self._ranks > 1 and isinstance(error, RuntimeError)
        failed = None if error is None or is_lost else f"{type(error).__name__}: {error}"
        self._dealer.send(m.Goodbye(failed=failed))
        self._pulse.__exit__(None, None, None)
        self._dealer.close()

    def send(self, message: m.Message) -> None:
        """Send a message to the coordinator."""
        self._dealer.send(message)

    def announce(self, notice: m.Message) -> None:
        """Send a notice, unless a Hello is on its way, whose answer asks for the weights again."""
        if not self._awaits_answer:
            self._dealer.send(notice)

    def next(
        self,
        *,
        due_at: float | None = None,
        is_writing: Callable[[], bool] = lambda: False,
    ) -> m.Message:
        """Return the next message to act on.

        `due_at`: when a waiting version may be published (time.monotonic); then the result is a
        WeightRequest. `is_writing` is asked meanwhile, often while it says yes.
        RunFailedError where the coordinator is silent for too long."""
        silent_s, greeted = 0.0, time.monotonic()
        while True:
            if self._ending:
                return m.Shutdown(reason=self._ending)
            now = time.monotonic()
            if due_at is not None and now >= due_at:
                return m.WeightRequest(version=0, offset=0)  # of whichever waits
            wait_s = _WRITING_S if is_writing() else _POLL_S
            message = self._dealer.receive(wait_s)
            silent_s += wait_s  # Not by the clock: a standstill of this process is no silence.
            if isinstance(message, m.Refused):
                raise UserError(f"the coordinator refuses {NAME}: {message.reason}")
            if message is not None:
                silent_s, self._answered = 0.0, True
                if self._is_for_now(message):
                    return message
                # While an answer is missing, Hello is repeated whatever else arrives.
                greeted = greeted if self._awaits_answer else now
            if silent_s > self._transport.stall_timeout_s:
                raise RunFailedError(f"the coordinator has been silent for {silent_s:.0f} s")
            patience = self._transport.heartbeat_timeout_s if self._answered else _GREETING_S
            if now - greeted > max(_GREETING_S, patience):
                self.greet()
                greeted = time.monotonic()

    def _is_for_now(self, message: m.Message) -> bool:
        """Return whether to act on a message.

        Not on a heartbeat, nor on messages from before the coordinator had the last Hello."""
        match message:
            case m.Heartbeat():
                return False
            case m.AskHello():
                if not self._awaits_answer:
                    self.greet()
                return False
            case m.Welcome(greeting=greeting):
                if greeting != self._greetings:
                    return False
                # Announced: for a coordinator that takes over, these weights were never away.
                self._awaits_answer, self._announced = False, self._weights().resumed_from
            case m.Restore(reason=reason):
                _LOG.warning("the coordinator cannot go on with these weights: %s", reason)
                self._announced = None
            case m.Shutdown():
                pass
            case _ if self._awaits_answer:
                _LOG.info("%s ignored: a Hello is on its way", type(message).__name__)
                return False
        return True

    def greet(self) -> None:
        """Send Hello; messages that the coordinator sent before receiving it are void."""
        self._greetings += 1
        self._awaits_answer = True
        weights = self._weights()
        if weights.resumed_from == self._announced:
            weights = weights._replace(resumed_from=None)
        self._dealer.send(
            m.Hello(
                role="learner",
                name=NAME,
                pid=os.getpid(),
                host=socket.gethostname(),
                greeting=self._greetings,
                **weights._asdict(),
            )
        )

    def _end(self, _number: int, _frame: object) -> None:
        self._ending = ASKED
