"""Packing at the demonstration's lengths: `headrace bench packing`.

`ratio` is the share of tokens that go through the model's layers and are not padding, over a whole
update (target 0.95). `attention_share` is the same inside attention, where sequences of similar
length are padded together. Beside it: loss tokens a second of the update against length-bucketed
padding.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.kit.pairs import conclude
from benchmarks.performance.learner import compare, demo_lengths, parse
from learner.batching.layout import layout_of
from learner.batching.packing import pack_sequences

PROMPT = 12


def attention_share(lengths: Sequence[int], budget: int) -> float:
    """The share of tokens that is no padding inside attention, of sequences of these lengths."""
    packs = [[lengths[i] for i in chosen] for chosen in pack_sequences(lengths, budget=budget)]
    return sum(lengths) / sum(layout_of(sizes).padded_from.numel() for sizes in packs)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    update = compare(options)
    drawn = demo_lengths(options.trajectories, np.random.default_rng(options.repeats))
    inside = attention_share([PROMPT + length for length in drawn], options.budget)
    # A rank without sequences computes one token; that is all the padding there can be.
    useful = update["useful_share"]
    print(
        f"not padding: {useful:.3f} of the tokens (padded batches: "
        f"{update['reference_useful_share']:.3f}), inside attention {inside:.3f}"
    )
    return {
        **{name: useful for name in ("ratio", "ratio_min", "ratio_max")},
        "repeats": options.repeats,
        "padded_batches_share": update["reference_useful_share"],
        "speed_ratio": update["ratio"],
        "tokens_per_s": update["tokens_per_s"],
        "padded_tokens_per_s": update["reference_tokens_per_s"],
        "attention_share": inside,
    }


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    options = parse(argv, "packing", __doc__)
    return conclude("packing", options, partial(measure, options))
