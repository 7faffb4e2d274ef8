"""The learner's update against alternatives, in loss tokens per second.

Ours: DeepSpeed, packing, metrics and diagnostics, everything but sockets and storage. All have the
same model, precision and batches, one thread, and take turns. `--against` selects one:

- loop      `PaddedLoop`, a plain loop over padded batches. `ratio`: its seconds over ours (target:
            at least 0.9). `useful_share`: tokens that go through the layers and are no padding
            (target 0.95)
- prompts   without `learner.share_prompts`, for groups of eight responses. By length of the prompt,
            `ratio`: seconds without over those with; `tokens`: the share of tokens that still go
            through the models
- contexts  `learner.context` full and frozen, for unfinished answers of 2,048 tokens that are
            trained window by window. `ratio`: seconds of an update with `full` over those with
            `carried`; the share of context in what is computed; bytes carried for a token
"""

import argparse
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from benchmarks.kit.command_line import add_rows_option, command_line
from benchmarks.kit.pairs import conclude, in_turns, ratios, spread, spread_text, time_call
from benchmarks.kit.synthetic_runs import MODEL
from headrace.config.sections.algorithm import AlgorithmConfig
from headrace.config.sections.learner import LearnerConfig, OptimizerConfig
from headrace.config.sections.model import ModelConfig
from headrace.host.hardware import free_port
from headrace.protocol.fields import Metric
from headrace.protocol.messages.batches import BatchSequence, PolicyWindow, Shard, ValueTrajectory
from headrace.protocol.messages.control import Batch
from headrace.protocol.token_spans import Float32, Int32, Reward, Span
from learner.algorithms.registry import build_algorithm
from learner.batching.shards import merge_shards
from learner.device import RankContext
from learner.models.deepspeed_engine import DeepSpeedEngine, join_ranks
from learner.models.forward import PolicyNetwork, ValueNetwork
from learner.models.loading import load_critic, load_policy
from learner.updates.update import Updater

CPU = torch.device("cpu")
Rows = list[dict[str, Any]]
BUDGET = 4096
POLICY_LR, VALUE_LR = 1e-4, 5e-4
# Response lengths after training: p50 31, p90 87, p99 239, mean about 45.
QUANTILES = ((0.0, 4), (0.25, 20), (0.5, 31), (0.75, 52), (0.9, 87), (0.99, 239), (1.0, 240))
VOCABULARY = 64
PROMPTS, MEMBERS = (15, 60, 250), 8
"""Tokens of prompts that responses share, and the number of responses per prompt."""
CONTEXTS, LENGTH, OPENING = ("full", "frozen", "carried"), 2048, 12
"""Tokens of an answer that is trained window by window, and of its prompt."""


@dataclass(frozen=True)
class SyntheticAnswer:
    """A response up to its window's end; the window begins at `start`.

    Its number, its group's, token ids of which the prompt has `opening`, the window's logprobs.
    `score`: None while unfinished."""

    number: int
    group: int
    ids: Int32
    opening: int
    start: int
    logprobs: Float32
    score: float | None = None


def shard_of(answers: Iterable[SyntheticAnswer]) -> Shard:
    """Build a shard of one window of each answer, and the whole of the finished ones."""
    shard = Shard(sequences=[], windows=[], values=[])
    for place, answer in enumerate(answers):
        length, score = answer.ids.size - answer.opening, answer.score or 0.0
        rewards = [] if answer.score is None else [Reward(score, length - 1)]
        shared: dict[str, Any] = {"trajectory_id": answer.number, "sequence": place}
        shared |= {"length": length, "rewards": rewards}
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
                start=answer.start,
                end=length,
                logprobs=answer.logprobs,
                spans=[Span(0, answer.start, length)],
                loss_weights=np.ones(length - answer.start, np.float32),
                finished=answer.score is not None,
                correct=score > 0,
                **shared,
            )
        )
        if rewards:
            shard.values.append(ValueTrajectory(logprobs=np.zeros(0, np.float32), **shared))
    return shard


def demo_lengths(count: int, rng: np.random.Generator) -> list[int]:
    """Draw response lengths from the demonstration's distribution."""
    shares, lengths = zip(*QUANTILES, strict=True)
    drawn = np.interp(rng.random(count), shares, np.log(lengths))
    return [round(float(x)) for x in np.exp(drawn)]


