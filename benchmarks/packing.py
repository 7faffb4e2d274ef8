"""Packing at the demonstration's lengths: `headrace bench packing`.

`ratio` is the share of tokens that go through the model's layers and are not padding, over a whole
update (target 0.95). `attention_share` is the same inside attention, where sequences of similar
length are padded together. Beside it: loss tokens a second of the update against length-bucketed
padding, and of the ways to run packed attention (blocks of several tightnesses; one call a
sequence).
"""

import argparse
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.learner import CPU, VOCABULARY, compare, demo_lengths, parse
from benchmarks.made_runs import MODEL
from benchmarks.pairs import conclude, in_turns, took
from headrace.config.model import ModelConfig
from learner.forward import Pack, PolicyNetwork
from learner.layout import BLOCK_RATIO, layout_of
from learner.models import load_policy
from learner.packing import pack_sequences

# 1.0 puts lengths that are exactly alike together; above 1 every sequence is a block of its own.
RATIOS = (0.5, BLOCK_RATIO, 0.9, 1.0, 1.01)


def packs_of(lengths: Sequence[int], budget: int, ratio: float) -> list[Pack]:
    """Packs of random tokens, all of them read."""
    packs = []
    for chosen in pack_sequences(lengths, budget=budget):
        sizes = [lengths[i] for i in chosen]
        ids = torch.randint(3, VOCABULARY, (sum(sizes),))
        places = torch.cat([torch.arange(size) for size in sizes])
        layout = layout_of(sizes, ratio=ratio)
        packs.append(Pack(ids, places, layout, torch.arange(ids.numel()), ids))
    return packs


def attention_speeds(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of the policy's forward and backward pass for each tightness of blocks."""
    policy = load_policy(ModelConfig(path=str(MODEL)), dtype=torch.float32, device=CPU)
    network = PolicyNetwork(policy, autocast=torch.bfloat16)

    def passes(packs: Sequence[Pack]) -> None:
        for pack in packs:
            network(pack).logprobs.sum().backward()

    def speed(ratio: float, turn: int) -> tuple[float, float]:
        """Tokens a second, and the share of them that is no padding inside attention."""
        drawn = demo_lengths(options.trajectories, np.random.default_rng(turn))
        lengths = [n + 12 for n in drawn]
        packs = packs_of(lengths, options.budget, ratio)
        padded = sum(pack.layout.padded_from.numel() for pack in packs)
        seconds = took(partial(passes, packs)).wall_s
        return sum(lengths) / seconds, sum(lengths) / padded

    found = in_turns({str(ratio): partial(speed, ratio) for ratio in RATIOS}, options.repeats)
    shares = {ratio: figures[-1][1] for ratio, figures in found.items()}
    return {
        "attention_share": shares[str(BLOCK_RATIO)],
        "tokens_per_s_by_block_ratio": {
            ratio: statistics.median(speed for speed, _ in figures)
            for ratio, figures in found.items()
        },
        "attention_share_by_block_ratio": shares,
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    attention, update = attention_speeds(options), compare(options)
    # A rank without sequences computes one token; that is all the padding there can be.
    useful = update["useful_share"]
    print(
        f"not padding: {useful:.3f} of the tokens (padded batches: "
        f"{update['reference_useful_share']:.3f}), inside attention "
        f"{attention['attention_share']:.3f}; {update['tokens_per_s']:.0f} loss tokens a "
        f"second against {update['reference_tokens_per_s']:.0f}"
    )
    return {
        **{name: useful for name in ("ratio", "ratio_min", "ratio_max")},
        "repeats": options.repeats,
        "padded_batches_share": update["reference_useful_share"],
        "speed_ratio": update["ratio"],
        "tokens_per_s": update["tokens_per_s"],
        "padded_tokens_per_s": update["reference_tokens_per_s"],
        **attention,
    }


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    options = parse(argv, "packing", __doc__)
    return conclude("packing", options, partial(measure, options))
