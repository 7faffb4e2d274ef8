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
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.kit.command_line import command_line, offer_row
from benchmarks.kit.made_runs import MODEL
from benchmarks.kit.pairs import conclude, in_turns, ratios, shown, spread, took
from benchmarks.performance.learner import BUDGET, CPU, VOCABULARY, Answer, Learner, shard_of
from headrace.protocol.messages.batches import Shard
from learner.batching.token_reads import reads_of, sampled_windows
from learner.device import Place
from learner.models.microbatches import micro_batches
from learner.models.prefix_cache import PrefixCache

Context = Literal["full", "frozen", "carried"]
CONTEXTS: tuple[Context, ...] = get_args(Context)
PROMPT = 12


class Answers:
    """Unfinished answers of one length, sampled from the model, and their windows."""

    def __init__(self, options: argparse.Namespace, *, first: int) -> None:
        """`first`: the number of the first trajectory, and the seed."""
        tokens, self.window, self._first = options.tokens, options.window, first
        self.starts = list(range(0, tokens, self.window))
        torch.manual_seed(first)
        model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        model.config.max_position_embeddings = PROMPT + tokens
        prompts = torch.randint(3, VOCABULARY, (options.trajectories, PROMPT))
        ids = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0,
            min_new_tokens=tokens, max_new_tokens=tokens,
        )  # fmt: skip
        self._ids = ids.numpy().astype(np.int32)
        self.kept = self._ids.size - len(self._ids)
        """Tokens that stand before another one."""

    def part(self, start: int) -> Shard:
        """The window of each answer that begins there. Its sampler was near the present policy."""
        end = PROMPT + start + self.window
        logprobs = np.full(self.window, -2.0, np.float32)
        numbers = range(self._first, self._first + len(self._ids))
        return shard_of(
            Answer(number, number, ids[:end], PROMPT, start, logprobs)
            for number, ids in zip(numbers, self._ids, strict=True)
        )


def learner(context: Context, window: int, autocast: torch.dtype | None) -> Learner:
    """A learner whose critic has a head that is not zero, so that there are advantages."""
    return Learner(context=context, window=window, autocast=autocast, critic_spread=0.3)


def gradient(ours: Learner, part: Shard, context: Context, advantages: Tensor) -> Tensor:
    """The policy gradient of the windows at the present weights, as one vector."""
    reads = reads_of(part.sequences, part.windows, sampled_windows(part.sequences, part.windows))
    place = Place(device=CPU, budget=BUDGET, frozen_context=context != "full")
    carried: PrefixCache | None = None
    if context == "carried":
        carried = ours.updater.carried["policy"]
        carried.begin_update(ours.updates + 1, ())
    parameters = list(ours.network.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    for pack, tokens in micro_batches(reads, range(len(part.sequences)), place, carried):
        loss = -(ours.network(pack).logprobs * advantages[tokens]).sum()
        for sum_so_far, piece in zip(total, torch.autograd.grad(loss, parameters), strict=True):
            sum_so_far += piece
    return torch.cat([piece.flatten() for piece in total])


def whole_answers(context: Context, answers: Answers, turn: int) -> dict[str, float]:
    """Seconds of an update and shares of context, in bfloat16 products, over whole answers."""
    ours = learner(context, answers.window, torch.bfloat16)
    shares: list[Any] = []

    def updates() -> None:
        for start in answers.starts:
            shares.append(ours.run(answers.part(start))["perf/context_share"])

    seconds = took(updates).wall_s
    carried = sum(store.num_bytes for store in ours.updater.carried.values())
    return {
        "seconds": seconds / len(shares),
        "context_share": statistics.mean(shares),
        "bytes_per_token": carried / answers.kept,
    }


def bias_of(lag: int, answers: Answers, others: Answers) -> list[dict[str, float]]:
    """Gradients against that of `full`, in the middle of the answers and at their end."""
    ours, starts = learner("carried", answers.window, None), answers.starts
    found = []
    for i, start in enumerate(starts):
        part = answers.part(start)
        if start in (starts[len(starts) // 2], starts[-1]):
            torch.manual_seed(start)
            advantages = torch.randn(len(part.windows) * answers.window)
            full, *rest = (gradient(ours, part, context, advantages) for context in CONTEXTS)
            row = {"lag": float(lag), "start": float(start)}
            for name, other in zip(CONTEXTS[1:], rest, strict=True):
                row[f"{name}_cosine"] = float(torch.cosine_similarity(other, full, dim=0))
                row[f"{name}_norm"] = float(other.norm() / full.norm())
            found.append(row)
        weights = {name: x.clone() for name, x in ours.network.state_dict().items()}
        ours.run(part)
        if lag == 0:
            # The optimizer's steps are undone; the keys stay.
            ours.network.load_state_dict(weights)
        for j in range(lag - 1):
            ours.run(others.part(starts[(i * (lag - 1) + j) % len(starts)]))
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of all contexts in turns, then the bias for each lag."""
    answers, others = (Answers(options, first=first) for first in (0, 10_000))
    sides = {str(context): partial(whole_answers, context, answers) for context in CONTEXTS}
    turns = in_turns(sides, options.repeats, warm_up=False)
    seconds = {side: [each["seconds"] for each in found] for side, found in turns.items()}
    against = spread(ratios(seconds["full"], seconds["carried"]))
    medians = {side: statistics.median(found) for side, found in seconds.items()}
    shares = {side: found[0]["context_share"] for side, found in turns.items()}
    for side in CONTEXTS:
        print(
            f"{side:8} {medians[side]:.3f} s an update, context {shares[side]:.3f} of what is "
            "computed"
        )
    print(f"carried is {shown(against)} times as fast as full", flush=True)
    bias = [row for lag in options.lags for row in bias_of(lag, answers, others)]
    for row in bias:
        print(
            f"lag {row['lag']:.0f}, window at {row['start']:.0f}: frozen cosine "
            f"{row['frozen_cosine']:.4f}, norm {row['frozen_norm']:.3f}; carried "
            f"{row['carried_cosine']:.4f}, {row['carried_norm']:.3f}"
        )
    return {
        **against,
        "repeats": options.repeats,
        "seconds_an_update": medians,
        "context_share": shares,
        "bytes_per_token": turns["carried"][0]["bytes_per_token"],
        "bias": bias,
        "tokens": options.tokens,
        "window": options.window,
        "trajectories": options.trajectories,
        "threads": options.threads,
    }


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
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
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    return conclude("carried", options, partial(measure, options))
