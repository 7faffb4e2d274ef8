"""Prompts that a group's responses share, computed once or for each: `headrace bench
shared-prompts`.

For each length of prompt: updates of groups of eight responses of the demonstration's lengths, with
`learner.share_prompts` and without, in turns on the same batches. `ratio` is seconds without over
seconds with, `tokens` the share of tokens that still go through the models. One thread.
"""

import argparse
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.kit.command_line import command_line
from benchmarks.kit.pairs import conclude, in_turns, ratios, shown, spread, took
from benchmarks.performance.learner import BUDGET, Learner, demo_shard

PROMPTS = (15, 60, 250)
MEMBERS, WINDOW = 8, 240


def timed(learner: Learner, turn: int, *, prompt: int, trajectories: int) -> tuple[float, float]:
    """Seconds of an update, and the tokens that went through the models."""
    part = demo_shard(
        trajectories=trajectories, window=WINDOW, seed=turn, prompt=prompt, members=MEMBERS
    )
    seconds = took(partial(learner.run, part)).wall_s
    found = learner.metrics
    return seconds, float(found["perf/tokens_per_s"]) * float(found["timing_s/update"])  # type: ignore[arg-type]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Each length of prompt, both ways in turns."""
    apart, shared = (
        Learner(budget=options.budget, shares_openings=shares) for shares in (False, True)
    )
    prompts: dict[str, Any] = {}
    for prompt in PROMPTS:
        sizes = {"prompt": prompt, "trajectories": options.trajectories}
        sides = {"apart": partial(timed, apart, **sizes), "shared": partial(timed, shared, **sizes)}
        turns = in_turns(sides, options.repeats)
        seconds, tokens = (
            {side: [figures[of] for figures in found] for side, found in turns.items()}
            for of in (0, 1)
        )
        row = spread(ratios(seconds["apart"], seconds["shared"]))
        row["tokens"] = statistics.median(ratios(tokens["shared"], tokens["apart"]))
        prompts[str(prompt)] = row
        print(
            f"prompts of {prompt:>4} tokens: {shown(row)} times as fast, {row['tokens']:.2f} of "
            "the tokens"
        )
    return {"repeats": options.repeats, "prompts": prompts}


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    parser = command_line("shared-prompts", __doc__)
    parser.add_argument("--repeats", type=int, default=7, help="turns with and without sharing")
    parser.add_argument("--trajectories", type=int, default=128, help="of an update")
    parser.add_argument("--budget", type=int, default=BUDGET, help="tokens of a micro-batch")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    return conclude("shared_prompts", options, partial(measure, options))
