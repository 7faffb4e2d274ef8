"""Generation through the whole path at the demonstration's lengths, against raw vLLM.

Ours: an evaluation run of the quickstart (coordinator, leases, journal, rewards, one vLLM
generator), its tokens over its seconds. Raw: an AsyncLLM with the same settings on the same
prompts, as many in flight, read to its end by one task per prompt. Both sample at temperature 1
until the end token, with logprobs. They run in turn, `repeats` times; `ratio` is ours over raw. A
thousand answers take two seconds, in which a machine's noise is a tenth and more of either side:
`prompts` is large enough for sixteen, so that the first and last leases also weigh less.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from benchmarks.kit.command_line import add_rows_option, command_line
from benchmarks.kit.pairs import conclude, in_turns, ratios, spread
from benchmarks.kit.runs import train
from benchmarks.performance.generator import read_all
from generators.engine import GenerationRequest
from generators.engines.model_files import end_token_ids, read_config, weight_layout
from generators.engines.vllm_engine import VllmEngine, VllmSettings
from headrace.config.device_defaults import resolve_generator
from headrace.config.loading.recipe import load_recipe
from headrace.host.hardware import detect, has_gpu
from tasks.datasets.source import build_source
from tasks.rows import prompt_text


async def raw_rate(recipe: str, overrides: list[str]) -> float:
    """Return tokens per second of vLLM alone on the recipe's held-out prompts."""
    asked, hardware = load_recipe(Path(recipe), overrides), detect()
    run = resolve_generator(asked, hardware.gpus, bfloat16=hardware.bfloat16).config
    model, task, generator = run.model.path, run.task, run.generator
    config = read_config(model)
    settings = VllmSettings(
        model=model,
        max_model_len=task.max_prompt_length + task.max_response_length,
        end_token_ids=end_token_ids(model, config),
        max_num_seqs=generator.seats,
        dtype=generator.dtype,
        kv_cache_gib=generator.kv_cache_gib,
        stream_interval=generator.stream_interval,
        on_gpu=has_gpu(),
        gathers=False,
    )
    engine = VllmEngine(settings, weight_layout(model, config))
    await engine.start()
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = build_source(task, run.seed).eval_rows(run.evaluation.num_prompts)
    requests = [
        GenerationRequest(
            str(i),
            tokenizer(prompt_text(row.prompt))["input_ids"],
            max_tokens=task.max_response_length,
            seed=i,
        )
        for i, row in enumerate(rows)
    ]
    began = time.perf_counter()
    tokens = await read_all(engine, requests, generator.seats)
    seconds = time.perf_counter() - began
    await engine.stop()
    return tokens / seconds


def evaluate(recipe: str, overrides: list[str], *, root: Path, name: str) -> float:
    """Run an evaluation on the whole path; return tokens per second."""
    only = ["evaluation.only=true", "evaluation.before=true", "evaluation.after=false"]
    summary = train(recipe, [*overrides, *only], root=root, name=name)
    (evaluation,) = summary["evaluations"]
    tokens = evaluation["num_prompts"] * evaluation["response_length"]
    return float(tokens / evaluation["seconds"])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    recipe = options.recipe
    overrides = [f"evaluation.num_prompts={options.prompts}", *options.overrides]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        rates = in_turns(
            {
                "ours": lambda turn: evaluate(
                    recipe, overrides, root=Path(folder), name=f"path-{turn}"
                ),
                "raw": lambda turn: asyncio.run(raw_rate(recipe, overrides)),
            },
            options.repeats,
            warm_up=False,
            seen=lambda turn: print(
                f"raw {turn['raw']:8.0f}  whole path {turn['ours']:8.0f}  ratio "
                f"{turn['ours'] / turn['raw']:.3f}",
                flush=True,
            ),
        )
    return {
        **spread(ratios(rates["ours"], rates["raw"])),
        "repeats": options.repeats,
        "overrides": overrides,
        "raw_tokens_per_s": round(statistics.median(rates["raw"]), 1),
        "path_tokens_per_s": round(statistics.median(rates["ours"]), 1),
    }


def main(argv: list[str]) -> int:
    parser = command_line("whole-path", __doc__)
    parser.add_argument("overrides", nargs="*", help="key=value, e.g. model.path=FOLDER")
    parser.add_argument(
        "--recipe", default="recipes/quickstart.toml", help="whose generator, prompts and rewards"
    )
    parser.add_argument("--repeats", type=int, default=5, help="pairs of both sides, in turns")
    parser.add_argument("--prompts", type=int, default=8192, help="answers of a side and repeat")
    add_rows_option(parser)
    options = parser.parse_args(argv)
    return conclude("whole_path", options, partial(measure, options))
