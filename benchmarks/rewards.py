"""Claims: reward workers keep up with the quickstart's generator at no more than 5 % of a core for
the kind `math`, and a source that takes half a second for an answer never stalls the stream.

(1) The generator of the recipe answers held-out prompts in a real run, and a reward worker scores
them at the times at which they came (`benchmarks.reward_cost`): `answers_per_s`,
`cpu_s_per_answer` and their product `math_core_share`, in cores. (2) A coroutine with 32 answers in
flight, and a blocking function in eight children, are slow and instant in turns in one stream
(`benchmarks.slow_stream`): `stream_ratio`, tokens a second while slow over those while instant
(the median of the pairs of both kinds), and `longest_free_s`, the longest that a slot of the
generator was free in a slow turn, beside `longest_free_instant_s`.

Needs less than three minutes on two cores that nobody else uses. Every measurement is a row of the
file `--rows`, by default `benchmarks/results/rewards.jsonl`.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command_line import command_line, take_rows
from benchmarks.machine_state import Watch
from benchmarks.reward_cost import Answers, Cost, cost, generate
from benchmarks.rows import RESULTS, Rows
from benchmarks.slow_source import SECONDS, TURN_S
from benchmarks.slow_stream import CHILDREN, IN_FLIGHT, KINDS, LOAD, SLOTS, stream
from benchmarks.slow_turns import Stream
from headrace.config.load import load_recipe

RECIPE = "recipes/quickstart.toml"


def cost_figures(answers: Answers, found: Cost) -> dict[str, Any]:
    """The first claim's figures."""
    return {
        "math_core_share": round(found.cpu_s_per_answer * answers.per_s, 4),
        "answers_per_s": round(answers.per_s, 1),
        "cpu_s_per_answer": round(found.cpu_s_per_answer, 6),
        "answers": found.answers,
        "most_waiting": found.most_waiting,
    }


def stream_figures(streams: Mapping[str, Stream]) -> dict[str, Any]:
    """The second claim's: of all kinds together, and of each."""
    kinds = {kind: _figures([found]) for kind, found in streams.items()}
    for kind, found in streams.items():
        slow = [turn for _, turn in found.pairs]
        kinds[kind] |= {
            "answers_per_s": round(statistics.mean(turn.answers_per_s for turn in slow), 1),
            "most_unscored": max(turn.most_unscored for turn in slow),
            "trained_tokens_per_s": round(found.trained_per_s, 1),
        }
    return {**_figures(list(streams.values())), "kinds": kinds}


def _figures(streams: Sequence[Stream]) -> dict[str, Any]:
    pairs = [pair for found in streams for pair in found.pairs]
    ratios = [slow.tokens_per_s / instant.tokens_per_s for instant, slow in pairs]
    return {
        "stream_ratio": round(statistics.median(ratios), 4),
        "stream_ratio_min": round(min(ratios), 4),
        "stream_ratio_max": round(max(ratios), 4),
        "longest_free_s": round(max(slow.longest_free_s for _, slow in pairs), 4),
        "longest_free_instant_s": round(max(instant.longest_free_s for instant, _ in pairs), 4),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures, and the state of the machine meanwhile."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, Watch() as watch:
        root = Path(name)
        answers = generate(options.recipe, options.overrides, options.prompts, root)
        run = load_recipe(Path(options.recipe), options.overrides)
        found = cost_figures(answers, asyncio.run(cost(run, answers)))
        print(
            f"{found['answers_per_s']:.0f} answers a second, "
            f"{1000 * found['cpu_s_per_answer']:.3f} ms of a core each: "
            f"{found['math_core_share']:.2%} of a core (goal: at most 5 %)",
            flush=True,
        )
        streams: dict[str, Stream] = {}
        for kind in KINDS:
            streams[kind] = asyncio.run(stream(root / kind, kind, options.pairs))
            figures = _figures([streams[kind]])
            print(
                f"slow {kind:<9} over instant: {figures['stream_ratio']:.3f} "
                f"({figures['stream_ratio_min']:.3f} to {figures['stream_ratio_max']:.3f}); a slot "
                f"was free for {1000 * figures['longest_free_s']:.0f} ms at most, "
                f"{1000 * figures['longest_free_instant_s']:.0f} ms while instant",
                flush=True,
            )
    return {
        **found,
        **stream_figures(streams),
        "settings": {
            "prompts": options.prompts,
            "overrides": options.overrides,
            "pairs": options.pairs,
            "turn_s": TURN_S,
            "slow_s": SECONDS,
            "concurrency": IN_FLIGHT,
            "children": CHILDREN,
            "slots": SLOTS,
            "load": LOAD,
        },
        **watch.state({}).as_row(),
    }


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    parser = command_line("rewards", __doc__)
    parser.add_argument("overrides", nargs="*", help="key=value, e.g. model.path=FOLDER")
    parser.add_argument("--recipe", default=RECIPE, help="whose generator and rewards")
    parser.add_argument("--prompts", type=int, default=2048, help="answers of the generator")
    parser.add_argument("--pairs", type=int, default=3, help="turns of a stream, slow and instant")
    take_rows(parser, RESULTS / "rewards.jsonl")
    options = parser.parse_args(argv)
    # Made before the measurement, so that it knows the commit that is measured.
    rows, at = Rows(options.rows), round(time.time())
    row = rows.add(f"rewards/{at}", {"name": "rewards", **measure(options)})
    if options.json:
        print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
