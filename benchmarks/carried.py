"""Keys and values carried over against computing each prefix again: `headrace bench carried`.

Answers of `--tokens` tokens are sampled from the demonstration's policy and trained window by
window, as a stream does. Measured:

- seconds of an update (both models forward, the policy backward), by `learner.context`; `ratio` is
  those of `full` over those of `carried`, median of interleaved repeats with least and largest
- the share of context in what the policy computes, and bytes that are carried for each token
- the bias: the policy gradient of a window with random advantages, `frozen` and `carried` against
  `full` at the same weights (cosine, and norm over norm), where `--lags` updates lie between the
  windows of an answer and other answers are trained in the updates between them. 0: weights stand
  still, so that `carried` is `frozen`. In float32

A gradient of one window is compared in the middle and at the end of the answers: what is carried
there is as many windows old as stand before it.
"""

import argparse
import socket
import statistics
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.command_line import command_line, offer_row
from benchmarks.learner import POLICY_LR, VALUE_LR
from benchmarks.learner_load import MODEL, VOCABULARY
from benchmarks.rows import keep, result_line
from headrace.config.algorithm import AlgorithmConfig
from headrace.config.learner import LearnerConfig, OptimizerConfig
from headrace.config.model import ModelConfig
from headrace.protocol.batches import BatchSequence, PolicyWindow, Shard
from headrace.protocol.messages import Batch
from headrace.protocol.streams import Span
from learner.algorithm import build_algorithm
from learner.carried import Carried
from learner.engines import DeepSpeedEngine, join_ranks
from learner.forward import PolicyNetwork, ValueNetwork
from learner.models import load_critic, load_policy
from learner.place import Place
from learner.reads import reads_of, sampled_windows
from learner.steps import micro_batches
from learner.update import Outcome, Updater

Context = Literal["full", "frozen", "carried"]
CONTEXTS: tuple[Context, ...] = ("full", "frozen", "carried")
CPU = torch.device("cpu")
PROMPT = 12
BUDGET = 4096


class Answers:
    """Unfinished answers of one length, sampled from the model."""

    def __init__(self, count: int, tokens: int, *, first: int, seed: int) -> None:
        """`first`: the number of the first trajectory."""
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        model.config.max_position_embeddings = PROMPT + tokens
        prompts = torch.randint(3, VOCABULARY, (count, PROMPT))
        ids = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0,
            min_new_tokens=tokens, max_new_tokens=tokens,
        )  # fmt: skip
        self.sequences = [
            BatchSequence(
                trajectory_id=first + i,
                group_id=first + i,
                token_ids=row.numpy().astype(np.int32),
                opening=PROMPT,
                sampled=[(0, tokens)],
            )
            for i, row in enumerate(ids)
        ]

    def shard(self, start: int, end: int) -> Shard:
        """One window of each answer. Its sampler was near the present policy."""
        sequences = [
            BatchSequence(
                trajectory_id=s.trajectory_id,
                group_id=s.group_id,
                token_ids=s.token_ids[: PROMPT + end],
                opening=PROMPT,
                sampled=[(0, end)],
            )
            for s in self.sequences
        ]
        windows = [
            PolicyWindow(
                window_id=s.trajectory_id * 10_000 + start,
                trajectory_id=s.trajectory_id,
                sequence=i,
                start=start,
                end=end,
                length=end,
                logprobs=np.full(end - start, -2.0, np.float32),
                loss_weights=np.ones(end - start, np.float32),
                spans=[Span(0, start, end)],
            )
            for i, s in enumerate(sequences)
        ]
        return Shard(sequences=sequences, windows=windows, values=[])


class Learner:
    """Our update with the demonstration's settings. The critic has a head that is not zero, so that
    there are advantages."""

    def __init__(self, context: Context, *, window: int, autocast: torch.dtype | None) -> None:
        loaded = ModelConfig(path=str(MODEL))
        kind: dict[str, Any] = {"dtype": torch.float32, "device": CPU}
        config = LearnerConfig(
            context=context,
            policy=OptimizerConfig(lr=POLICY_LR),
            value=OptimizerConfig(lr=VALUE_LR),
        )
        self.network = PolicyNetwork(load_policy(loaded, **kind), autocast=autocast)
        critic = load_critic(loaded, **kind)
        torch.manual_seed(7)
        torch.nn.init.normal_(critic.score.weight, std=0.3)
        algorithm = AlgorithmConfig.model_validate({"advantages": {"kind": "egae"}, "value": {}})
        self.updater = Updater(
            build_algorithm(algorithm, window=window),
            DeepSpeedEngine(self.network, config.policy, config),
            DeepSpeedEngine(ValueNetwork(critic, autocast=autocast), config.value, config),
            config,
            Place(device=CPU, budget=BUDGET),
        )
        self._update = 0

    def run(self, shard: Shard) -> Outcome:
        """One update."""
        self._update += 1
        header = Batch(
            batch_id=self._update, update=self._update, lineage=0, version=0, publish_as=1,
            parts=[1], value_epochs=1, checkpoint=False,
        )  # fmt: skip
        return self.updater.run(header, shard)

    def gradient(self, shard: Shard, context: Context, advantages: Tensor) -> Tensor:
        """The policy gradient of the windows at the present weights, as one vector."""
        sampled = sampled_windows(shard.sequences, shard.windows)
        reads = reads_of(shard.sequences, shard.windows, sampled)
        place = Place(device=CPU, budget=BUDGET, frozen_context=context != "full")
        carried: Carried | None = None
        if context == "carried":
            carried = self.updater.carried["policy"]
            carried.begin(self._update + 1, ())
        parameters = list(self.network.parameters())
        total = [torch.zeros_like(p) for p in parameters]
        for pack, tokens in micro_batches(reads, range(len(shard.sequences)), place, carried):
            loss = -(self.network(pack).logprobs * advantages[tokens]).sum()
            for sum_so_far, part in zip(total, torch.autograd.grad(loss, parameters), strict=True):
                sum_so_far += part
        return torch.cat([part.flatten() for part in total])


