"""Endpoint of OpenAI's chat completions on the loopback, for agents.

In: StepAsks, and requests of agents, which run in the worker's children. Out: StepReplies, and
completions. Promises: a key names one attempt at one episode; each request is a turn, whose new
messages become a step and whose reply is the policy's turn; a forbidden request is refused in one
line and changes nothing; an agent whose process died plays again, gets the same turns, and has to
make the same requests. A request that rewrites the history is refused, or begins a branch: an
episode of its own for the coordinator, which ends with the agent, too, and has the same reward.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from environments.chat_messages import ChatMessage, RefusedError, event_of, read_chat
from environments.child import Ended
from environments.tools import ToolCall, calls_in, text_before_calls
from environments.worker import TRIES, ChildGoneError, EnvironmentChild, EnvironmentPool
from headrace.config.sections.environment import EnvironmentConfig
from headrace.protocol.messages.environments import (
    InsertedMessage,
    PolicyTurn,
    Step,
    StepAsk,
    StepReply,
)

MOST_BODY = 2 << 20
"""Maximum number of bytes of a request."""
BRANCH_S = 0.02
"""Seconds between two look-ups of the session of a branch."""
ASIDE = {
    "messages", "model", "tools", "user", "metadata", "store", "service_tier", "logprobs",
    "top_logprobs", "parallel_tool_calls", "return_token_ids", "prompt_cache_key",
    "safety_identifier", "stream", "stream_options",
}  # fmt: skip
"""Parameters that are read, or change nothing."""
OVERRULED = {
    "temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "presence_penalty",
    "frequency_penalty", "reasoning_effort",
}  # fmt: skip
"""Parameters that the recipe sets in the agent's place."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (None, 1), "stop": (None, []),
    "tool_choice": (None, "auto"), "response_format": (None, {"type": "text"}),
}  # fmt: skip
"""Parameters that are accepted with these values alone."""


@dataclass(eq=False)
class HistoryBranch:
    """A history that only grows.

    Attributes:
        key: its trajectory; -1: the coordinator has not named it. turns: of the policy, those of
        earlier attempts included. known: digests of the steps that have to be the same again.
        steps: the agent's requests in it. chat: all messages so far. tools: its first request's.
    """

    key: int
    turns: list[PolicyTurn] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    chat: list[ChatMessage] = field(default_factory=list)
    tools: list[Any] = field(default_factory=list)

    def goes_on(self, turns: list[PolicyTurn]) -> bool:
        """Return whether these turns are its own, or one more."""
        count = len(self.turns)
        return self.turns == turns[:count] and len(turns) <= count + 1

    def take_turns(self, ask: StepAsk) -> bool:
        """Take the turns that are new; return False where earlier ones differ."""
        count, whole = len(self.turns), len(ask.known) == ask.turn
        if count < ask.turn:
            self.turns += ask.turns[count:] if whole else ask.turns[-1:]
        self.known = max(self.known, ask.known, key=len)
        return not whole or self.turns[: ask.turn] == ask.turns

    def begin_again(self) -> None:
        """Begin again with an agent that has to make the same requests."""
        said = [step.digest for step in self.steps]
        self.known = said + self.known[len(said) :]
        self.steps, self.chat, self.tools = [], [], []


