"""Generation at the demonstration's lengths through the whole path, against raw vLLM.

Ours: an evaluation run of the quickstart (coordinator, leases, journal, rewards, one vLLM
generator), its tokens over its seconds. Raw: an AsyncLLM with the same settings on the same
prompts, as many in flight, read to its end by one task a prompt. Both sample at temperature 1
until the end token, with logprobs. They run in turn, `repeats` times; `ratio` is ours over raw.
A thousand answers take two seconds, in which a machine's noise is a tenth and more of either side:
`prompts` is large enough for sixteen. What the first and the last leases cost weighs less then.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.command_line import command_line, offer_row
from benchmarks.rows import keep, result_line
from benchmarks.runs import train
from generators.engine import GenerationRequest
from generators.policy_files import end_token_ids, read_config, weight_layout
from generators.run import has_gpu
from generators.vllm_engine import VllmEngine, VllmSettings
from headrace.config.load import load_recipe
from tasks.rows import prompt_text
from tasks.source import build_source


async def raw_rate(recipe: str, overrides: list[str]) -> float:
    """Tokens a second of vLLM alone on the recipe's held-out prompts."""
    from transformers import AutoTokenizer

    run = load_recipe(Path(recipe), overrides)
    config = read_config(run.model.path)
    ends = end_token_ids(run.model.path, config)
    task, generator = run.task, run.generator
    settings = VllmSettings(
        model=run.model.path,
        max_model_len=task.max_prompt_length + task.max_response_length,
        end_token_ids=ends,
        max_num_seqs=generator.max_num_seqs,
        dtype=generator.dtype,
        kv_cache_gib=generator.kv_cache_gib,
        stream_interval=generator.stream_interval,
        on_gpu=has_gpu(),
        gathers=False,
    )
    engine = VllmEngine(settings, weight_layout(run.model.path, config))
    await engine.start()
    tokenizer = AutoTokenizer.from_pretrained(run.model.path)
    rows = build_source(task, run.seed).eval_rows(run.evaluation.num_prompts)
    prompts = [tokenizer(prompt_text(row.prompt))["input_ids"] for row in rows]
    slots = asyncio.Semaphore(generator.max_num_seqs)

    async def answer(index: int) -> int:
        request = GenerationRequest(
            str(index), prompts[index], max_tokens=task.max_response_length, seed=index
        )
        tokens = 0
        async with slots:
            async for output in engine.raw.generate(
                {"prompt_token_ids": request.prompt_ids},
                engine.sampling_params(request),
                request.request_id,
            ):
                tokens += len(output.outputs[0].token_ids)
        return tokens

    began = time.perf_counter()
    total = sum(await asyncio.gather(*map(answer, range(len(prompts)))))
    rate = total / (time.perf_counter() - began)
    await engine.stop()
    return rate


def path_rate(recipe: str, overrides: list[str], *, root: Path, name: str) -> float:
    """Tokens a second of an evaluation through the whole path."""
    only = ["evaluation.only=true", "evaluation.before=true", "evaluation.after=false"]
    summary = train(recipe, [*overrides, *only], root=root, name=name)
    (evaluation,) = summary["evaluations"]
    tokens = evaluation["num_prompts"] * evaluation["response_length"]
    return float(tokens / evaluation["seconds"])


def measure(recipe: str, overrides: list[str], repeats: int, prompts: int) -> dict[str, Any]:
    """Both sides in turn."""
    overrides = [f"evaluation.num_prompts={prompts}", *overrides]
    raw: list[float] = []
    ours: list[float] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        for repeat in range(repeats):
            ours.append(path_rate(recipe, overrides, root=Path(folder), name=f"path-{repeat}"))
            raw.append(asyncio.run(raw_rate(recipe, overrides)))
            ratio = ours[-1] / raw[-1]
            print(f"raw {raw[-1]:8.0f}  whole path {ours[-1]:8.0f}  ratio {ratio:.3f}", flush=True)
    ratios = [mine / theirs for mine, theirs in zip(ours, raw, strict=True)]
    return {
        "benchmark": "whole_path",
        "ratio": round(statistics.median(ratios), 4),
        "ratio_min": round(min(ratios), 4),
        "ratio_max": round(max(ratios), 4),
        "repeats": repeats,
        "overrides": overrides,
        "raw_tokens_per_s": round(statistics.median(raw), 1),
        "path_tokens_per_s": round(statistics.median(ours), 1),
    }


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = command_line("whole-path", __doc__)
    parser.add_argument("overrides", nargs="*", help="key=value, e.g. model.path=FOLDER")
    parser.add_argument(
        "--recipe", default="recipes/quickstart.toml", help="whose generator, prompts and rewards"
    )
    parser.add_argument("--repeats", type=int, default=5, help="pairs of both sides, in turns")
    parser.add_argument("--prompts", type=int, default=8192, help="answers of a side and repeat")
    offer_row(parser)
    arguments = parser.parse_args(argv)
    result = measure(arguments.recipe, arguments.overrides, arguments.repeats, arguments.prompts)
    keep(arguments.rows, result)
    if arguments.json:
        print(result_line(result))
    return 0


if __name__ == "__main__":  # vLLM's engine process imports the main module again
    raise SystemExit(main([]))