def demo_shard(
    *, trajectories: int, window: int, seed: int, prompt: int | None = None, members: int = 1
) -> Shard:
    """Draw an update's shard: each response's last window; a tenth is unfinished.

    `prompt`: its tokens (None: 7 to 17); `members`: responses to each."""
    rng = np.random.default_rng(seed)
    answers: list[SyntheticAnswer] = []
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
            SyntheticAnswer(
                i, i // members, ids, opening.size, start, logprobs, score if finished else None
            )
        )
    return shard_of(answers)


def batch_of(update: int, *, version: int = 0) -> Batch:
    """Return the header of an update's only part; `version`: of the weights before it."""
    return Batch(
        batch_id=update, update=update, lineage=0, version=version, publish_as=version + 1,
        parts=[1], value_epochs=1, checkpoint=False,
    )  # fmt: skip


class BenchLearner:
    """Our update with the demonstration's settings, as the only rank."""

    def __init__(
        self,
        *,
        budget: int = BUDGET,
        window: int = 240,
        shares_openings: bool = False,
        critic_spread: float = 0.0,
        **settings: Any,
    ) -> None:
        """`critic_spread`: of the critic's head; `settings`: of the table `learner`."""
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
        model = load_policy(loaded, dtype=torch.float32, device=CPU)
        self.network = PolicyNetwork(model, autocast=torch.bfloat16)
        self.updater = Updater(
            build_algorithm(algorithm, window=window),
            DeepSpeedEngine(self.network, policy, config),
            DeepSpeedEngine(ValueNetwork(critic, autocast=torch.bfloat16), value, config),
            config,
            RankContext(device=CPU, budget=budget, shares_openings=shares_openings),
        )
        self.updates = 0
        self.metrics: dict[str, Metric] = {}

    def run(self, part: Shard) -> dict[str, Metric]:
        """Run one update on its only part; return its metrics."""
        self.updates += 1
        self.metrics = self.updater.run(batch_of(self.updates), merge_shards([part])).metrics
        return self.metrics