@dataclass
class AgentSession:
    """One attempt of an agent at an episode.

    Attributes:
        ask: of its trajectory, the first of `branches`, which are in the order of their beginning.
        attempt: unique number of the attempt; 0: its process starts. last: the request that waits,
        or was answered last. waits: for the policy. rewritten: why the last history was refused.
    """

    ask: StepAsk
    branches: list[HistoryBranch]
    attempt: int = 0
    last: "asyncio.Task[dict[str, Any]] | None" = None
    last_asked: list[ChatMessage] = field(default_factory=list)
    waits: bool = False
    end: StepReply | None = None
    rewritten: str = ""
    counts: dict[str, float] = field(default_factory=lambda: {"refused": 0.0, "wrong_calls": 0.0})
    playing: "asyncio.Task[None] | None" = None
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    def of(self, key: int) -> HistoryBranch | None:
        """Return the branch of a trajectory."""
        return next((branch for branch in self.branches if branch.key == key), None)

    def fits(self, ask: StepAsk) -> bool:
        """Return whether it goes on with this.

        It does not while its agent may wait in a branch that the coordinator does not know (it came
        back and had not recorded it) or that has ended."""
        named = {branch.key for branch in self.branches[1:]} - {-1}
        if self.end is None and not named <= {*ask.branches}:
            return False
        return self.ask.row == ask.row and self.branches[0].goes_on(ask.turns)

    def name(self, keys: list[int]) -> None:
        """Set the trajectories of branches, in their order, and of those in a replay."""
        for branch, key in zip(self.branches[1:], keys, strict=False):
            branch.key = key
        self.branches += map(HistoryBranch, keys[len(self.branches) - 1 :])

    def move(self, _ended: object = None) -> None:
        """Wake all that wait for a change of the session."""
        self._moved.set()

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait until a condition holds, which is checked at each change."""
        while not ready():
            self._moved.clear()
            await self._moved.wait()

    def finish(self, status: str, step: Step, error: str) -> None:
        """End the attempt, unless it has ended."""
        if self.end is None:
            self.end = StepReply(
                trajectory_id=self.ask.trajectory_id, turn=0, status=status,  # type: ignore[arg-type]
                step=step, error=error,
            )  # fmt: skip
            self.move()


class AgentPool(EnvironmentPool):
    """Pool whose episodes are played by agents, and their endpoint."""

    def __init__(self, config: EnvironmentConfig) -> None:
        super().__init__(config)
        self._sessions: dict[int, AgentSession] = {}
        self._secret, self._attempts = secrets.token_bytes(32), 0
        self._told: set[str] = set()
        self._slow: weakref.WeakSet[EnvironmentChild] = weakref.WeakSet()
        self._watching: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner
        self.base_url = ""

    async def start(self) -> None:
        """Open the endpoint, and start the children."""
        app = web.Application(client_max_size=MOST_BODY)
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        await super().start()

    async def close(self) -> None:
        """End the agents, and close the endpoint."""
        for task in self._watching:
            task.cancel()
        self.end(list(self._sessions))
        await super().close()
        await self._runner.cleanup()

    # -- the coordinator's side -------------------------------------------------------------------

    def end(self, trajectory_ids: list[int]) -> None:
        """End these episodes, and stop their agents."""
        for key in trajectory_ids:
            if session := self._sessions.pop(key, None):
                session.finish("lost", Step(), "the episode is over")
                self._child(session).say(Ended([session.attempt]))

    async def reply(self, ask: StepAsk) -> StepReply:
        """Return an agent's next request, its new branch, or its end."""
        began, key = time.monotonic(), ask.trajectory_id
        session = self._session(ask) if ask.branch_of < 0 else await self._session_with(ask)
        branch = session.of(key) if session is not None else None
        if session is None or branch is None:
            return self._failed(ask, "lost", began, "its agent is gone")
        if not branch.take_turns(ask):
            session.finish("lost", Step(), "the policy said otherwise than its agent has heard")
        session.move()
        while len(branch.steps) <= ask.turn and session.end is None:
            if branch is session.branches[0] and session.of(-1) is not None:
                return self._failed(ask, "branched", began, "its agent rewrote its history")
            waited, since = session.waits, time.monotonic()
            try:
                await self._progress(session)
                began += waited * (time.monotonic() - since)  # The policy's time, in any branch.
            except TimeoutError:
                text = "the agent asked nothing before the deadline"
                session.finish("timeout", Step(), text)
                self._stop(session)
        answer, steps = session.end, branch.steps[ask.turn :]
        if steps and (answer is None or answer.status == "ok"):
            answer = StepReply(trajectory_id=key, turn=ask.turn, status="ok", step=steps[0])
        assert answer is not None
        return msgspec.structs.replace(
            answer, trajectory_id=key, turn=ask.turn, seconds=time.monotonic() - began
        )

    def _session(self, ask: StepAsk) -> AgentSession | None:
        """Return the session of a trajectory that is no branch, a new one where none fits."""
        key, fresh = ask.trajectory_id, len(ask.known) == ask.turn
        session = self._sessions.get(key)
        fits = session is not None and session.fits(ask)
        if fresh and not fits:
            self.end([key])
            first = HistoryBranch(key, list(ask.turns), list(ask.known))
            session = self._sessions[key] = AgentSession(ask, [first])
            session.playing = asyncio.create_task(self._play(session))
            session.playing.add_done_callback(session.move)
        if session is not None:
            session.name(ask.branches)
        return session

    async def _session_with(self, ask: StepAsk) -> AgentSession | None:
        """Wait for the session of a branch, which may be requested later than the branch."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.timeout_s):
                while (found := self._sessions.get(ask.branch_of)) is None or not found.of(
                    ask.trajectory_id
                ):
                    await asyncio.sleep(BRANCH_S)
                self._sessions[ask.trajectory_id] = found
                return found
        return None

    async def _progress(self, session: AgentSession) -> None:
        """Wait for a session's next request or its end.

        TimeoutError where that comes too late, unless it waits for the policy."""

        def where() -> tuple[object, ...]:
            steps = sum(len(branch.steps) for branch in session.branches)
            named = session.of(-1) is None
            return session.attempt, steps, session.waits, named, session.end is not None

        seen, config = where(), self._config
        seconds: float | None = config.timeout_s
        if not session.branches[0].steps:
            seconds = config.reset_timeout_s or seconds
        if not session.attempt or session.waits:
            seconds = None
        async with asyncio.timeout(seconds):
            playing = session.playing
            assert playing is not None
            await session.until(lambda: where() != seen or playing.done())
        if playing.done():
            playing.result()

    async def _play(self, session: AgentSession) -> None:
        """Let the agent play, again where its process ends.

        Such an end counts where the agent may be the cause, not while it waits for the policy."""
        ask, deaths, error = session.ask, 0, ""
        while deaths < TRIES:
            session.attempt = self._attempts = self._attempts + 1
            key = self._signed(f"{ask.trajectory_id}-{session.attempt}")
            row = {"seed": ask.seed, **json.loads(ask.row)}
            told = json.dumps({"row": row, "base_url": self.base_url, "api_key": key})
            child = self._child(session)
            session.move()
            if session.branches[0].known and not child.ready.result().replayable:
                session.finish("lost", Step(), "its process ended, and it cannot be built again")
                return
            asked = not child.is_gone
            try:
                reply = await child.step(
                    StepAsk(trajectory_id=session.attempt, turn=0, turns=[], known=[],
                            row=told, seed=ask.seed)
                )  # fmt: skip
            except ChildGoneError as gone:
                if session.end is not None:
                    return
                error, acts = str(gone), session.last is None or session.last.done()
                deaths += asked and acts and child not in self._slow
                self._begin_again(session)
                await self._renew(child)
                continue
            child.say(Ended([session.attempt]))
            self._conclude(session, reply)
            return
        session.finish("crashed", Step(), error)

    def _child(self, session: AgentSession) -> EnvironmentChild:
        return self._children[session.ask.trajectory_id % len(self._children)]

    def _begin_again(self, session: AgentSession) -> None:
        for branch in session.branches:
            branch.begin_again()
        session.attempt, session.waits = 0, False
        session.counts = dict.fromkeys(session.counts, 0.0)
        if session.last is not None:
            session.last.cancel()
        session.last = None
        session.move()

    def _conclude(self, session: AgentSession, reply: StepReply) -> None:
        """End the session of an agent that has ended."""
        status, error, step = reply.status, reply.error, reply.step
        if status == "ok" and any(len(b.steps) < len(b.known) for b in session.branches):
            session.finish("diverged", Step(), "played again, the agent asked less than before")
        if status == "ok" and not session.branches[0].steps:
            status, error = "invalid", "the agent ended and has asked nothing"
        elif status == "crashed" and session.rewritten:
            status, error = "rewritten", session.rewritten
        metrics = {**step.metrics, **session.counts}
        if self._config.rewritten == "branch":
            metrics["branches"] = len(session.branches) - 1.0
        session.finish(status, msgspec.structs.replace(step, done=True, metrics=metrics), error)

    def _stop(self, session: AgentSession) -> None:
        """Stop an agent that takes too long, and its process if it does not react."""
        child, playing = self._child(session), session.playing
        self.end([session.ask.trajectory_id])
        assert playing is not None

        async def watch() -> None:
            await asyncio.wait([playing], timeout=self._config.timeout_s)
            if not playing.done() and not child.is_gone:
                self._slow.add(child)
                await self._renew(child)

        self._watching.add(task := asyncio.create_task(watch()))
        task.add_done_callback(self._watching.discard)

    def _signed(self, name: str) -> str:
        seal = hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()
        return f"{name}-{seal[:32]}"

    # -- the agents' side -------------------------------------------------------------------------

    async def _complete(self, request: web.Request) -> web.Response:
        try:
            body, answer = await self._completion(request)
            if body.get("stream"):
                return web.Response(body=event_of(answer), content_type="text/event-stream")
            return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
        except RefusedError as refused:
            said = {"message": str(refused), "type": "invalid_request_error", "code": None}
            return web.json_response({"error": said}, status=refused.status)

    async def _completion(self, request: web.Request) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what is asked, and the completion."""
        session = self._session_of(request.headers.get("Authorization", ""))
        try:
            body = msgspec.json.decode(await request.read(), type=dict[str, Any])
            self._check(body)
            asked = read_chat(body.get("messages"))
        except web.HTTPRequestEntityTooLarge:
            raise RefusedError(f"a request has at most {MOST_BODY} bytes", 413) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RefusedError(f"this is no request: {error}") from error
        again = request.headers.get("x-stainless-retry-count", "0") != "0"
        if session.last is not None and again and asked == session.last_asked:
            return body, await self._answered(session)  # The client had no answer, or lost it.
        if session.last is not None and not session.last.done():
            raise RefusedError("a request of this key is under way: ask one after the other")
        branch = self._step(session, asked, body.get("tools") or [])
        session.last_asked = asked
        session.last = asyncio.create_task(self._turn(session, branch, body))
        return body, await self._answered(session)

    async def _answered(self, session: AgentSession) -> dict[str, Any]:
        assert session.last is not None
        try:
            return await asyncio.shield(session.last)
        except asyncio.CancelledError:
            raise RefusedError("the episode is over", 410) from None

    def _session_of(self, header: str) -> AgentSession:
        key = header.removeprefix("Bearer ").strip()
        name, _, _ = key.rpartition("-")
        if not (key.isascii() and hmac.compare_digest(key, self._signed(name))):
            raise RefusedError("this key names no episode", 401)
        trajectory_id, attempt = map(int, name.split("-"))
        session = self._sessions.get(trajectory_id)
        if session is None or session.attempt != attempt or session.end is not None:
            raise RefusedError("the episode of this key is over", 410)
        return session

    def _check(self, body: Mapping[str, Any]) -> None:
        for name, value in body.items():
            if name in OVERRULED and name not in self._told:
                self._told.add(name)
                print(f"agents set {name}: the recipe says it instead", file=sys.stderr, flush=True)
            if name in NEUTRAL and value not in NEUTRAL[name]:
                raise RefusedError(f"{name} = {value!r} is not to be had: leave it out")
            if name not in ASIDE and name not in OVERRULED and name not in NEUTRAL:
                raise RefusedError(f"unknown parameter {name!r}")

    def _step(
        self, session: AgentSession, asked: list[ChatMessage], tools: list[Any]
    ) -> HistoryBranch:
        """Add a request's step to the branch that it continues or begins; return that.

        RefusedError where it changes the history, and may not."""
        first = session.branches[0]
        fits = [
            branch
            for branch in session.branches
            if branch.steps and branch.tools == tools and branch.chat == asked[: len(branch.chat)]
        ]
        branch = max(fits, key=lambda one: len(one.chat), default=first)
        if not fits and first.steps:
            if self._config.rewritten == "fail":
                raise self._rewritten(session, asked)
            branch = next((one for one in session.branches if not one.steps), HistoryBranch(-1))
        new = asked[len(branch.chat) :]
        if not new or new[-1].role == "assistant":
            raise RefusedError("the last message is the assistant's: there is nothing to answer")
        said = [InsertedMessage(one.role, self._text(session, one)) for one in new]  # type: ignore[arg-type]
        step = Step(messages=said, tools=[] if branch.steps else tools)
        try:  # What the coordinator could not read would never be answered.
            msgspec.msgpack.decode(msgspec.msgpack.encode(step), type=Step)
        except (msgspec.ValidationError, OverflowError) as error:
            raise RefusedError(f"this is no request: {error}") from error
        branch.steps.append(step)
        branch.tools = tools
        session.rewritten = ""
        if branch not in session.branches:
            session.branches.append(branch)
        return branch

    def _text(self, session: AgentSession, message: ChatMessage) -> str:
        """Return a message with its calls as the policy wrote them; RefusedError: it did not."""
        form, calls = self._config.call_format, message.calls
        for branch in session.branches if calls else ():
            for turn in branch.turns[: len(branch.steps)]:
                if calls_in(turn.text, form, branch.tools) == calls:
                    before = text_before_calls(turn.text, form)
                    written = turn.text.strip().removeprefix(before).strip()
                    return f"{message.content}\n{written}" if message.content else written
        if calls:
            raise RefusedError("a call of a tool that the policy did not make")
        return message.content

    def _rewritten(self, session: AgentSession, asked: list[ChatMessage]) -> RefusedError:
        known = session.branches[0].chat
        differs = next((i for i, one in enumerate(known) if asked[i : i + 1] != [one]), None)
        text = "the tools are not those of the first request"
        if differs is not None:
            text = (
                f"message {differs} is not what it was: an agent may add to its history, and not "
                'change it, without environment.rewritten = "branch"'
            )
        session.rewritten = text
        session.counts["refused"] += 1
        return RefusedError(text)

    async def _turn(
        self, session: AgentSession, branch: HistoryBranch, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Wait for the policy's turn, and return the completion."""
        number, session.waits = len(branch.steps) - 1, True
        session.move()
        await session.until(lambda: len(branch.turns) > number or session.end is not None)
        if len(branch.turns) <= number:
            raise RefusedError("the episode is over", 410)
        if number < len(branch.known) and branch.steps[number].digest != branch.known[number]:
            text = f"played again, the agent asked otherwise in request {number}"
            session.finish("diverged", Step(), text)
            raise RefusedError(text, 410)
        session.waits, turn = False, branch.turns[number]
        session.move()
        reply = self._reply_to(session, branch, turn)
        branch.chat = [*session.last_asked, reply]
        calls = [
            {
                "id": f"call_{number}_{place}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for place, call in enumerate(reply.calls)
        ]
        message: dict[str, Any] = {"role": "assistant", "content": reply.content}
        if calls:
            message |= {"content": reply.content or None, "tool_calls": calls}
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if calls else "stop",
            "token_ids": turn.ids,
            "logprobs": None,
        }
        if body.get("logprobs"):
            choice["logprobs"] = {
                "content": [
                    {"token": f"token_id:{i}", "logprob": p, "bytes": None, "top_logprobs": []}
                    for i, p in zip(turn.ids, turn.logprobs, strict=True)
                ]
            }
        return {
            "id": f"chatcmpl-{branch.key}-{number}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body.get("model") or "policy",
            "choices": [choice],
            "usage": {
                "prompt_tokens": turn.before,
                "completion_tokens": turn.tokens,
                "total_tokens": turn.before + turn.tokens,
            },
        }

    def _reply_to(
        self, session: AgentSession, branch: HistoryBranch, turn: PolicyTurn
    ) -> ChatMessage:
        """Return the policy's turn as a message, with its calls if all can be read."""
        form = self._config.call_format
        found = calls_in(turn.text, form, branch.tools) if branch.tools else []
        calls = [call for call in found if isinstance(call, ToolCall)]
        if len(calls) < len(found):
            session.counts["wrong_calls"] += 1
        if not calls or len(calls) < len(found):
            return ChatMessage("assistant", turn.text)
        return ChatMessage("assistant", text_before_calls(turn.text, form), calls)


def pool_of(config: EnvironmentConfig) -> EnvironmentPool:
    """Return the pool of a worker's environments."""
    return AgentPool(config) if config.is_agent else EnvironmentPool(config)
