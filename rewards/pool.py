"""The scoring children of a worker, kept warm.

In: items by `submit`. Out: one Score an item on `scores`, in the order of completion. Promises: an
item ends within its deadline plus the time it waited for a free child; a child that misses a
deadline is killed with all it started, and replaced; a crash costs only the item that was running;
what had not begun is handed out again. `run` raises RunFailedError when scorings keep failing and
UserError when the verifier cannot be built.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

import rewards
from headrace.config.reward import RewardConfig
from headrace.errors import RunFailedError, UserError
from headrace.protocol.messages import Score, ScoreItem
from rewards.pipe import (
    LENGTH,
    MAX_ANSWER_BYTES,
    Answer,
    Batch,
    Began,
    Outcome,
    Ready,
    Setup,
    Unfit,
    answer_decoder,
    pack,
)

START_TIMEOUT_S = 120.0
"""Deadline for loading the verifier, and for a child to begin with a batch."""
MAX_IDLE_DEATHS = 5
"""So many children in a row that died before they scored anything end the worker."""


Status = Literal["ok", "timeout", "crashed", "invalid"]


class ChildDiedError(Exception):
    """The child's pipe closed, or it said something that is not an answer."""


class Child:
    """One scoring process and the pipe to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._to, self._from = process, process.stdin, process.stdout
        self.ready = Ready()
        """What its verifier needs."""

    @classmethod
    async def start(cls, config: RewardConfig) -> "Child":
        """A child that is ready to score; UserError or RunFailedError when it cannot be."""
        source = str(Path(rewards.__file__).parent.parent)
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            process = await asyncio.create_subprocess_exec(
                config.python or sys.executable, "-m", "rewards.child", str(os.getpid()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"},
                process_group=0,
            )  # fmt: skip
        except OSError as error:
            raise UserError(
                f"reward.python={config.python!r} cannot be started: {error}"
            ) from error
        child = cls(process)
        try:
            await child.say(Setup(config.model_dump_json()))
            answer = await child.hear(START_TIMEOUT_S)
        except (ChildDiedError, TimeoutError) as error:
            code = await child.kill()
            needs = f"; {config.python} needs numpy, msgspec and pydantic" if config.python else ""
            raise RunFailedError(
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

    async def say(self, message: Setup | Batch) -> None:
        """Write one frame; ChildDiedError when nobody reads."""
        try:
            self._to.write(pack(message))
            await self._to.drain()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChildDiedError("the child closed its pipe") from error

    async def hear(self, timeout_s: float) -> Answer:
        """The next frame; TimeoutError after `timeout_s`, ChildDiedError at the pipe's end."""
        try:
            async with asyncio.timeout(timeout_s):
                (length,) = LENGTH.unpack(await self._from.readexactly(LENGTH.size))
                if length > MAX_ANSWER_BYTES:
                    raise ChildDiedError(f"an answer of {length} bytes is too long")
                return answer_decoder.decode(await self._from.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionResetError) as error:
            raise ChildDiedError("the child closed its pipe") from error
        except msgspec.MsgspecError as error:
            raise ChildDiedError(f"the child sent no answer: {error}") from error

    async def kill(self) -> int:
        """End the process and whatever it started; its exit code (negative: the signal)."""
        # The group can outlive its leader, so it is signalled even when the child is dead.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._to.close()
        # To its end, so that the pipes are closed too.
        await self._from.read()
        return await self._process.wait()


