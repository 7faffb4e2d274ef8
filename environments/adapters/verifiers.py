"""Classic environments of `verifiers`, 0.2.1 to 0.3.1.

In: an environment by its id, a row of its dataset. Out: a factory of episodes. Promise: its own
loop runs, with its stop conditions and its rubric; where it asks a model, the policy's next turn is
the reply, and messages that the policy has not read are inserted. A rewritten history is refused,
an error of the rollout is one of the episode.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from environments.protocol import InvalidStepError
from environments.tools import CallFormat, ToolCall, calls_in, text_before_calls
from headrace.host.user_code import thing_of
from headrace.protocol.messages.environments import InsertedMessage, PolicyTurn, Step

RoleTexts = list[tuple[str, str]]
"""Role and text of messages."""


class RolloutError(Exception):
    """The rollout ended with an error of its own."""


class VerifiersEpisode:
    """One rollout, which waits for the policy wherever it would ask a model."""

    waits = True

    def __init__(self, environment: Any, calls: CallFormat) -> None:
        self._environment, self._calls = environment, calls
        shown = ("name", "description", "parameters")
        self.schemas = [
            {"type": "function", "function": {key: getattr(each, key) for key in shown}}
            for each in environment.tool_defs or []
        ]
        self._known: RoleTexts = []
        self._asked: asyncio.Queue[RoleTexts] = asyncio.Queue()
        self._turns: asyncio.Queue[PolicyTurn] = asyncio.Queue()
        self._rollout: asyncio.Task[Any] | None = None

    async def reset(self, row: Mapping[str, Any], seed: int) -> Step:
        """Begin the rollout; return its messages before its first request, if any."""
        prompt = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
        self._known = _said(prompt)
        given = {"example_id": 0, "info": {}, **row, "prompt": prompt}
        run = self._environment.run_rollout(given, _client()(self), "policy", {})
        self._rollout = asyncio.create_task(run)
        return await self._answer()

    async def step(self, turn: PolicyTurn) -> Step:
        """Reply to the rollout; return its next messages, or the reward of its rubric."""
        self._turns.put_nowait(turn)
        return await self._answer()

    def close(self) -> None:
        """End a rollout that is not over."""
        if self._rollout is not None:
            self._rollout.cancel()

    async def _answer(self) -> Step:
        assert self._rollout is not None
        asked = asyncio.create_task(self._asked.get())
        await asyncio.wait({self._rollout, asked}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            said = asked.result()
            known, self._known = self._known, said
            for i, one in enumerate(known):
                if said[i : i + 1] != [one]:
                    raise InvalidStepError(f"it rewrote message {i} of its history")
            return Step(messages=[InsertedMessage(*one) for one in said[len(known) :]])  # type: ignore[arg-type]
        asked.cancel()
        output = self._rollout.result()
        if error := output.get("error"):
            raise RolloutError(json.dumps(error, default=str))
        metrics = {key: float(value) for key, value in (output["metrics"] or {}).items()}
        return Step(reward=float(output["reward"]), done=True, metrics=metrics)

    async def response(self, prompt: Any) -> Any:
        """Answer the rollout's client with the policy's turn as a `Response`."""
        types = import_module("verifiers.types")
        said = _said(prompt)
        self._asked.put_nowait(said)
        turn = await self._turns.get()
        calls = calls_in(turn.text, self._calls, self.schemas) if self.schemas else []
        text = text_before_calls(turn.text, self._calls) if calls else turn.text
        made = []
        for number, call in enumerate(calls):
            name, given = "", str(call)
            if isinstance(call, ToolCall):
                name, given = call.name, json.dumps(call.arguments)
            made.append(types.ToolCall(id=f"call_{len(said)}_{number}", name=name, arguments=given))
        self._known = [*said, ("assistant", text)]
        reason = "tool_calls" if made else "stop"
        message = types.ResponseMessage(
            content=text, tool_calls=made or None, finish_reason=reason, is_truncated=False
        )
        usage = types.Usage(
            prompt_tokens=0, reasoning_tokens=0, completion_tokens=turn.tokens,
            total_tokens=turn.tokens,
        )  # fmt: skip
        return types.Response(
            id=f"turn_{len(said)}", created=int(time.time()), model="policy", usage=usage,
            message=message,
        )  # fmt: skip


@cache
def _client() -> Any:
    """Return the class of a verifiers client that asks an episode."""

    class Policy(import_module("verifiers.clients").Client):  # type: ignore[misc]
        async def get_response(self, prompt: Any, *args: Any, **others: Any) -> Any:
            return await self._client.response(prompt)

    Policy.__abstractmethods__ = frozenset()
    return Policy


def _said(messages: Any) -> RoleTexts:
    found = []
    for message in messages:
        given = message if isinstance(message, Mapping) else message.model_dump()
        content = given.get("content") or ""
        if not isinstance(content, str):
            content = "".join(part.get("text", "") for part in content)
        found.append((given["role"], content))
    return found


def episodes(*, calls: CallFormat, id: str, **options: Any) -> Callable[[], Any]:
    """Args:
    id: as `verifiers.load_environment` takes it, or `FILE.py:THING`, a function that returns an
        environment. options: of either.
    """
    package = import_module("verifiers")
    made = thing_of(id)(**options) if ".py:" in id else package.load_environment(id, **options)
    return lambda: VerifiersEpisode(made, calls)
