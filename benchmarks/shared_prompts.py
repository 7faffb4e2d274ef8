"""Prompts that a group's responses share, computed once or for each: `headrace bench
shared-prompts`.

For each length of prompt: updates of groups of eight responses of the demonstration's lengths, with
`learner.share_prompts` and without, in turns on the same batches. `ratio` is seconds without over
seconds with, `tokens` the share of tokens that still go through the models. One thread.
"""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.command_line import command_line
from benchmarks.learner import build_updater
from benchmarks.learner_load import demo_batch
from benchmarks.rows import result_line
from learner.shards import merged
from learner.update import Updater

PROMPTS = (15, 60, 250)
MEMBERS, WINDOW = 8, 240


def timed(updater: Updater, *, prompt: int, seed: int, trajectories: int) -> tuple[float, float]:
    """Seconds of an update, and the tokens that went through the models."""
    batch, part = demo_batch(
        trajectories=trajectories, window=WINDOW, seed=seed, prompt=prompt, members=MEMBERS
    )
    shard = merged([part])
    began = time.perf_counter()
    metrics = updater.run(batch, shard).metrics
    seconds = time.perf_counter() - began
    rate = metrics["perf/tokens_per_s"]
    assert isinstance(rate, float)
    return seconds, rate * float(metrics["timing_s/update"])  # type: ignore[arg-type]


def measure(*, repeats: int, trajectories: int, budget: int) -> dict[str, Any]:
    """Each length of prompt, both ways in turns; the first turn warms up."""
    ways = {
        shares: build_updater(budget=budget, shares_openings=shares) for shares in (False, True)
    }
    found: dict[str, Any] = {}
    for prompt in PROMPTS:
        ratios, tokens = [], []
        for repeat in range(-1, repeats):
            apart, shared = (
                timed(ways[shares], prompt=prompt, seed=repeat + 1, trajectories=trajectories)
                for shares in (False, True)
            )
            if repeat >= 0:
                ratios.append(apart[0] / shared[0])
                tokens.append(shared[1] / apart[1])
        found[str(prompt)] = {
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "tokens": statistics.median(tokens),
        }
    return {"name": "shared_prompts", "repeats": repeats, "prompts": found}


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    parser = command_line("shared-prompts", __doc__)
    parser.add_argument("--repeats", type=int, default=7, help="turns with and without sharing")
    parser.add_argument("--trajectories", type=int, default=128, help="of an update")
    parser.add_argument("--budget", type=int, default=4096, help="tokens of a micro-batch")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    result = measure(
        repeats=options.repeats, trajectories=options.trajectories, budget=options.budget
    )
    for prompt, line in result["prompts"].items():
        print(
            f"prompts of {prompt:>4} tokens: {line['ratio']:.2f} times as fast "
            f"({line['ratio_min']:.2f} to {line['ratio_max']:.2f}), "
            f"{line['tokens']:.2f} of the tokens"
        )
    if options.json:
        print(result_line(result))
    return 0


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
