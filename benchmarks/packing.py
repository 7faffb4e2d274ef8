"""Packing at the demonstration's lengths: `headrace bench packing`.

`ratio` is the share of tokens that go through the model's layers and are not padding, over a whole
update (target 0.95). `attention_share` is the same inside attention, where sequences of similar
length are padded together. Beside it: loss tokens a second of the update against length-bucketed
padding, and of the ways to run packed attention (blocks of several tightnesses; one call a
sequence).
"""

import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.learner import compare, parse
from benchmarks.learner_load import MODEL, VOCABULARY, demo_lengths
from benchmarks.rows import result_line
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


def attention_speeds(*, repeats: int, trajectories: int, budget: int) -> dict[str, object]:
    """Tokens a second of the policy's forward and backward pass for each tightness of blocks."""
    model = ModelConfig(path=str(MODEL))
    network = PolicyNetwork(
        load_policy(model, dtype=torch.float32, device=torch.device("cpu")),
        autocast=torch.bfloat16,
    )
    speeds: dict[float, list[float]] = {ratio: [] for ratio in RATIOS}
    shares: dict[float, float] = {}
    for repeat in range(-1, repeats):
        lengths = [n + 12 for n in demo_lengths(trajectories, np.random.default_rng(repeat + 1))]
        for ratio in RATIOS:
            packs = packs_of(lengths, budget, ratio)
            began = time.perf_counter()
            for pack in packs:
                network(pack).logprobs.sum().backward()
            seconds = time.perf_counter() - began
            padded = sum(pack.layout.padded_from.numel() for pack in packs)
            shares[ratio] = sum(lengths) / padded
            if repeat >= 0:
                speeds[ratio].append(sum(lengths) / seconds)
    return {
        "attention_share": shares[BLOCK_RATIO],
        "tokens_per_s_by_block_ratio": {
            str(ratio): statistics.median(found) for ratio, found in speeds.items()
        },
        "attention_share_by_block_ratio": {str(ratio): share for ratio, share in shares.items()},
    }


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    options = parse(argv, "packing", __doc__)
    torch.set_num_threads(options.threads)
    attention = attention_speeds(
        repeats=options.repeats, trajectories=options.trajectories, budget=options.budget
    )
    update = compare(
        repeats=options.repeats,
        trajectories=options.trajectories,
        window=options.window,
        budget=options.budget,
    )
    # A rank without sequences computes one token; that is all the padding there can be.
    useful = float(str(update["useful_share"]))
    result = {
        "name": "packing",
        "ratio": useful,
        "ratio_min": useful,
        "ratio_max": useful,
        "repeats": options.repeats,
        "padded_batches_share": update["reference_useful_share"],
        "speed_ratio": update["ratio"],
        "tokens_per_s": update["tokens_per_s"],
        "padded_tokens_per_s": update["reference_tokens_per_s"],
        **attention,
    }
    if not options.json:
        print(
            f"not padding: {useful:.3f} of the tokens (padded batches: "
            f"{update['reference_useful_share']:.3f}), inside attention "
            f"{attention['attention_share']:.3f}; {update['tokens_per_s']:.0f} loss tokens a "
            f"second against {update['reference_tokens_per_s']:.0f}"
        )
    print(result_line(result))
    return 0


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
