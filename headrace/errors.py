"""Errors across module borders, their handling, and texts as people read them."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class UserError(Exception):
    """The user's mistake: printed as one line without a traceback, exit code 2.

    The text says what is wrong and what to do about it.
    """


class FormatError(UserError):
    """A file is of a format that this version does not read; nothing of it was touched."""

    def __init__(self, where: object, found: object, known: object) -> None:
        super().__init__(
            f"{where} has format {found}, and this version of Headrace reads format {known} alone: "
            "use the version that wrote it"
        )


class ProtocolError(Exception):
    """A message on a socket is malformed, oversized, or of another protocol version.

    The receiver rejects and counts it; the run goes on.
    """


class RunFailedError(Exception):
    """A run cannot go on; the text is the first cause. Exit code 1."""


class StorageBlockedError(Exception):
    """The disk takes nothing now: it is full, or the place is read-only; the text names place and
    bytes. Nothing of the failed write is on it, and everything written earlier is whole.

    Its handler reports it, waits, and tries again.
    """


@contextmanager
def first_error(*kinds: type[Exception]) -> Iterator[None]:
    """Raise a task group's first error by itself where all are of these kinds.

    An `except*` that raises it does not on Python 3.11.2, Debian 12's, which wraps it again."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        if group.split(kinds)[1] is not None:
            raise
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def first_line(error: object) -> str:
    """The first line of an error's text, or the name of its kind where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def refused_key(error: "ValidationError") -> str:
    """Key and reason of the first mistake that pydantic found; not the value, perhaps a secret."""
    first = error.errors(include_url=False, include_input=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


_CONTROLS = {c: f"\\x{c:02x}" for c in (*range(32), *range(127, 160)) if chr(c) not in "\t\n"}
_BIDIRECTIONAL = (0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_ESCAPES = _CONTROLS | {c: f"\\u{c:04x}" for c in _BIDIRECTIONAL}


def visible(text: str) -> str:
    """Text with escapes such as `\\u202e` for control characters and for those that turn the
    direction of writing or end a line unseen; tabs and line ends stay. Nothing that a model, a
    dataset or a reward wrote can then move a cursor, colour a terminal, or read as what it is
    not."""
    return text.translate(_ESCAPES)


def moment(at: float) -> str:
    """Seconds since the epoch as date and time of this place."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def exit_code(run: Callable[[], int | None], *also: type[Exception]) -> int:
    """Run a process to its end; its exit code, None being 0. The user's mistake is a line and 2, a
    run that failed, or one of `also`, a line and 1, Ctrl-C 130."""
    failures: tuple[type[Exception], ...] = (UserError, RunFailedError, *also)
    try:
        return run() or 0
    except failures as error:
        print(visible(f"error: {error}"), file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        return 130
