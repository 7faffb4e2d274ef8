"""A generator's engine for a command, which samples completions.

In: a configuration. Out: a `Sampler`, with any number of concurrent requests; the engine works on
`generator.max_num_seqs` of them side by side. Promises: UserError where the engine does not start
by the user's mistake, RunFailedError where its process ends; the process ends with the block.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from itertools import count

import msgspec

from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError, UserError
from headrace.protocol.messages import sampling as m
from headrace_cli.launch.plan import role_environment

START_TIMEOUT_S = 600.0
"""Deadline for loading the model and warming up."""
END_TIMEOUT_S = 20.0
"""Maximum seconds that an engine may take to end before it is killed."""


class Sampler:
    """A started engine; see the module's docstring."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._to, self._from = process, process.stdin, process.stdout
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[m.Written]] = {}
        self._broken: Exception | None = None
        self.tokens = 0
        """Sampled so far."""

    async def sample(
        self, prompt_ids: Sequence[int], response_ids: Sequence[int], *, max_tokens: int, seed: int
    ) -> m.Written:
        """Continue a prompt and the beginning of a response. UserError: longer than the context."""
        if self._broken is not None:
            raise self._broken
        number = next(self._numbers)
        future: asyncio.Future[m.Written] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        known = [*map(int, prompt_ids), *map(int, response_ids)]
        try:
            self._to.write(
                m.line_of(m.SampleRequest(number, known, len(response_ids), max_tokens, seed))
            )
            await self._to.drain()
            return await future
        except (BrokenPipeError, ConnectionResetError) as error:
            raise RunFailedError("the generator's process has ended") from error
        finally:
            del self._asked[number]

    async def start(self, config: RunConfig) -> None:
        """Have the engine built."""
        self._to.write(config.model_dump_json().encode() + b"\n")
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._to.drain()
                answer = await self._read_reply()
        except (TimeoutError, ConnectionError) as error:
            raise RunFailedError(f"the generator did not start: {error or 'deadline'}") from error
        if isinstance(answer, m.Unfit):
            raise UserError(answer.error)
        if not isinstance(answer, m.Ready):
            raise RunFailedError(f"{type(answer).__name__} where the generator's start belongs")

    async def run(self) -> None:
        """Hand out replies until the process ends or this is cancelled."""
        try:
            while True:
                answer = await self._read_reply()
                assert isinstance(answer, m.Written | m.Refused)
                future = self._asked.get(answer.number)
                if future is None or future.done():
                    continue
                if isinstance(answer, m.Refused):
                    future.set_exception(UserError(answer.error))
                else:
                    self.tokens += len(answer.ids)
                    future.set_result(answer)
        except RunFailedError as error:
            self._broken = error
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(error)

    async def close(self) -> None:
        """Let the process end by itself, or kill it with all it started."""
        self._to.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def _read_reply(self) -> m.SamplerReply:
        line = await self._from.readline()
        if not line:
            code = await self._process.wait()
            raise RunFailedError(f"the generator's process ended (exit code {code})")
        try:
            return m.answer_decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise RunFailedError(f"the generator sent no answer: {error}") from error


@contextlib.asynccontextmanager
async def open_sampler(config: RunConfig) -> AsyncIterator[Sampler]:
    """A sampler whose engine lives as long as the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "generators.serving.standalone",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **role_environment(1)},
        process_group=0,
        limit=m.MAX_LINE_BYTES,
    )  # fmt: skip
    sampler = Sampler(process)
    reading: asyncio.Task[None] | None = None
    try:
        await sampler.start(config)
        reading = asyncio.create_task(sampler.run(), name="sampler")
        yield sampler
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        await sampler.close()
