"""Claims: reward workers keep up with the quickstart's generator at no more than 5 % of a core for
the kind `math`, and a source that takes half a second for an answer never stalls the stream.

(1) The generator of the recipe answers held-out prompts in a real run, and a reward worker scores
them as they come: `answers_per_s` while all slots are full, processor seconds of the worker and its
scoring children for each without their start-up, `cpu_s_per_answer`, and the product of both,
`math_core_share`, in cores. A policy before training writes the shortest answers, and in an
evaluation a generator may use the learner's core: training finishes fewer answers a second.

(2) A coroutine with 32 answers in flight, and a blocking function in eight children, are slow and
instant in turns in one stream (`benchmarks.performance.slow_stream`): `stream_ratio`, tokens a
second while slow over those while instant (the median of the pairs of both kinds), and
`longest_free_s`, the longest that a slot of the generator was free in a slow turn, beside
`longest_free_instant_s`.

Needs less than three minutes on two cores that nobody else uses. A measurement is a row of the file
`--rows`, by default `benchmarks/results/rewards.jsonl`.
"""

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.kit.command_line import command_line, take_rows
from benchmarks.kit.machine_state import Watch, roles_in
from benchmarks.kit.pairs import conclude, shown, spread
from benchmarks.kit.rows import RESULTS
from benchmarks.kit.runs import train
from benchmarks.performance.slow_source import SECONDS, TURN_S
from benchmarks.performance.slow_stream import (
    CHILDREN,
    IN_FLIGHT,
    KINDS,
    LOAD,
    SLOTS,
    Stream,
    most_open,
    stream,
)
from headrace.errors import RunFailedError
from headrace.protocol.records.record_types import ChunkArrived, RewardArrived
from storage.journal.store import read_journal

RECIPE = "recipes/quickstart.toml"
WORKER = "reward-0"
WARM = 256
"""Answers that are scored before the measurement."""
EVERY_S = 0.25
"""Between two looks at the processes."""


@dataclass(frozen=True)
class Cost:
    """Answers and the seconds in which they ended, processor seconds of worker and children in that
    time, and the most answers that waited for their scores."""

    answers: int
    wall_s: float
    cpu_s: float
    most_waiting: int


def while_full(begun: Iterable[float], ended: Iterable[float], warm: int) -> list[float]:
    """When answers ended, from the first `warm` on and before the last one was begun: as long as a
    prompt waits, no slot is empty."""
    last = max(begun)
    return sorted(at for at in ended if at <= last)[warm:]


def cost(recipe: str, overrides: Sequence[str], prompts: int, root: Path) -> Cost:
    """Have `prompts` held-out prompts answered and scored in a run of their own; RunFailedError
    where one was not scored."""
    only = ["evaluation.only=true", "evaluation.before=true", "evaluation.after=false"]
    asked = [*overrides, *only, f"evaluation.num_prompts={prompts}", "reward.workers=1"]
    watch = Watch(every_s=EVERY_S, keeps=True)
    folder = Path(train(recipe, asked, root=root, name="answers", watch=watch)["folder"])
    records = [record for batch in read_journal(folder / "journal") for _, record in batch]
    chunks = [record for record in records if isinstance(record, ChunkArrived)]
    rewards = [record for record in records if isinstance(record, RewardArrived)]
    if lost := [record for record in rewards if record.status != "ok"]:
        raise RunFailedError(f"an answer was not scored: {lost[0].error}")
    ended = [chunk.at for chunk in chunks if chunk.finish in ("stop", "length")]
    at = while_full((chunk.at for chunk in chunks if chunk.chunk_index == 0), ended, WARM)
    if len(at) < WARM:
        raise RunFailedError(f"{len(at)} answers are too few: raise --prompts")
    start, end = at[0], at[-1]
    return Cost(
        answers=len(at),
        wall_s=end - start,
        cpu_s=watch.role_between(WORKER, roles_in(folder), start, end),
        most_waiting=most_open(ended, (record.at for record in rewards), start, end),
    )


def cost_figures(found: Cost) -> dict[str, Any]:
    """The first claim's figures."""
    return {
        "math_core_share": round(found.cpu_s / found.wall_s, 4),
        "answers_per_s": round(found.answers / found.wall_s, 1),
        "cpu_s_per_answer": round(found.cpu_s / found.answers, 6),
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
    return {
        **spread(
            [slow.tokens_per_s / instant.tokens_per_s for instant, slow in pairs], "stream_ratio"
        ),
        "longest_free_s": round(max(slow.longest_free_s for _, slow in pairs), 4),
        "longest_free_instant_s": round(max(instant.longest_free_s for instant, _ in pairs), 4),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        root = Path(name)
        found = cost_figures(cost(options.recipe, options.overrides, options.prompts, root))
        print(
            f"{found['answers_per_s']:.0f} answers a second, "
            f"{1000 * found['cpu_s_per_answer']:.3f} ms of a core each: "
            f"{found['math_core_share']:.2%} of a core (goal: at most 5 %)",
            flush=True,
        )
        streams: dict[str, Stream] = {
            kind: asyncio.run(stream(root / kind, kind, options.pairs)) for kind in KINDS
        }
    of_streams = stream_figures(streams)
    for kind, figures in of_streams["kinds"].items():
        print(
            f"slow {kind:<9} over instant: {shown(figures, 'stream_ratio')}; a slot was free for "
            f"{1000 * figures['longest_free_s']:.0f} ms at most, "
            f"{1000 * figures['longest_free_instant_s']:.0f} ms while instant"
        )
    return {
        **found,
        **of_streams,
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
    return conclude("rewards", options, partial(measure, options))
