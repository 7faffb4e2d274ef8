"""The process that cells are made by, seen from outside: `cell_factory.py`, one a pool.

In: orders for cells with the descriptors they are to have. It starts once, so that a cell costs a
fork and not an interpreter's start. It dies with this process, and its cells with it.
"""

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import RunFailedError
from sandbox.interpreter import Interpreter, interpreter
from sandbox.isolation import cell_factory

_ENVIRONMENT = {"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "2", "PYTHONUTF8": "1"}
"""A program's own is empty. Hashes, and so the order of sets, are the same in every cell."""


class CellFactoryClient:
    """A running launcher."""

    def __init__(
        self, process: asyncio.subprocess.Process, control: socket.socket, python: Interpreter
    ) -> None:
        self._process, self._control = process, control
        self.python = python
        """What programs run with."""

    @classmethod
    async def start(cls, python: Interpreter | None = None) -> "CellFactoryClient":
        """Start one, for programs of this interpreter (None: ours)."""
        python = python or interpreter()
        control, inside = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with inside:
            process = await asyncio.create_subprocess_exec(
                python.executable, "-s", "-S", "-P",
                str(Path(cell_factory.__file__).resolve()), str(inside.fileno()), str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(inside.fileno(),),
                env=_ENVIRONMENT | _library_path(),
                cwd="/",
            )  # fmt: skip
        return cls(process, control, python)

    @property
    def works(self) -> bool:
        """Whether it is still there."""
        return self._control.fileno() >= 0 and not is_closed(self._control)

    def order(self, settings: bytes, descriptors: Sequence[int]) -> None:
        """Have a cell made; RunFailedError where nobody makes one any more."""
        try:
            socket.send_fds(self._control, [settings], descriptors)
        except OSError as error:
            raise RunFailedError(
                f"no cell for a program: the launcher is gone ({error})"
            ) from error

    async def close(self) -> None:
        """End it, and cells that still are."""
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            await self._process.wait()


def is_closed(line: socket.socket) -> bool:
    """Whether nobody is at the other end, without waiting for the event loop to notice."""
    looking = select.poll()
    looking.register(line, select.POLLRDHUP)
    return bool(looking.poll(0))


def _library_path() -> dict[str, str]:
    """Folder of this interpreter's standard library, if it had to be set."""
    name = "LD_LIBRARY_PATH"
    return {name: os.environ[name]} if name in os.environ else {}
