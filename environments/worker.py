"""Pool of an environment worker: requests in, replies out, from killable children.

In: StepRequests. Out: StepReplies. Promises: an episode stays with one child; a step that misses
its deadline is a `timeout` of that episode alone: its child is killed, and the other episodes of
that child are built again in another one, from the seeds and turns that this worker has kept; an
environment that ends its process does so twice before its episode is given up as `crashed`.
"""

import asyncio
import atexit
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

import environments
import headrace
from environments.child import (
    LENGTH,
    MOST_BYTES,
    Asked,
    Ended,
    FromChild,
    Ready,
    Replied,
    Setup,
    frame,
)
from headrace.config.sections.environment import EnvironmentConfig
from headrace.errors import RunFailedError, UserError, first_error
from headrace.host.install import own_imports
from headrace.host.process_reaper import ProcessReaper
from headrace.protocol.messages.control import Message, StepReplies, StepRequest
from headrace.protocol.messages.environments import PolicyTurn, StepAsk, StepReply
from headrace.protocol.transport.sockets import Dealer

START_S = 60.0
TRIES, STARTS = 2, 3
"""Maximum tries of a step whose process ended; of starts that were killed."""
MOST_WAITING = 64
"""Maximum number of coroutine steps that wait together in one child."""
_decoder = msgspec.msgpack.Decoder(FromChild)


class ChildGoneError(Exception):
    """The child process has ended."""


class EnvironmentChild:
    """One process that holds environments."""

    def __init__(self, process: asyncio.subprocess.Process, reaper: ProcessReaper) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._to, self._from = process, process.stdin, process.stdout
        self._reaper = reaper
        self._waiting: dict[int, asyncio.Future[StepReply]] = {}
        self._reading = asyncio.create_task(self._read())
        self.ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self.places = asyncio.Semaphore(1)
        """Number of steps that it can take now: one, or many where they wait together."""
        self.is_gone = self.was_killed = False

    @classmethod
    async def start(cls, config: EnvironmentConfig, reaper: ProcessReaper) -> "EnvironmentChild":
        """Start a child, again where it was killed as it started; UserError on failure."""
        for left in reversed(range(STARTS)):
            child = await cls._begin(config, reaper)
            try:
                async with asyncio.timeout(START_S):
                    ready = await child.ready
                break
            except (ChildGoneError, TimeoutError) as gone:
                await child.kill()
                ended = isinstance(gone, ChildGoneError)
                if ended and left and child._process.returncode == -signal.SIGKILL:
                    continue
                why = str(gone) or f"it took more than {START_S:g} s"
                if config.python and ended:
                    why += f"; {config.python} has to be Python 3.10 or newer, and needs msgspec"
                raise UserError(f"environment {config.name} was not loaded: {why}") from gone
        if ready.error:
            await child.kill()
            raise UserError(ready.error)
        child.places = asyncio.Semaphore(MOST_WAITING if ready.waits else 1)
        return child

    @classmethod
    async def _begin(cls, config: EnvironmentConfig, reaper: ProcessReaper) -> "EnvironmentChild":
        # What follows the order of a set has to follow it in every child.
        other = {"PYTHONHASHSEED": "0", **own_imports()}
        kept = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        if kept != "*":  # an agent's endpoint is on this host, whatever proxy there is for others
            other |= dict.fromkeys(("no_proxy", "NO_PROXY"), f"{kept},127.0.0.1")
        if config.python is not None:
            other["PYTHONPATH"] = _own_packages()
        try:
            process = await asyncio.create_subprocess_exec(
                config.python or sys.executable, "-m", "environments.child", str(os.getpid()),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, process_group=0,
                env={**os.environ, **other},
            )  # fmt: skip
        except OSError as error:
            text = f"environment.python={config.python!r} cannot be started: {error}"
            raise UserError(text) from error
        reaper.register(process.pid)
        child = cls(process, reaper)
        child.say(Setup(config.name, config.options, config.call_format))
        return child

    def say(self, message: msgspec.Struct) -> None:
        """Send a message, unless the child is gone."""
        if not self.is_gone:
            self._to.write(frame(message))

    async def step(self, ask: StepAsk) -> StepReply:
        """Return the reply to a request; ChildGoneError where the child ends before."""
        if self.is_gone:
            raise ChildGoneError("it has ended")
        future = asyncio.get_running_loop().create_future()
        self._waiting[ask.trajectory_id] = future
        self.say(Asked(ask))
        try:
            return await future
        finally:
            self._waiting.pop(ask.trajectory_id, None)

    async def kill(self) -> None:
        """Kill the child with all that it started."""
        self.was_killed |= not self.is_gone
        self.is_gone = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._to.close()
        await self._process.wait()
        await self._reading
        self._reaper.unregister(self._process.pid)

    async def _read(self) -> None:
        try:
            while True:
                (length,) = LENGTH.unpack(await self._from.readexactly(LENGTH.size))
                if length > MOST_BYTES:
                    raise ChildGoneError(f"it said {length} bytes at a time")
                message = _decoder.decode(await self._from.readexactly(length))
                if isinstance(message, Ready):
                    self.ready.set_result(message)
                elif isinstance(message, Replied):
                    waiting = self._waiting.get(message.reply.trajectory_id)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(message.reply)
        except (asyncio.IncompleteReadError, msgspec.MsgspecError, ChildGoneError) as error:
            gone = ChildGoneError(f"its process ended ({type(error).__name__})")
        self.is_gone = True
        futures: list[asyncio.Future[Any]] = [self.ready, *self._waiting.values()]
        for future in futures:
            if not future.done():
                future.set_exception(gone)
        while await self._from.read(1 << 16):
            pass  # Nobody learns that a process has ended whose pipe has something left.


