"""A process that makes one update of the learner for each line it reads: `benchmarks.threads`.

In: a model folder and a number of trajectories as arguments, then a seed a line on standard input.
Out: for each, a line `{"seconds": ...}`. Between two lines the process waits and uses no core.
"""

import json
import sys
import time
from pathlib import Path

import torch

from benchmarks.learner import build_updater
from benchmarks.learner_load import demo_batch

WINDOW, BUDGET = 240, 4096


def answer(model: Path, trajectories: int, threads: int) -> None:
    """Make updates until standard input ends."""
    torch.set_num_threads(threads)
    updater = build_updater(budget=BUDGET, model=model)
    for line in sys.stdin:
        batch, shard = demo_batch(trajectories=trajectories, window=WINDOW, seed=int(line))
        began = time.perf_counter()
        updater.run(batch, shard)
        print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    answer(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