class PaddedLoop:
    """One update of T-PPO as a short script would write it, over length-bucketed padded batches.

    Values without gradient, GAE by the backward recursion on padded rows, whitening, clipped
    surrogate, squared error to the Monte-Carlo return; torch's AdamW, bf16 autocast, transformers'
    own attention; no DeepSpeed and no packing. Rows are padded on the right, so that the causal
    mask alone keeps padding out and attention needs no other (which makes it faster)."""

    def __init__(self, model: Path, *, budget: int, lr: tuple[float, float]) -> None:
        """`budget`: maximum tokens of a batch, padding included."""
        self._budget = budget
        loaded: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "sdpa"}
        self._policy = AutoModelForCausalLM.from_pretrained(model, **loaded)
        self._critic = AutoModelForTokenClassification.from_pretrained(
            model, num_labels=1, **loaded
        )
        torch.nn.init.zeros_(self._critic.score.weight)
        self._optimizers = {
            m: torch.optim.AdamW(
                m.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
            )
            for m, rate in zip((self._policy, self._critic), lr, strict=True)
        }
        self.computed = self.useful = 0

    def run(self, shard: Shard) -> None:
        """Run one update."""

        def row(item: PolicyWindow | ValueTrajectory, start: int) -> dict[str, Any]:
            sequence = shard.sequences[item.sequence]
            ids = torch.from_numpy(sequence.token_ids.astype("int64"))
            earned = sum(reward.value for reward in item.rewards)
            return {"ids": ids, "from": sequence.opening + start, "reward": earned}

        windows = [
            {**row(w, w.start), "finished": w.finished, "old": torch.from_numpy(w.logprobs.copy())}
            for w in shard.windows
        ]
        self._advantages(windows)
        self._step(self._critic, self._value_loss, [row(v, 0) for v in shard.values])
        self._step(self._policy, self._policy_loss, windows)

    def _buckets(self, rows: Rows) -> list[Rows]:
        buckets: list[Rows] = [[]]
        for row in sorted(rows, key=lambda r: -r["ids"].numel()):
            longest = buckets[-1][0]["ids"].numel() if buckets[-1] else 0
            if (len(buckets[-1]) + 1) * longest > self._budget:
                buckets.append([])
            buckets[-1].append(row)
        return [bucket for bucket in buckets if bucket]

    def _padded(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Token ids and the mask of tokens of interest, both [n, L]."""
        ids = pad_sequence([row["ids"] for row in rows], batch_first=True)
        begin, end = (
            torch.tensor(each).unsqueeze(1)
            for each in ([row["from"] for row in rows], [row["ids"].numel() for row in rows])
        )
        places = torch.arange(ids.shape[1])
        self.useful += int(end.sum())
        self.computed += ids.numel()
        return ids, (begin <= places) & (places < end)

    def _values(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """[n, L] value before each token, and the mask of tokens of interest."""
        ids, wanted = self._padded(rows)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            values = self._critic(ids).logits.float().squeeze(-1)
        return torch.nn.functional.pad(values[:, :-1], (1, 0)), wanted

    @torch.no_grad()
    def _advantages(self, windows: Rows) -> None:
        for rows in self._buckets(windows):
            values, wanted = self._values(rows)
            for i, row in enumerate(rows):
                row["values"] = values[i][wanted[i]]
        for row in windows:
            v = row["values"].tolist()
            following = 0.0 if row["finished"] else v[-1]
            total, result = 0.0, [0.0] * len(v)
            for t in reversed(range(len(v))):
                reward = row["reward"] if t == len(v) - 1 else 0.0
                total = reward + following - v[t] + 0.95 * total
                result[t], following = total, v[t]
            row["advantages"] = torch.tensor(result)
        everything = torch.cat([row["advantages"] for row in windows])
        mean, spread = everything.mean(), everything.std() + 1e-8
        for row in windows:
            row["advantages"] = ((row["advantages"] - mean) / spread).clamp(-10, 10)

    def _step(self, model: Any, loss: Callable[[Rows], Tensor], rows: Rows) -> None:
        tokens = sum(row["ids"].numel() - row["from"] for row in rows)
        for bucket in self._buckets(rows):
            (loss(bucket) / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        self._optimizers[model].step()
        self._optimizers[model].zero_grad()

    def _value_loss(self, rows: Rows) -> Tensor:
        values, wanted = self._values(rows)
        targets = torch.tensor([row["reward"] for row in rows]).unsqueeze(1).expand_as(values)
        return 0.5 * (values - targets)[wanted].square().sum()

    def _policy_loss(self, rows: Rows) -> Tensor:
        ids, wanted = self._padded(rows)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self._policy(ids).logits
        chosen = logits[:, :-1][wanted[:, 1:]].float().log_softmax(-1)
        new = chosen.gather(1, ids[wanted].unsqueeze(1)).squeeze(1)
        old = torch.cat([row["old"] for row in rows])
        advantages = torch.cat([row["advantages"] for row in rows])
        ratio = (new - old).exp()
        return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.28)).sum()


def loss_tokens(shard: Shard) -> int:
    """Count the tokens in the losses of policy and value model."""
    return sum(w.end - w.start for w in shard.windows) + sum(v.length for v in shard.values)


def unfinished(count: int, window: int, start: int) -> Shard:
    """Draw unfinished answers whose newest window begins at `start`."""
    rng, end = np.random.default_rng(0), OPENING + start + window
    ids = rng.integers(3, VOCABULARY, (count, OPENING + LENGTH)).astype(np.int32)
    logprobs = np.full(window, -2.0, np.float32)
    return shard_of(
        SyntheticAnswer(i, i, ids[i, :end], OPENING, start, logprobs) for i in range(count)
    )


def against_loop(options: argparse.Namespace) -> dict[str, Any]:
    ours = BenchLearner(budget=options.budget)
    plain = PaddedLoop(MODEL, budget=options.budget, lr=(POLICY_LR, VALUE_LR))
    batch = partial(demo_shard, trajectories=options.trajectories, window=options.window)
    turns = in_turns(
        {
            "ours": lambda turn: time_call(partial(ours.run, batch(seed=turn))),
            "plain": lambda turn: time_call(partial(plain.run, batch(seed=turn))),
        },
        options.repeats,
    )
    tokens = [loss_tokens(batch(seed=turn)) for turn in range(1, options.repeats + 1)]
    speeds = {side: statistics.median(ratios(tokens, found)) for side, found in turns.items()}
    against = spread(ratios(turns["plain"], turns["ours"]))
    useful = ours.metrics["perf/useful_share"]
    padded = plain.useful / plain.computed
    print(
        f"ours {speeds['ours']:.0f}, plain loop {speeds['plain']:.0f} loss tokens a second: ratio "
        f"{spread_text(against)}, target 0.9\nnot padding: {useful:.3f} of the tokens (padded "
        f"batches: {padded:.3f})"
    )
    return {
        **against,
        "tokens_per_s": speeds["ours"],
        "reference_tokens_per_s": speeds["plain"],
        "useful_share": useful,
        "reference_useful_share": padded,
    }


def against_prompts(options: argparse.Namespace) -> dict[str, Any]:
    """Compare prompts computed once with once per response, by their length."""
    learners = {
        side: BenchLearner(budget=options.budget, shares_openings=side == "shared")
        for side in ("apart", "shared")
    }

    def timed(side: str, prompt: int, turn: int) -> tuple[float, float]:
        """Return seconds of an update, and the tokens that went through the models."""
        part = demo_shard(
            trajectories=options.trajectories, window=options.window, seed=turn, prompt=prompt,
            members=MEMBERS,
        )  # fmt: skip
        seconds, found = time_call(partial(learners[side].run, part)), learners[side].metrics
        return seconds, float(found["perf/tokens_per_s"]) * float(found["timing_s/update"])  # type: ignore[arg-type]

    prompts: dict[str, Any] = {}
    for prompt in PROMPTS:
        sides = {side: partial(timed, side, prompt) for side in learners}
        turns = in_turns(sides, options.repeats)
        (apart, without), (shared, still) = (zip(*turns[side], strict=True) for side in learners)
        row = {**spread(ratios(apart, shared)), "tokens": statistics.median(ratios(still, without))}
        prompts[str(prompt)] = row
        print(
            f"prompts of {prompt:>4} tokens: {spread_text(row)} times as fast, "
            f"{row['tokens']:.2f} of the tokens"
        )
    return {"prompts": prompts}


def against_contexts(options: argparse.Namespace) -> dict[str, Any]:
    """Compare contexts on whole answers; a non-zero critic's head gives advantages."""
    window, kept = options.window, options.trajectories * (OPENING + LENGTH - 1)
    parts = [unfinished(options.trajectories, window, at) for at in range(0, LENGTH, window)]

    def timed(context: str, turn: int) -> tuple[float, float, float]:
        """Return seconds of an update, the share of context, carried bytes per token."""
        ours, shares = BenchLearner(context=context, window=window, critic_spread=0.3), list[Any]()
        seconds = time_call(
            lambda: shares.extend(ours.run(part)["perf/context_share"] for part in parts)
        )
        carried = sum(store.num_bytes for store in ours.updater.carried.values())
        return seconds / len(parts), statistics.mean(shares), carried / kept

    sides = {context: partial(timed, context) for context in CONTEXTS}
    turns = in_turns(sides, options.repeats, warm_up=False)
    seconds = {side: [each[0] for each in found] for side, found in turns.items()}
    against = spread(ratios(seconds["full"], seconds["carried"]))
    medians = {side: statistics.median(found) for side, found in seconds.items()}
    shares = {side: found[0][1] for side, found in turns.items()}
    for side in CONTEXTS:
        print(
            f"{side:8} {medians[side]:.3f} s an update, context {shares[side]:.3f} of what is "
            "computed"
        )
    print(f"carried is {spread_text(against)} times as fast as full", flush=True)
    return {
        **against,
        "seconds_an_update": medians,
        "context_share": shares,
        "bytes_per_token": turns["carried"][0][2],
    }


AGAINST: dict[str, tuple[Callable[[argparse.Namespace], dict[str, Any]], int, int]] = {
    "loop": (against_loop, 256, 240),
    "prompts": (against_prompts, 128, 240),
    "contexts": (against_contexts, 8, 128),
}
"""The comparison, its trajectories per update and tokens per window."""


def measure(options: argparse.Namespace) -> dict[str, Any]:
    measured, trajectories, window = AGAINST[options.against]
    options.trajectories = options.trajectories or trajectories
    options.window = options.window or window
    settings = ("against", "repeats", "trajectories", "window", "budget", "threads")
    return {**measured(options), **{name: getattr(options, name) for name in settings}}


def main(argv: Sequence[str]) -> int:
    parser = command_line("learner", __doc__)
    parser.add_argument("--against", choices=AGAINST, default="loop", help="the other way")
    parser.add_argument("--repeats", type=int, default=7, help="turns of all sides")
    parser.add_argument("--trajectories", type=int, help="of an update (256, 128 or 8)")
    parser.add_argument("--window", type=int, help="tokens of a window (240, 240 or 128)")
    parser.add_argument("--budget", type=int, default=BUDGET, help="tokens of a micro-batch")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    add_rows_option(parser)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    return conclude("learner", options, partial(measure, options))
