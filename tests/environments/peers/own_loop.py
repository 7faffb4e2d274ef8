"""The libraries' own loops with a scripted client: `python own_loop.py LIBRARY < CASES > REWARDS`.

A case is a dict: `thing` (FILE.py:THING or a name), `row`, `seed`, `turns` (text, and calls of it).
"""

import asyncio
import importlib.util
import inspect
import json
import random
import sys
from types import SimpleNamespace
from typing import Any


def thing_of(target: str) -> Any:
    file, _, name = target.rpartition(":")
    spec = importlib.util.spec_from_file_location("theirs", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def textarena(case: dict[str, Any]) -> float:
    import textarena as ta

    game = ta.make(case["thing"])
    random.seed(case["seed"])
    game.reset(num_players=1, seed=case["seed"])
    for text, _ in case["turns"]:
        game.get_observation()
        done, _ = game.step(action=text)
        if done:
            break
    return game.close()[0][0]


def gymnasium(case: dict[str, Any]) -> float:
    made = thing_of(case["thing"])()
    made.reset(seed=case["seed"])
    total = 0.0
    for text, _ in case["turns"]:
        _, reward, terminated, truncated, _ = made.step(text)
        total += reward
        if terminated or truncated:
            break
    return total


def trl(case: dict[str, Any]) -> Any:
    from trl.trainer import grpo_trainer

    turns = [
        {
            "role": "assistant",
            "content": text,
            "tool_calls": [
                {"type": "function", "function": {"name": n, "arguments": a}} for n, a in calls
            ],
        }
        for text, calls in case["turns"]
    ]
    loop, tools, environment = asyncio.new_event_loop(), [], None
    thing = thing_of(case["thing"])
    if isinstance(thing, list):
        tools = thing
    else:
        environment = thing()
        environment.reset(**case["row"])
        members = inspect.getmembers(type(environment), predicate=inspect.isfunction)
        names = [n for n, _ in members if n not in ("reset", "get_reward") and n[0] != "_"]
        tools = [getattr(environment, n) for n in names]
    waiting = {t.__name__: t for t in tools if inspect.iscoroutinefunction(t)}

    # TRL's loop, whose policy and parser are the script.
    grpo_trainer.parse_response = lambda _, ids, **others: turns[ids[-1]]
    at = iter(range(1, len(turns)))
    import threading

    threading.Thread(target=loop.run_forever, daemon=True).start()
    trainer = SimpleNamespace(
        max_tool_calling_iterations=sys.maxsize, async_loop=loop, use_vllm=False, _is_vlm=False,
        _sync_tool_dicts=[{t.__name__: t for t in tools if t.__name__ not in waiting}],
        _async_tool_dicts=[waiting], max_completion_length=10**6, environment_factories=None,
        model=SimpleNamespace(config=SimpleNamespace(max_position_embeddings=10**6)), tools=tools,
        _get_tool_suffix_ids=lambda messages: [0], _tokenizer=None,
        _generate_single_turn=lambda ids, *rest, **others: ([[next(at)]], None),
    )  # fmt: skip
    _, completions, *_ = grpo_trainer.GRPOTrainer._tool_call_loop(
        trainer, [[{"role": "user", "content": "q"}]], [[0]], [[0]], [[turns[0]]], None, None, {}
    )
    if environment is None:
        return [m["content"] for m in completions[0] if m["role"] == "tool"]
    reward = environment.get_reward()
    return loop_run(reward) if inspect.isawaitable(reward) else reward


async def loop_of(waits: Any) -> Any:
    return await waits


def loop_run(waits: Any) -> Any:
    return asyncio.run(loop_of(waits))


def verifiers(case: dict[str, Any]) -> float:
    from verifiers.clients import Client
    from verifiers.types import Response, ResponseMessage, ToolCall

    turns = iter(case["turns"])

    class Scripted(Client):
        def setup_client(self, config: Any) -> Any: ...
        async def to_native_tool(self, tool: Any) -> Any: ...
        async def raise_from_native_response(self, response: Any) -> None: ...
        async def close(self) -> None: ...

        async def to_native_prompt(self, messages: Any) -> Any:
            return messages, {}

        async def get_native_response(self, *arguments: Any, **others: Any) -> Any:
            return next(turns)

        async def from_native_response(self, response: Any) -> Response:
            text, calls = response
            made = [
                ToolCall(id=str(i), name=n, arguments=json.dumps(a))
                for i, (n, a) in enumerate(calls)
            ]
            message = ResponseMessage(
                content=text, tool_calls=made or None, finish_reason="stop", is_truncated=False
            )
            return Response(id="r", created=0, model="m", message=message)

    made = thing_of(case["thing"])()
    row = made.get_dataset()[0]
    output = asyncio.run(made.run_rollout(row, Scripted(None), "m", {}))
    return output["reward"]


if __name__ == "__main__":
    play, sink = globals()[sys.argv[1]], sys.stdout
    sys.stdout = sys.stderr
    json.dump([play(case) for case in json.load(sys.stdin)], sink)
