"""Child process of environments: `python -m environments.child WORKER_PID`.

Only `environments.worker` starts it, in any Python from 3.10 on that has msgspec. In: frames on
stdin, first the environment's name and options, then StepAsks. Out: frames on the original stdout,
a StepReply for each ask in the order of completion. Steps that are no coroutines run one after the
other, on the main thread; coroutines run together. Output of the user's code goes to stderr. Broad
exceptions are caught here: any exception of an environment becomes a reply, and the child goes on.
"""

import asyncio
import inspect
import json
import struct
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec

from environments.protocol import Environment, InvalidStepError, answer, begin, maker_of, waits
from environments.tools import CallFormat
from headrace.errors import UserError
from headrace.host.process_reaper import die_with
from headrace.host.user_code import describe
from headrace.protocol.messages.environments import Step, StepAsk, StepReply
from headrace.protocol.transport.stdio import take_streams

LENGTH = struct.Struct(">I")
MOST_BYTES = 1 << 24
"""Maximum number of bytes of a frame."""


class Setup(msgspec.Struct, frozen=True, tag=True):
    """First message from worker to child: the environment."""

    name: str
    options: dict[str, Any]
    calls: CallFormat = "hermes"


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Child to worker: the environment is built, or the error.

    `waits`: its steps are coroutines, so that many of them wait together. `replayable`: it can be
    built again. `tools`: their JSON schemas. `pays`: it rewards turns; False where `[reward]` has
    to."""

    error: str = ""
    waits: bool = False
    replayable: bool = True
    tools: list[dict[str, Any]] = []
    pays: bool = True


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Worker to child: these episodes are over, and their unanswered requests end."""

    trajectory_ids: list[int]


class Asked(msgspec.Struct, frozen=True, tag=True):
    """Request from worker to child."""

    ask: StepAsk


class Replied(msgspec.Struct, frozen=True, tag=True):
    """Reply from child to worker."""

    reply: StepReply


ToChild = Setup | Ended | Asked
FromChild = Ready | Replied


def frame(message: msgspec.Struct) -> bytes:
    """Encode a message, with its length in front."""
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data


@dataclass
class ChildEpisode:
    """An environment in the middle of an episode, and the number of its last turn."""

    environment: Environment
    turns: int = -1
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


class DivergedError(UserError):
    """An environment that was built again answered otherwise than before."""


class LostError(UserError):
    """An episode that began elsewhere cannot be built again."""


FAULTS: dict[type, str] = {
    InvalidStepError: "invalid", DivergedError: "diverged", LostError: "lost",
}  # fmt: skip


class ChildEpisodes:
    """Environments of a child, by trajectory."""

    def __init__(self, make: Callable[[], Environment]) -> None:
        self._make = make
        self._known: dict[int, ChildEpisode] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def end(self, trajectory_ids: list[int]) -> None:
        """Close the environments of these episodes."""
        for key in trajectory_ids:
            self._let_go(key)

    def _let_go(self, key: int) -> None:
        if (episode := self._known.pop(key, None)) is not None:
            self._closing.add(task := asyncio.create_task(_close(episode)))
            task.add_done_callback(self._closing.discard)

    async def reply(self, ask: StepAsk) -> StepReply:
        """Answer a request, whatever the environment does short of ending the process."""
        began = time.perf_counter()
        status, step, error = "ok", Step(), ""
        try:
            episode = self._known.get(ask.trajectory_id)
            if episode is None or episode.turns != ask.turn - 1:
                episode = await self._again(ask)
                if ask.turn:  # What was played again is no time of this turn.
                    began = time.perf_counter()
            async with episode.busy:
                step = await _next_step(episode, ask)
        except (Exception, SystemExit, asyncio.CancelledError) as raised:
            self._let_go(ask.trajectory_id)
            status, error = FAULTS.get(type(raised), "crashed"), describe(raised)
        return StepReply(
            trajectory_id=ask.trajectory_id,
            turn=ask.turn,
            status=status,  # type: ignore[arg-type]
            step=step,
            seconds=time.perf_counter() - began,
            error=error,
        )

    async def _again(self, ask: StepAsk) -> ChildEpisode:
        """Build an environment again up to a request; it has to give the same answers."""
        self._let_go(ask.trajectory_id)
        episode = self._known[ask.trajectory_id] = ChildEpisode(self._make(), ask.turn - 1)
        if ask.turn == 0 or not getattr(episode.environment, "keeps_state", True):
            return episode
        if not getattr(episode.environment, "replayable", True):
            raise LostError("its process ended, and it cannot be built again")
        if len(ask.turns) != ask.turn or len(ask.known) != ask.turn:
            raise LostError("its process ended, and its turns are not there")
        said = [await begin(episode.environment, json.loads(ask.row), ask.seed)]
        said += [await answer(episode.environment, turn) for turn in ask.turns[:-1]]
        for number, (step, digest) in enumerate(zip(said, ask.known, strict=True)):
            if step.digest != digest:
                raise DivergedError(f"built again, it answered turn {number} otherwise than before")
        return episode


async def _next_step(episode: ChildEpisode, ask: StepAsk) -> Step:
    episode.turns += 1
    if ask.turn == 0:
        return await begin(episode.environment, json.loads(ask.row), ask.seed)
    return await answer(episode.environment, ask.turns[-1])


async def _close(episode: ChildEpisode) -> None:
    async with episode.busy:
        try:
            said = getattr(episode.environment, "close", lambda: None)()
            if inspect.isawaitable(said):
                await said
        except (Exception, SystemExit):  # an episode that is over has no other way to say it
            traceback.print_exc()


async def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer requests until the worker closes the pipe."""
    decoder = msgspec.msgpack.Decoder(ToChild)

    def say(message: msgspec.Struct) -> None:
        sink.write(frame(message))
        sink.flush()

    def read() -> ToChild | None:
        head = source.read(LENGTH.size)
        if len(head) < LENGTH.size:
            return None
        return decoder.decode(source.read(LENGTH.unpack(head)[0]))

    setup = read()
    assert isinstance(setup, Setup)
    try:
        make, first = maker_of(setup.name, setup.options, setup.calls)
    except UserError as error:
        say(Ready(str(error)))
        return
    unused = [first]  # It may hold what only the end of an episode closes.
    episodes = ChildEpisodes(lambda: unused.pop() if unused else make())
    tools, pays = getattr(first, "schemas", []), getattr(first, "pays", True)
    again = getattr(first, "replayable", True)
    say(Ready(waits=waits(first), replayable=again, tools=tools, pays=pays))

    async def one(ask: StepAsk) -> None:
        reply = await episodes.reply(ask)
        try:
            say(Replied(reply))
        except ValueError as error:  # a text that UTF-8 cannot say
            unsaid = {"status": "invalid", "step": Step(), "error": str(error)}
            say(Replied(msgspec.structs.replace(reply, **unsaid)))

    answering: dict[asyncio.Task[None], int] = {}
    while (message := await asyncio.to_thread(read)) is not None:
        if isinstance(message, Ended):
            episodes.end(message.trajectory_ids)
            for task, key in answering.items():
                if key in message.trajectory_ids:
                    task.cancel()
        elif isinstance(message, Asked):
            task = asyncio.create_task(one(message.ask))
            answering[task] = message.ask.trajectory_id
            task.add_done_callback(answering.pop)
    await asyncio.gather(*answering)


def main() -> None:
    """Run the process."""
    die_with(int(sys.argv[1]))
    source, sink = take_streams()
    asyncio.run(serve(source, sink))


if __name__ == "__main__":
    main()