def seconds_of(
    contexts: Sequence[Context], answers: Answers, *, tokens: int, window: int
) -> dict[Context, dict[str, float]]:
    """Seconds of an update and shares of context, in bfloat16 products, over whole answers."""
    found: dict[Context, dict[str, float]] = {}
    for context in contexts:
        learner = Learner(context, window=window, autocast=torch.bfloat16)
        shares: list[float] = []
        began = time.perf_counter()
        for start in range(0, tokens, window):
            metrics = learner.run(answers.shard(start, start + window)).metrics
            share = metrics["perf/context_share"]
            assert isinstance(share, float)
            shares.append(share)
        spent = time.perf_counter() - began
        bytes_carried = sum(store.num_bytes for store in learner.updater.carried.values())
        kept = len(answers.sequences) * (PROMPT + tokens - 1)
        found[context] = {
            "seconds": spent / len(shares),
            "context_share": statistics.mean(shares),
            "bytes_per_token": bytes_carried / kept,
        }
    return found


def bias_of(
    lag: int, answers: Answers, others: Answers, *, tokens: int, window: int
) -> list[dict[str, float]]:
    """Gradients against that of `full`, in the middle of the answers and at their end."""
    learner = Learner("carried", window=window, autocast=None)
    starts = list(range(0, tokens, window))
    measured = {starts[len(starts) // 2], starts[-1]}
    found = []
    for i, start in enumerate(starts):
        shard = answers.shard(start, start + window)
        if start in measured:
            torch.manual_seed(start)
            advantages = torch.randn(len(shard.windows) * window)
            full, frozen, carried = (learner.gradient(shard, c, advantages) for c in CONTEXTS)
            row = {"lag": float(lag), "start": float(start)}
            for name, gradient in (("frozen", frozen), ("carried", carried)):
                cosine = torch.nn.functional.cosine_similarity(gradient, full, dim=0)
                row[f"{name}_cosine"] = float(cosine)
                row[f"{name}_norm"] = float(gradient.norm() / full.norm())
            found.append(row)
        if lag == 0:
            learner = _standing_still(learner, shard, window)
            continue
        learner.run(shard)
        for j in range(lag - 1):
            other = starts[(i * (lag - 1) + j) % len(starts)]
            learner.run(others.shard(other, other + window))
    return found


def _standing_still(learner: Learner, shard: Shard, window: int) -> Learner:
    """The learner after an update whose optimizer steps are undone; its keys stay."""
    weights = {name: x.clone() for name, x in learner.network.state_dict().items()}
    learner.run(shard)
    learner.network.load_state_dict(weights)
    return learner


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = command_line("carried", __doc__)
    parser.add_argument("--tokens", type=int, default=2048, help="of an answer")
    parser.add_argument("--window", type=int, default=128, help="tokens of a window")
    parser.add_argument("--trajectories", type=int, default=8, help="answers of an update")
    parser.add_argument(
        "--lags",
        type=int,
        nargs="+",
        default=[0, 1, 2, 4],
        help="updates between two windows of an answer, each counted",
    )
    parser.add_argument("--repeats", type=int, default=3, help="rounds of all contexts")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    offer_row(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    options = parse(argv)
    torch.set_num_threads(options.threads)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    join_ranks(rank=0, world_size=1, port=port, device=CPU)
    size = {"tokens": options.tokens, "window": options.window}
    answers, others = (
        Answers(options.trajectories, options.tokens, first=first, seed=first)
        for first in (0, 10_000)
    )
    rng = np.random.default_rng(0)
    rounds = [
        seconds_of([CONTEXTS[i] for i in rng.permutation(len(CONTEXTS))], answers, **size)
        for _ in range(options.repeats)
    ]
    ratios = [r["full"]["seconds"] / r["carried"]["seconds"] for r in rounds]
    bias = [row for lag in options.lags for row in bias_of(lag, answers, others, **size)]
    result = {
        "benchmark": "carried",
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "repeats": options.repeats,
        "seconds_an_update": {
            c: statistics.median(r[c]["seconds"] for r in rounds) for c in CONTEXTS
        },
        "context_share": {c: rounds[0][c]["context_share"] for c in CONTEXTS},
        "bytes_per_token": rounds[0]["carried"]["bytes_per_token"],
        "bias": bias,
        **size,
        "trajectories": options.trajectories,
        "threads": options.threads,
    }
    keep(options.rows, result)
    if not options.json:
        for context in CONTEXTS:
            print(
                f"{context:8} {result['seconds_an_update'][context]:.3f} s an update, context "
                f"{result['context_share'][context]:.3f} of what is computed"
            )
        for row in bias:
            print(
                f"lag {row['lag']:.0f}, window at {row['start']:.0f}: frozen cosine "
                f"{row['frozen_cosine']:.4f}, norm {row['frozen_norm']:.3f}; carried "
                f"{row['carried_cosine']:.4f}, {row['carried_norm']:.3f}"
            )
    print(result_line(result))
    return 0


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
