"""The errors that cross module borders, and what a process does with each."""

import sys
from collections.abc import Callable


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

    Whoever gets it says so, waits, and tries again.
    """


def exit_code(run: Callable[[], int | None], *also: type[Exception]) -> int:
    """Run a process to its end; its exit code, None being 0. The user's mistake is a line and 2, a
    run that failed, or one of `also`, a line and 1, Ctrl-C 130."""
    failures: tuple[type[Exception], ...] = (RunFailedError, *also)
    try:
        return run() or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except failures as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
