"""One scoring process, seen from its worker.

In: a source's configuration. Out: a `ScoringChild` that takes batches over a pipe and can be killed
with all it started, also by its worker's reaper. `start` raises UserError where the source is the
user's mistake, RunFailedError where the process cannot be had.
"""

import asyncio
import atexit
import contextlib
import os
import signal
import sys
from functools import cache

import msgspec

from headrace.config.sections.reward import SourceConfig
from headrace.errors import RunFailedError, UserError
from headrace.host.install import own_imports
from headrace.host.process_reaper import ProcessReaper
from rewards.worker.pipe import (
    LENGTH,
    MAX_ANSWER_BYTES,
    Answer,
    Batch,
    Ready,
    Setup,
    Starting,
    Unfit,
    answer_decoder,
    pack,
)

START_TIMEOUT_S = 120.0
"""Deadline for loading the verifier, and for beginning with a batch.

A child that says that it is loading has it again for its next message."""


@cache
def _reaper() -> ProcessReaper:
    """The reaper of this process, which ends with it."""
    reaper = ProcessReaper()
    atexit.register(reaper.close)
    return reaper


class ChildDiedError(Exception):
    """The child's pipe closed, or it said something that is not an answer."""


class ChildKilledError(RunFailedError):
    """A signal ended the child while it started: another one may do better."""


class ScoringChild:
    """One scoring process and the pipe to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._to, self._from = process, process.stdin, process.stdout
        self.ready = Ready()
        """The needs of its verifier."""

    @classmethod
    async def start(cls, source: SourceConfig, *, check: bool = False) -> "ScoringChild":
        """Start a child that is ready to score; UserError or RunFailedError otherwise.

        `check`: also where what its source depends on is not there now."""
        try:
            process = await asyncio.create_subprocess_exec(
                source.python or sys.executable, "-m", "rewards.worker.child", str(os.getpid()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **own_imports()},
                process_group=0,
            )  # fmt: skip
        except OSError as error:
            raise UserError(
                f"reward.python={source.python!r} cannot be started: {error}"
            ) from error
        _reaper().register(process.pid)
        child = cls(process)
        try:
            await child.send(Setup(source.model_dump_json(), check))
            while isinstance(answer := await child.receive(START_TIMEOUT_S), Starting):
                pass
        except (ChildDiedError, TimeoutError) as error:
            code = await child.kill()
            needs = f"; {source.python} needs numpy, msgspec and pydantic" if source.python else ""
            killed = code < 0 and isinstance(error, ChildDiedError)
            raise (ChildKilledError if killed else RunFailedError)(
                f"a scoring child did not start (exit code {code}): {error or 'deadline'}{needs}"
            ) from error
        except BaseException:
            await child.kill()
            raise
        if isinstance(answer, Unfit):
            await child.kill()
            raise (UserError if answer.mistake else RunFailedError)(answer.error)
        assert isinstance(answer, Ready)
        child.ready = answer
        return child

    async def send(self, message: Setup | Batch) -> None:
        """Write one frame; ChildDiedError when nobody reads."""
        try:
            self._to.write(pack(message))
            await self._to.drain()
        except ConnectionError as error:
            raise ChildDiedError("the child closed its pipe") from error

    async def receive(self, timeout_s: float | None) -> Answer:
        """Return the next frame; ChildDiedError at the end, TimeoutError (None: never)."""
        try:
            async with asyncio.timeout(timeout_s):
                (length,) = LENGTH.unpack(await self._from.readexactly(LENGTH.size))
                if length > MAX_ANSWER_BYTES:
                    raise ChildDiedError(f"an answer of {length} bytes is too long")
                return answer_decoder.decode(await self._from.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ChildDiedError("the child closed its pipe") from error
        except msgspec.MsgspecError as error:
            raise ChildDiedError(f"the child sent no answer: {error}") from error

    async def kill(self) -> int:
        """Kill the process with all it started; return its exit code (negative: signal).

        A caller that is cancelled meanwhile leaves nothing open behind."""
        ending = asyncio.create_task(self._end())
        try:
            return await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait((ending,))
            raise

    async def _end(self) -> int:
        # The group can outlive its leader, so it is signalled even when the child is dead.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._to.close()
        # To its end, so that the pipes are closed too.
        await self._from.read()
        code = await self._process.wait()
        _reaper().unregister(self._process.pid)
        return code
