"""Writing in a thread, while the learner trains on: of weights to publish, and of checkpoints.

In: a function that writes, and may say what its disk lacks. Out: its result, or its exception, in
the thread that asks. Promise: one write at a time; what a disk lacks is told there, too.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

T = TypeVar("T")
Tell = Callable[[str], None]
_POLL_S = 0.2
_LOG = logging.getLogger("headrace.learner")


class WriteBehind(Generic[T]):
    """One write after the other, each in a thread of its own. `tell` receives what a disk lacks,
    and an empty text when it goes on."""

    def __init__(self, name: str, tell: Tell, *, fatal: bool = False) -> None:
        """`fatal`: the first failure ends the process, whose other threads may wait for peers."""
        self._name, self._tell, self._fatal = name, tell, fatal
        self._told = deque[str]()
        self._writing: Future[T] | None = None

    def begin(self, write: Callable[[Tell], T]) -> None:
        """Begin a write; the last one's result must have been taken."""
        assert self._writing is None, f"{self._name} is writing"
        writing: Future[T] = Future()
        self._writing = writing

        def run() -> None:
            try:
                writing.set_result(write(self._told.append))
            except BaseException as error:
                writing.set_exception(error)
                if self._fatal:
                    _LOG.exception("the %s cannot be written", self._name)
                    os._exit(1)

        threading.Thread(target=run, name=self._name, daemon=True).start()

    @property
    def is_writing(self) -> bool:
        """Return whether there is a write whose result nobody has taken."""
        return self._writing is not None

    def written(self, timeout_s: float | None = 0.0) -> T | None:
        """Return the result of the write that was begun, once; None: it has not ended yet.

        Waits `timeout_s` for it (None: until it has). Raises what the write raised."""
        if (writing := self._writing) is None:
            return None
        while True:
            is_done = bool(wait([writing], _POLL_S if timeout_s is None else timeout_s).done)
            while self._told:
                self._tell(self._told.popleft())
            if is_done:
                self._writing = None
                return writing.result()
            if timeout_s is not None:
                return None

    def close(self, timeout_s: float) -> None:
        """Wait for the last write for some seconds, whatever becomes of it."""
        if self._writing is not None:
            wait([self._writing], timeout_s)
