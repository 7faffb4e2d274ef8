"""The process that creates a pool's cells, `cell_factory.py`, seen from outside.

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
"""Environment of the factory; a program's is empty. Sets have one order in all cells."""


class CellFactoryClient:
    """A running cell factory."""

    def __init__(
        self, process: asyncio.subprocess.Process, control: socket.socket, python: Interpreter
    ) -> None:
        self._process, self._control = process, control
        self.python = python
        """The interpreter of programs."""

    @classmethod
    async def start(cls, python: Interpreter | None = None) -> "CellFactoryClient":
        """Start one, for programs of this interpreter (None: ours)."""
        python = python or interpreter()
        control, inside = socket.socketpair(type=socket.SOCK_SEQPACKET)
        # Folder of this interpreter's standard library, if it had to be set.
        library = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        with inside:
            process = await asyncio.create_subprocess_exec(
                python.executable, "-s", "-S", "-P",
                str(Path(cell_factory.__file__).resolve()), str(inside.fileno()), str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(inside.fileno(),),
                env=_ENVIRONMENT | library,
                cwd="/",
            )  # fmt: skip
        return cls(process, control, python)

    @property
    def works(self) -> bool:
        """True while it is there."""
        return self._control.fileno() >= 0 and not is_closed(self._control)

    def order(self, settings: bytes, descriptors: Sequence[int]) -> None:
        """Have a cell made; RunFailedError where nobody makes one any more."""
        try:
            socket.send_fds(self._control, [settings], descriptors)
        except OSError as error:
            text = f"no cell for a program: the launcher is gone ({error})"
            raise RunFailedError(text) from error

    async def close(self) -> None:
        """End it, and cells that still are."""
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            await self._process.wait()


def is_closed(line: socket.socket) -> bool:
    """Return whether the other end is closed, which the event loop may not know yet."""
    looking = select.poll()
    looking.register(line, select.POLLRDHUP)
    return bool(looking.poll(0))
