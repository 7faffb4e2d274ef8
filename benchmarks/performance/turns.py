"""Generation in eight turns of an environment, against one turn or an agent.

Both sides are evaluations through the whole path, of a model that draws every token with the same
chance, so that a turn has 32 tokens on average, or an answer 256. The environment takes 50 ms for a
step, many of them at once, and inserts two tokens. They run in turn, `repeats` times; `ratio` is
many turns over one, in sampled tokens per second. With `--against endpoint` an agent requests the
eight turns, with the same pauses, and `ratio` is its relative time. The scripted engine takes 10 ms
per token, so that a waiting slot is measurable.
"""

import argparse
import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.kit.command_line import add_engine_option, add_rows_option, command_line
from benchmarks.kit.pairs import conclude, in_turns, ratios, spread
from benchmarks.performance.whole_path import evaluate
from generators.run import FAKE_STEP
from headrace.host.install import ROOT
from headrace.protocol.messages.environments import InsertedMessage, PolicyTurn, Step

TURNS, TOKENS, VOCABULARY = 8, 32, 512
STEP_S = 0.05


class Turns:
    """An environment that inserts the same in each of eight turns, after a while."""

    def reset(self, row: Mapping[str, Any], seed: int) -> None:
        self._left = TURNS

    async def step(self, turn: PolicyTurn) -> Step:
        """Wait, and end the episode after the last turn."""
        await asyncio.sleep(STEP_S)
        self._left -= 1
        return Step(messages=[InsertedMessage("user", "12")], done=not self._left)


@cache
def connection() -> aiohttp.ClientSession:
    """Return the connection of all episodes of a process."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def ask(row: Mapping[str, Any], *, base_url: str, api_key: str) -> float:
    """Play the same turns as an agent. Through httpx a request took 7 ms of a core."""
    messages = [{"role": "user", "content": row["prompt"]}]
    headers = {"Authorization": f"Bearer {api_key}"}
    url = f"{base_url}/chat/completions"
    for _ in range(TURNS):
        async with connection().post(url, json={"messages": messages}, headers=headers) as answer:
            answer.raise_for_status()
            message = (await answer.json())["choices"][0]["message"]
        messages += [message, {"role": "user", "content": "12"}]
        await asyncio.sleep(STEP_S)
    return 0.0


def model_of(folder: Path, tokens: int) -> Path:
    """Write a calculator model with output weights 0: answers average `tokens`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    source, out = ROOT / "recipes" / "models" / "products-cold", folder / f"model-{tokens}"
    shutil.copytree(source, out, dirs_exist_ok=True)
    config = AutoConfig.from_pretrained(source)
    config.vocab_size, config.max_position_embeddings = VOCABULARY, 4096
    model = AutoModelForCausalLM.from_config(config)
    model.get_output_embeddings().weight.data.zero_()
    model.generation_config.eos_token_id = list(range(2, 2 + VOCABULARY // tokens))
    model.save_pretrained(out)
    return out


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if options.engine == "fake":
        os.environ[FAKE_STEP] = "0.01"
    common = [
        f"generator.engine={options.engine}", f"evaluation.num_prompts={options.prompts}",
        f"generator.max_num_seqs={options.slots}", "transport.self_test_s=null", *options.overrides,
    ]  # fmt: skip
    longest = 4 * TURNS * TOKENS
    stepped = [
        "environment.children=1", f"environment.max_turns={TURNS}",
        f"environment.max_turn_tokens={4 * TOKENS}",
    ]  # fmt: skip
    named = "environment.name={}benchmarks.performance.turns:{}"
    own = {
        "turns": (TOKENS, [named.format("", "Turns"), *stepped]),
        "endpoint": (TOKENS, [named.format("agent:", "ask"), *stepped]),
        "one": (TURNS * TOKENS, ["environment=null", "reward.kind=exact"]),
    }
    sides, other = {}, options.against
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        for name in ("turns", other):
            tokens, settings = own[name]
            path = json.dumps(str(model_of(Path(folder), tokens)))
            lengths = [f"task.max_response_length={longest}", f"schedule.window={longest}"]
            sides[name] = [*settings, f"model.path={path}", *lengths, *common]

        def rate(side: str, turn: int) -> float:
            name = f"{side}-{turn}"
            return evaluate(options.recipe, sides[side], root=Path(folder), name=name)

        rates = in_turns(
            {side: partial(rate, side) for side in sides}, options.repeats, warm_up=False,
            seen=lambda turn: print(json.dumps(turn), flush=True),
        )  # fmt: skip
    return {
        **spread(ratios(rates["turns"], rates[other])),
        "against": other,
        "engine": options.engine,
        "tokens_per_s": {side: [round(rate, 1) for rate in found] for side, found in rates.items()},
    }


def main(argv: list[str]) -> int:
    parser = command_line("turns", __doc__)
    parser.add_argument("overrides", nargs="*", help="key=value")
    parser.add_argument("--recipe", default="recipes/calculator.toml", help="the rest of the run")
    add_engine_option(parser, "fake")
    parser.add_argument("--against", choices=("one", "endpoint"), default="one", help="what")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of both sides, in turns")
    parser.add_argument("--prompts", type=int, default=192, help="answers of a side and repeat")
    parser.add_argument("--slots", type=int, default=48, help="answers that are sampled at a time")
    add_rows_option(parser)
    options = parser.parse_args(argv)
    return conclude("turns", options, partial(measure, options))