@cache
def _own_packages() -> str:
    """Return a folder with the two packages that a child needs, and no others.

    Another Python may not run the versions of this one's packages."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-child-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for package in (environments, headrace):
        (folder / package.__name__).symlink_to(Path(package.__path__[0]).resolve())
    return str(folder)


async def ready_of(config: EnvironmentConfig) -> Ready:
    """Return an environment's own description; UserError where it cannot be loaded."""
    with contextlib.closing(ProcessReaper()) as reaper:
        child = await EnvironmentChild.start(config, reaper)
        await child.kill()
    return child.ready.result()


@dataclass
class EpisodeHistory:
    """Turns and answers from which an episode can be built again.

    Attributes:
        row: the prompt's. index: of the child that it belongs to. turns: all so far. known: digests
        of the answers. built: the child that has it as it is now. going: the answer to the last
        turn, given or under way.
    """

    row: str
    index: int
    turns: list[PolicyTurn] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    built: EnvironmentChild | None = None
    going: "asyncio.Task[StepReply]" = field(init=False)


class EnvironmentPool:
    """Children of a worker, and the episodes that they hold."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self._config, self._reaper = config, ProcessReaper()
        self._children: list[EnvironmentChild] = []
        self._episodes: dict[int, EpisodeHistory] = {}
        self._renewing = asyncio.Lock()
        self._careful = asyncio.Lock()
        """Lock under which a request that a child has died of is tried again alone."""

    async def start(self) -> None:
        """Start the first child, whose faults are the user's, then the others."""
        for _ in range(self._config.children):
            self._children.append(await EnvironmentChild.start(self._config, self._reaper))

    async def close(self) -> None:
        """Kill all children."""
        for child in self._children:
            await child.kill()
        self._reaper.close()

    def end(self, trajectory_ids: list[int]) -> None:
        """End these episodes."""
        for key in trajectory_ids:
            self._episodes.pop(key, None)
        for child in self._children:
            child.say(Ended(trajectory_ids))

    async def reply(self, ask: StepAsk) -> StepReply:
        """Answer a request, or fail it.

        A coordinator that came back repeats its requests: they get the answer that was given, or is
        under way. An episode that it has recorded otherwise begins again."""
        known = self._episodes.get(ask.trajectory_id)
        if known is not None and len(ask.known) == ask.turn:
            if (known.row, known.turns) == (ask.row, ask.turns):
                return await asyncio.shield(known.going)
            await asyncio.wait([known.going])
            if (known.row, known.turns) != (ask.row, ask.turns[: len(known.turns)]):
                self.end([ask.trajectory_id])
        episode = self._episode(ask)
        episode.going = asyncio.create_task(self._reply(ask, episode), name="step")
        return await asyncio.shield(episode.going)

    async def _reply(self, ask: StepAsk, episode: EpisodeHistory) -> StepReply:
        whole = msgspec.structs.replace(ask, turns=episode.turns, known=episode.known)
        began, error, tries = time.monotonic(), "", 0
        while tries < TRIES:
            child, asked = self._children[episode.index], False
            try:
                async with child.places, self._careful if tries else contextlib.nullcontext():
                    asked = not child.is_gone
                    reply = await self._in_time(child, whole, episode)
                break
            except TimeoutError:
                await self._renew(child)
                if tries or not child.ready.result().replayable:
                    return self._failed(ask, "timeout", began, "no answer before the deadline")
                tries = 1  # Another's step or close may have stopped the child: once more, alone.
            except ChildGoneError as gone:
                error = str(gone)
                # A child that was gone before, or was killed, ended by another request.
                tries += asked and not child.was_killed
                await self._renew(child)
        else:
            return self._failed(ask, "crashed", began, error)
        episode.built = child
        if reply.status == "ok":
            episode.known.append(reply.step.digest)
        else:
            self._episodes.pop(ask.trajectory_id, None)
        return reply

    async def _in_time(
        self, child: EnvironmentChild, ask: StepAsk, episode: EpisodeHistory
    ) -> StepReply:
        """Return the child's reply; TimeoutError where it, or a replayed turn, is late."""
        seconds = self._config.timeout_s
        if episode.built is not child:
            seconds = seconds * len(ask.turns) + (self._config.reset_timeout_s or seconds)
        async with asyncio.timeout(seconds):
            return await child.step(ask)

    def _episode(self, ask: StepAsk) -> EpisodeHistory:
        episode = self._episodes.get(ask.trajectory_id)
        if episode is None:
            held = Counter(other.index for other in self._episodes.values())
            fewest = min(range(len(self._children)), key=held.__getitem__)
            episode = self._episodes[ask.trajectory_id] = EpisodeHistory(ask.row, fewest)
        if len(ask.known) == ask.turn:
            episode.turns, episode.known, episode.built = list(ask.turns), list(ask.known), None
        else:
            episode.turns.append(ask.turns[-1])
        return episode

    def _failed(self, ask: StepAsk, status: str, began: float, error: str) -> StepReply:
        self._episodes.pop(ask.trajectory_id, None)
        return StepReply(
            trajectory_id=ask.trajectory_id,
            turn=ask.turn,
            status=status,  # type: ignore[arg-type]
            seconds=time.monotonic() - began,
            error=error,
        )

    async def _renew(self, child: EnvironmentChild) -> None:
        """Replace this child by another one, unless that has been done."""
        async with self._renewing:
            if child in self._children:
                place = self._children.index(child)
                await child.kill()
                self._children[place] = await EnvironmentChild.start(self._config, self._reaper)


async def serve(dealer: Dealer, pool: EnvironmentPool, messages: AsyncIterator[Message]) -> None:
    """Answer requests, of an episode the newest alone, until there are no more messages."""
    newest: dict[int, StepAsk] = {}

    async def answer(ask: StepAsk) -> None:
        newest[ask.trajectory_id] = ask
        reply = await pool.reply(ask)
        # A coordinator that came back asks anew, and may have given the number to another row.
        if newest.get(ask.trajectory_id) is ask:
            del newest[ask.trajectory_id]
            await dealer.send(StepReplies(replies=[reply]))

    try:
        with first_error(UserError, RunFailedError):
            await pool.start()
            async with asyncio.TaskGroup() as group:
                async for message in messages:
                    if isinstance(message, StepRequest):
                        pool.end(message.ended)
                        for ask in message.asks:
                            group.create_task(answer(ask), name="step")
                for task in asyncio.all_tasks():
                    if task.get_name() == "step":
                        task.cancel()
    finally:
        await pool.close()