class Pool:
    """`config.children` children, kept alive until `run` is cancelled."""

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self.children = config.children
        self._waiting: deque[ScoreItem] = deque()
        self._arrived = asyncio.Condition()
        self._failures = 0
        self._idle_deaths = 0
        self.scores: asyncio.Queue[Score] = asyncio.Queue()
        self._idle = asyncio.Event()
        self._idle.set()
        self.held = 0
        """Items submitted and not yet scored."""
        self.counts: dict[Status, int] = {"ok": 0, "timeout": 0, "crashed": 0, "invalid": 0}
        self.restarts = 0

    async def submit(self, items: Sequence[ScoreItem]) -> None:
        """Have these scored."""
        self.held += len(items)
        if self.held:
            self._idle.clear()
        async with self._arrived:
            self._waiting.extend(items)
            self._arrived.notify_all()

    async def finish(self) -> None:
        """Return when everything submitted is scored and everything on `scores` is dealt with
        (`scores.task_done`)."""
        await self._idle.wait()
        await self.scores.join()

    async def run(self) -> None:
        """Keep the children at work; ends only by cancellation or an error."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._config.children):
                    group.create_task(self._keep_child())
        except* (UserError, RunFailedError) as errors:
            raise errors.exceptions[0] from None

    async def _keep_child(self) -> None:
        while True:
            child = await Child.start(self._config)
            try:
                await self._feed(child)
            finally:
                await child.kill()
            self.restarts += 1

    async def _feed(self, child: Child) -> None:
        """Hand out batches until the child has to be replaced."""
        lives = True
        while lives:
            batch = await self._take()
            try:
                lives = await self._score_batch(child, batch)
            finally:
                await self._hand_back(batch)

    async def _take(self) -> deque[ScoreItem]:
        async with self._arrived:
            await self._arrived.wait_for(lambda: self._waiting)
            share = -(-len(self._waiting) // self._config.children)
            count = min(self._config.batch, share)
            return deque(self._waiting.popleft() for _ in range(count))

    async def _hand_back(self, batch: deque[ScoreItem]) -> None:
        async with self._arrived:
            self._waiting.extendleft(reversed(batch))
            self._arrived.notify_all()

    async def _score_batch(self, child: Child, batch: deque[ScoreItem]) -> bool:
        """Take items off `batch` as they are scored; False when the child is to be replaced."""
        try:
            await child.say(Batch(list(batch)))
            if not isinstance(await child.hear(START_TIMEOUT_S), Began):
                raise ChildDiedError("the child did not begin")
        except (ChildDiedError, TimeoutError) as error:
            self._count_idle_death(error)
            return False
        while batch:
            began = time.monotonic()
            try:
                answer = await child.hear(self._config.timeout_s)
                if not isinstance(answer, Outcome):
                    raise ChildDiedError(f"{type(answer).__name__} where an outcome belongs")
            except TimeoutError:
                text = f"no result within {self._config.timeout_s:g} s"
                self._settle(batch.popleft(), "timeout", time.monotonic() - began, error=text)
                return False
            except ChildDiedError as death:
                seconds, code = time.monotonic() - began, await child.kill()
                text = f"{death} (exit code {code})"
                self._settle(batch.popleft(), "crashed", seconds, error=text)
                return False
            self._settle(
                batch.popleft(),
                answer.status,
                answer.seconds,
                reward=answer.reward,
                correct=answer.correct,
                parts=answer.parts,
                error=answer.error,
            )
        return True

    def _settle(
        self,
        item: ScoreItem,
        status: Status,
        seconds: float,
        *,
        reward: float = 0.0,
        correct: bool = False,
        parts: dict[str, float] | None = None,
        error: str | None = None,
    ) -> None:
        self.held -= 1
        if not self.held:
            self._idle.set()
        self.counts[status] += 1
        self._idle_deaths = 0
        self._failures = 0 if status == "ok" else self._failures + 1
        self.scores.put_nowait(
            Score(
                trajectory_id=item.trajectory_id,
                status=status,
                reward=reward,
                correct=correct,
                parts=parts or {},
                seconds=seconds,
                error=error,
            )
        )
        if self._failures >= self._config.max_consecutive_failures:
            raise RunFailedError(
                f"{self._failures} scorings in a row failed; the last: {status}, {error}"
            )

    def _count_idle_death(self, error: Exception) -> None:
        self._idle_deaths += 1
        if self._idle_deaths >= MAX_IDLE_DEATHS:
            raise RunFailedError(
                f"{self._idle_deaths} scoring children in a row died before they began: {error}"
            ) from error
