"""The learner's update against a plain loop, in loss tokens a second: `headrace bench learner`.

Ours: DeepSpeed, packing, metrics and diagnostics, everything but sockets and storage. Reference:
`benchmarks.padded_loop`. Same model, trajectories and precision, one thread, interleaved repeats;
loss tokens are those of both halves. Target: a ratio of at least 0.9.
"""

import argparse
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.command_line import command_line
from benchmarks.learner_load import MODEL, demo_batch
from benchmarks.padded_loop import PaddedLoop
from benchmarks.rows import result_line
from headrace.config.algorithm import AlgorithmConfig
from headrace.config.learner import LearnerConfig, OptimizerConfig
from headrace.config.model import ModelConfig
from headrace.protocol.batches import Shard
from headrace.protocol.messages import Batch
from learner.algorithm import build_algorithm
from learner.engines import DeepSpeedEngine, join_ranks
from learner.forward import PolicyNetwork, ValueNetwork
from learner.models import load_critic, load_policy
from learner.place import Place
from learner.shards import merged
from learner.update import Outcome, Updater

POLICY_LR, VALUE_LR = 1e-4, 5e-4


def build_updater(*, budget: int, model: Path = MODEL, shares_openings: bool = False) -> Updater:
    """Our update with the demonstration's settings; policy and value model from `model`."""
    device = torch.device("cpu")
    if not torch.distributed.is_initialized():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        join_ranks(rank=0, world_size=1, port=port, device=device)
    loaded = ModelConfig(path=str(model))
    config = LearnerConfig(policy=OptimizerConfig(lr=POLICY_LR), value=OptimizerConfig(lr=VALUE_LR))
    algorithm = AlgorithmConfig.model_validate({"advantages": {"kind": "egae"}, "value": {}})
    bf16 = torch.bfloat16
    policy = PolicyNetwork(load_policy(loaded, dtype=torch.float32, device=device), autocast=bf16)
    critic = ValueNetwork(load_critic(loaded, dtype=torch.float32, device=device), autocast=bf16)
    return Updater(
        build_algorithm(algorithm, window=240),
        DeepSpeedEngine(policy, config.policy, config),
        DeepSpeedEngine(critic, config.value, config),
        config,
        Place(device=device, budget=budget, shares_openings=shares_openings),
    )


def loss_tokens(shard: Shard) -> int:
    """Tokens in the losses of both halves."""
    return sum(w.end - w.start for w in shard.windows) + sum(v.length for v in shard.values)


def speed(run: Callable[[], object], shard: Shard) -> tuple[float, float]:
    """Loss tokens a second, of wall clock and of processor time."""
    wall, busy = time.perf_counter(), time.process_time()
    run()
    tokens = loss_tokens(shard)
    return tokens / (time.perf_counter() - wall), tokens / (time.process_time() - busy)


def _noted(ours: Updater, batch: Batch, part: Shard, outcomes: list[Outcome]) -> None:
    """Our update from its parts on, as the learner does it."""
    outcomes.append(ours.run(batch, merged([part])))


def compare(*, repeats: int, trajectories: int, window: int, budget: int) -> dict[str, object]:
    """Interleaved repeats of both; each uses the same batch."""
    ours = build_updater(budget=budget)
    plain = PaddedLoop(MODEL, budget=budget, lr=(POLICY_LR, VALUE_LR))
    pairs = []
    outcomes: list[Outcome] = []
    for repeat in range(-1, repeats):
        batch, part = demo_batch(trajectories=trajectories, window=window, seed=repeat + 1)
        runs = (
            partial(_noted, ours, batch, part, outcomes),
            partial(plain.run, part),
        )
        pair = tuple(speed(run, part) for run in runs)
        if repeat >= 0:
            pairs.append(pair)
    wall = [a[0] / b[0] for a, b in pairs]
    busy = [a[1] / b[1] for a, b in pairs]
    return {
        "name": "learner",
        "ratio": statistics.median(wall),
        "ratio_min": min(wall),
        "ratio_max": max(wall),
        "repeats": repeats,
        "cpu_time_ratio": statistics.median(busy),
        "tokens_per_s": statistics.median(a[0] for a, _ in pairs),
        "reference_tokens_per_s": statistics.median(b[0] for _, b in pairs),
        "useful_share": outcomes[-1].metrics["perf/useful_share"],
        "reference_useful_share": plain.useful / plain.computed,
        "trajectories": trajectories,
        "window": window,
        "micro_batch_tokens": budget,
        "threads": torch.get_num_threads(),
    }


def parse(argv: Sequence[str], name: str, text: str | None) -> argparse.Namespace:
    """Options that the learner's benchmarks share."""
    parser = command_line(name, text)
    parser.add_argument("--repeats", type=int, default=7, help="turns of both sides")
    parser.add_argument("--trajectories", type=int, default=256, help="of an update")
    parser.add_argument("--window", type=int, default=240, help="tokens of a window")
    parser.add_argument("--budget", type=int, default=4096, help="tokens of a micro-batch")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    options = parse(argv, "learner", __doc__)
    torch.set_num_threads(options.threads)
    result = compare(
        repeats=options.repeats,
        trajectories=options.trajectories,
        window=options.window,
        budget=options.budget,
    )
    if not options.json:
        print(
            f"ours {result['tokens_per_s']:.0f}, plain loop {result['reference_tokens_per_s']:.0f} "
            f"loss tokens a second: ratio {result['ratio']:.2f} "
            f"({result['ratio_min']:.2f} to {result['ratio_max']:.2f}), target 0.9"
        )
    print(result_line(result))
    return 0


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
