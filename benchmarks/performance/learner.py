"""The learner's update against a plain loop, in loss tokens a second: `headrace bench learner`.

Ours: DeepSpeed, packing, metrics and diagnostics, everything but sockets and storage. Reference:
`benchmarks.performance.padded_loop`. Same model, trajectories and precision, one thread,
interleaved repeats; loss tokens are those of both halves. Target: a ratio of at least 0.9.
"""

import argparse
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.kit.command_line import command_line
from benchmarks.kit.made_runs import MODEL
from benchmarks.kit.pairs import conclude, in_turns, ratios, shown, spread, took
from benchmarks.performance.padded_loop import PaddedLoop
from headrace.config.sections.algorithm import AlgorithmConfig
from headrace.config.sections.learner import LearnerConfig, OptimizerConfig
from headrace.config.sections.model import ModelConfig
from headrace.host.hardware import free_port
from headrace.protocol.fields import Metric
from headrace.protocol.messages.batches import BatchSequence, PolicyWindow, Shard, ValueTrajectory
from headrace.protocol.messages.control import Batch
from headrace.protocol.token_spans import Float32, Int32, Reward, Span
from learner.algorithms.registry import build_algorithm
from learner.batching.shards import merged
from learner.device import Place
from learner.models.deepspeed_engine import DeepSpeedEngine, join_ranks
from learner.models.forward import PolicyNetwork, ValueNetwork
from learner.models.loading import load_critic, load_policy
from learner.updates.update import Updater

CPU = torch.device("cpu")
BUDGET = 4096
POLICY_LR, VALUE_LR = 1e-4, 5e-4
# Response lengths after training: p50 31, p90 87, p99 239, mean about 45.
QUANTILES = ((0.0, 4), (0.25, 20), (0.5, 31), (0.75, 52), (0.9, 87), (0.99, 239), (1.0, 240))
VOCABULARY = 64


@dataclass(frozen=True)
class Answer:
    """A response up to its window's end, which begins at `start`: its number, its group's, token
    ids of which the prompt has `opening`, the window's logprobs. `score`: None while unfinished."""

    number: int
    group: int
    ids: Int32
    opening: int
    start: int
    logprobs: Float32
    score: float | None = None


def shard_of(answers: Iterable[Answer]) -> Shard:
    """One window of each answer, and the whole of those that are finished."""
    shard = Shard(sequences=[], windows=[], values=[])
    for place, answer in enumerate(answers):
        length, score = answer.ids.size - answer.opening, answer.score or 0.0
        rewards = [] if answer.score is None else [Reward(score, length - 1)]
        shard.sequences.append(
            BatchSequence(
                trajectory_id=answer.number,
                group_id=answer.group,
                token_ids=answer.ids,
                opening=answer.opening,
                sampled=[(0, length)],
            )
        )
        shard.windows.append(
            PolicyWindow(
                window_id=answer.number * 10_000 + answer.start,
                trajectory_id=answer.number,
                sequence=place,
                start=answer.start,
                end=length,
                length=length,
                logprobs=answer.logprobs,
                spans=[Span(0, answer.start, length)],
                loss_weights=np.ones(length - answer.start, np.float32),
                rewards=rewards,
                finished=answer.score is not None,
                score=score,
                correct=score > 0,
            )
        )
        if rewards:
            shard.values.append(
                ValueTrajectory(
                    trajectory_id=answer.number,
                    sequence=place,
                    length=length,
                    rewards=rewards,
                    score=score,
                    logprobs=np.zeros(0, np.float32),
                )
            )
    return shard


def demo_lengths(count: int, rng: np.random.Generator) -> list[int]:
    """Response lengths drawn from the demonstration's distribution."""
    shares, lengths = zip(*QUANTILES, strict=True)
    drawn = np.interp(rng.random(count), shares, np.log(lengths))
    return [round(float(x)) for x in np.exp(drawn)]


def demo_shard(
    *, trajectories: int, window: int, seed: int, prompt: int | None = None, members: int = 1
) -> Shard:
    """One update's only part: each response's last window, and all that finished; a tenth is
    unfinished. `prompt`: its tokens (None: 7 to 17); `members`: responses to each."""
    rng = np.random.default_rng(seed)
    answers: list[Answer] = []
    opening = np.zeros(0, np.int32)
    for i, length in enumerate(demo_lengths(trajectories, rng)):
        if i % members == 0:
            size = prompt or 2 * int(rng.integers(3, 9)) + 1
            opening = rng.integers(3, VOCABULARY, size).astype(np.int32)
        ids = np.concatenate([opening, rng.integers(3, VOCABULARY, length).astype(np.int32)])
        start = (length - 1) // window * window
        finished = bool(rng.random() < 0.9)
        score = float(finished and rng.random() < 0.5)
        logprobs = rng.normal(-2.0, 0.5, length - start).astype(np.float32)
        answers.append(
            Answer(i, i // members, ids, opening.size, start, logprobs, score if finished else None)
        )
    return shard_of(answers)


class Learner:
    """Our update with the demonstration's settings, as the only rank."""

    def __init__(
        self,
        *,
        budget: int = BUDGET,
        window: int = 240,
        autocast: torch.dtype | None = torch.bfloat16,
        shares_openings: bool = False,
        critic_spread: float = 0.0,
        **settings: Any,
    ) -> None:
        """`critic_spread`: of the critic's head, whose values are 0 otherwise; `settings`: of the
        table `learner`."""
        if not torch.distributed.is_initialized():
            join_ranks(rank=0, world_size=1, port=free_port(), device=CPU)
        policy, value = OptimizerConfig(lr=POLICY_LR), OptimizerConfig(lr=VALUE_LR)
        config = LearnerConfig(policy=policy, value=value, **settings)
        algorithm = AlgorithmConfig.model_validate({"advantages": {"kind": "egae"}, "value": {}})
        loaded = ModelConfig(path=str(MODEL))
        critic = load_critic(loaded, dtype=torch.float32, device=CPU)
        if critic_spread:
            torch.manual_seed(7)
            torch.nn.init.normal_(critic.score.weight, std=critic_spread)
        self.network = PolicyNetwork(
            load_policy(loaded, dtype=torch.float32, device=CPU), autocast=autocast
        )
        self.updater = Updater(
            build_algorithm(algorithm, window=window),
            DeepSpeedEngine(self.network, policy, config),
            DeepSpeedEngine(ValueNetwork(critic, autocast=autocast), value, config),
            config,
            Place(device=CPU, budget=budget, shares_openings=shares_openings),
        )
        self.updates = 0
        self.metrics: dict[str, Metric] = {}

    def run(self, part: Shard) -> dict[str, Metric]:
        """One update from its only part on; its metrics."""
        self.updates += 1
        batch = Batch(
            batch_id=self.updates, update=self.updates, lineage=0, version=0, publish_as=1,
            parts=[1], value_epochs=1, checkpoint=False,
        )  # fmt: skip
        self.metrics = self.updater.run(batch, merged([part])).metrics
        return self.metrics


def loss_tokens(shard: Shard) -> int:
    """Tokens in the losses of both halves."""
    return sum(w.end - w.start for w in shard.windows) + sum(v.length for v in shard.values)


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Both in turns, on the same batches."""
    ours = Learner(budget=options.budget)
    plain = PaddedLoop(MODEL, budget=options.budget, lr=(POLICY_LR, VALUE_LR))
    batch = partial(demo_shard, trajectories=options.trajectories, window=options.window)
    turns = in_turns(
        {
            "ours": lambda turn: took(partial(ours.run, batch(seed=turn))),
            "plain": lambda turn: took(partial(plain.run, batch(seed=turn))),
        },
        options.repeats,
    )
    tokens = [loss_tokens(batch(seed=turn)) for turn in range(1, options.repeats + 1)]
    wall = {side: [each.wall_s for each in found] for side, found in turns.items()}
    busy = {side: [each.cpu_s for each in found] for side, found in turns.items()}
    speeds = {side: statistics.median(ratios(tokens, found)) for side, found in wall.items()}
    against = spread(ratios(wall["plain"], wall["ours"]))
    print(
        f"ours {speeds['ours']:.0f}, plain loop {speeds['plain']:.0f} loss tokens a second: ratio "
        f"{shown(against)}, target 0.9"
    )
    return {
        **against,
        "repeats": options.repeats,
        "cpu_time_ratio": statistics.median(ratios(busy["plain"], busy["ours"])),
        "tokens_per_s": speeds["ours"],
        "reference_tokens_per_s": speeds["plain"],
        "useful_share": ours.metrics["perf/useful_share"],
        "reference_useful_share": plain.useful / plain.computed,
        "trajectories": options.trajectories,
        "window": options.window,
        "micro_batch_tokens": options.budget,
        "threads": torch.get_num_threads(),
    }


def parse(argv: Sequence[str], name: str, text: str | None) -> argparse.Namespace:
    """Options that the learner's benchmarks share; torch's threads are set."""
    parser = command_line(name, text)
    parser.add_argument("--repeats", type=int, default=7, help="turns of both sides")
    parser.add_argument("--trajectories", type=int, default=256, help="of an update")
    parser.add_argument("--window", type=int, default=240, help="tokens of a window")
    parser.add_argument("--budget", type=int, default=BUDGET, help="tokens of a micro-batch")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    return options


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    options = parse(argv, "learner", __doc__)
    return conclude("learner", options, partial(compare, options))
