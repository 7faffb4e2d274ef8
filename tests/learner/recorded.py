"""Tiny models and recorded batches: what the learner's tests train on."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec.structs import replace
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from headrace.config.sections.run import RunConfig
from headrace.protocol.fields import Metric
from headrace.protocol.messages.batches import (
    BatchSequence,
    GroupScores,
    PolicyWindow,
    Shard,
    ValueTrajectory,
)
from headrace.protocol.messages.control import Batch, BatchPart
from headrace.protocol.token_spans import Coefficient, Float32, Mark, Reward, Span
from learner.batching.trainable_tokens import runs_between

VOCABULARY = 32


def save_tiny_model(
    folder: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32, **shape: int
) -> Path:
    """A Llama of two layers with grouped heads, tied embeddings and a tokenizer. `shape` changes
    its config."""
    torch.manual_seed(seed)
    tiny: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config = LlamaConfig(**(tiny | shape))
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    words = {f"t{i}": i for i in range(VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="t0"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="t2", pad_token="t0"
    ).save_pretrained(folder)
    return folder


def record(
    *,
    seed: int,
    trajectories: int = 12,
    window: int = 16,
    longest: int = 40,
    version: int = 1,
    unfinished: float = 0.3,
    turns: bool = False,
    hot: bool = False,
) -> Shard:
    """Made-up answers: their windows, several of one trajectory among them, and the ended ones.

    With `turns` the policy and tools take turns, rewards are paid on the way, tokens have weights
    between 0 and 2 and some have a KL coefficient of their own. With `hot` the first sampled token
    of each answer was drawn by FIRE sampling.
    """
    rng = np.random.default_rng(seed)
    sequences: list[BatchSequence] = []
    windows: list[PolicyWindow] = []
    values: list[ValueTrajectory] = []
    for trajectory in range(trajectories):
        length, opening = int(rng.integers(2, longest + 1)), int(rng.integers(2, 7))
        finished = bool(rng.random() >= unfinished)
        if not finished:
            length = -(-length // window) * window
        ids = rng.integers(3, VOCABULARY, opening + length).astype(np.int32)
        score = float(rng.random() < 0.5)
        sampled = _turns(rng, length) if turns else [(0, length)]
        own = np.zeros(length, np.bool_)
        for start, end in sampled:
            own[start:end] = True
        rewards = [Reward(score, length - 1)] if finished else []
        coefficients: list[Coefficient] = []
        if turns:
            rewards = _points(rng, length) + rewards
            coefficients = [Coefficient("kl", 0.3, 1, 5), Coefficient("other", 9.0, 0, length)]
        marks = [Mark("hot", sampled[0][0], sampled[0][0] + 1)] if hot and sampled else []
        logprobs = np.where(own, rng.normal(-3.4, 0.3, length), 0.0).astype(np.float32)
        for start in range(0, length, window):
            end = min(start + window, length)
            last = end == length and finished
            here = own[start:end]
            weights = (rng.random(end - start) < 0.9) * here
            if turns:
                weights = weights * rng.choice([0.5, 1.0, 2.0], end - start)
            windows.append(
                PolicyWindow(
                    window_id=len(windows),
                    trajectory_id=trajectory,
                    sequence=trajectory,
                    start=start,
                    end=end,
                    length=int(own[:end].sum()),
                    logprobs=logprobs[start:end],
                    loss_weights=weights.astype(np.float32),
                    spans=[Span(version, a, b) for a, b in runs_between(sampled, start, end)],
                    rewards=[r for r in rewards if start <= r.position < end],
                    coefficients=coefficients,
                    marks=[mark for mark in marks if start <= mark.start < end],
                    finished=last,
                    correct=last and score > 0,
                )
            )
        sequences.append(
            BatchSequence(
                trajectory_id=trajectory,
                group_id=trajectory,
                token_ids=ids,
                opening=opening,
                sampled=sampled,
            )
        )
        if finished:
            values.append(
                ValueTrajectory(
                    trajectory_id=trajectory,
                    sequence=trajectory,
                    length=int(own.sum()),
                    rewards=rewards,
                    logprobs=np.zeros(0, np.float32),
                    coefficients=coefficients,
                )
            )
    return Shard(sequences=sequences, windows=windows, values=values)


def _turns(rng: np.random.Generator, length: int) -> list[tuple[int, int]]:
    """Runs of the policy between runs that somebody else wrote; the first may be anybody's."""
    runs, position = [], int(rng.integers(0, min(3, length)))
    while position < length:
        end = min(position + int(rng.integers(1, 9)), length)
        runs.append((position, end))
        position = end + int(rng.integers(1, 6))
    return runs


def _points(rng: np.random.Generator, length: int) -> list[Reward]:
    """Rewards on the way, several for one token and some on inserted tokens among them."""
    positions = sorted(rng.integers(0, length, 4).tolist())
    return [Reward(float(rng.normal()), position) for position in positions]


def with_value_logprobs(shard: Shard) -> Shard:
    """The sampler's logprobs with the ended trajectories too, as a KL penalty needs them."""
    whole: dict[int, list[Float32]] = {}
    for window in shard.windows:
        whole.setdefault(window.trajectory_id, []).append(window.logprobs)
    values = [replace(v, logprobs=np.concatenate(whole[v.trajectory_id])) for v in shard.values]
    return replace(shard, values=values)


def in_group_of(shard: Shard, group: int, trajectories: Sequence[int], **figures: Any) -> Shard:
    """Some trajectories are the members of one group; `figures` are its scores and lengths."""
    scores = GroupScores(group_id=group, trajectory_ids=list(trajectories), **figures)
    sequences = [
        replace(s, group_id=group) if s.trajectory_id in trajectories else s
        for s in shard.sequences
    ]
    return replace(shard, sequences=sequences, groups=[*shard.groups, scores])


def alone(shard: Shard, score: float = 1.0) -> Shard:
    """Each trajectory is a group of its own."""
    for sequence in shard.sequences:
        shard = in_group_of(
            shard, 100 + sequence.trajectory_id, [sequence.trajectory_id],
            scores=np.full(1, score, np.float32), lengths=np.ones(1, np.int32),
        )  # fmt: skip
    return shard


def cut(shard: Shard, parts: int) -> list[Shard]:
    """A shard in parts, dealt in turn, each with the sequences of its own segments: one for each
    segment, as long as that segment needs."""
    pieces: list[Shard] = []
    for part in range(parts):
        sequences: list[BatchSequence] = []
        windows = []
        for window in shard.windows[part::parts]:
            whole = shard.sequences[window.sequence]
            windows.append(replace(window, sequence=len(sequences)))
            sequences.append(up_to(whole, window.end))
        values = []
        for value in shard.values[part::parts]:
            values.append(replace(value, sequence=len(sequences)))
            sequences.append(shard.sequences[value.sequence])
        pieces.append(
            Shard(sequences=sequences, windows=windows, values=values, groups=shard.groups)
        )
    return pieces


def up_to(sequence: BatchSequence, end: int) -> BatchSequence:
    """A sequence without what stands behind a position."""
    return replace(
        sequence,
        token_ids=sequence.token_ids[: sequence.opening + end],
        sampled=runs_between(sequence.sampled, 0, end),
    )


def streamed(
    shard: Shard, *, updates: int, rng: np.random.Generator, dropped: float = 0.0
) -> list[Shard]:
    """The windows of a shard over several updates, as a stream trains them: each trajectory's in
    their order, sometimes two in one update, and a finished answer for the value model with its
    last window or in the update behind it. A share of the windows before the last is `dropped`."""
    chosen: list[list[PolicyWindow]] = [[] for _ in range(updates)]
    ended: list[list[ValueTrajectory]] = [[] for _ in range(updates)]
    values = {v.trajectory_id: v for v in shard.values}
    for trajectory in sorted({w.trajectory_id for w in shard.windows}):
        own = [w for w in shard.windows if w.trajectory_id == trajectory]
        times = sorted(rng.integers(0, updates, len(own)).tolist())
        for window, time in zip(own, times, strict=True):
            if window is own[-1] or rng.random() >= dropped:
                chosen[time].append(window)
        if trajectory in values:
            last = min(updates - 1, times[-1] + int(rng.integers(0, 2)))
            ended[last].append(values[trajectory])
    return [_update(shard, *both) for both in zip(chosen, ended, strict=True)]


def _update(shard: Shard, windows: list[PolicyWindow], values: list[ValueTrajectory]) -> Shard:
    ends = {v.trajectory_id: shard.sequences[v.sequence].token_ids.size for v in values}
    for window in windows:
        ends[window.trajectory_id] = max(ends.get(window.trajectory_id, 0), window.end)
    place = {trajectory: i for i, trajectory in enumerate(ends)}
    whole = {s.trajectory_id: s for s in shard.sequences}
    return Shard(
        sequences=[up_to(whole[trajectory], end) for trajectory, end in ends.items()],
        windows=[replace(w, sequence=place[w.trajectory_id]) for w in windows],
        values=[replace(v, sequence=place[v.trajectory_id]) for v in values],
    )


class Sent(NamedTuple):
    """A batch as the coordinator sends it: its header, and the shard of each rank."""

    batch: Batch
    shards: list[Shard]

    def parts(self) -> list[BatchPart]:
        """What follows the header, the last ranks and parts first."""
        return [
            BatchPart(batch_id=self.batch.batch_id, rank=rank, index=index, shard=shard)
            for rank, whole in reversed(list(enumerate(self.shards)))
            for index, shard in reversed(list(enumerate(cut(whole, self.batch.parts[rank]))))
        ]


def batch_of(
    shard: Shard,
    *,
    update: int = 1,
    lineage: int = 0,
    version: int = 1,
    ranks: int = 1,
    parts: int = 1,
    value_epochs: int = 1,
    checkpoint: bool = False,
) -> Sent:
    """One update's batch: trajectories dealt to ranks in turn, windows and values apart."""
    shards = [
        replace(
            shard,
            windows=[w for w in shard.windows if w.trajectory_id % ranks == rank],
            values=shard.values[rank::ranks],
        )
        for rank in range(ranks)
    ]
    header = Batch(
        batch_id=1000 * lineage + update,
        update=update,
        lineage=lineage,
        version=version,
        publish_as=version + 1,
        parts=[parts] * ranks,
        value_epochs=value_epochs,
        checkpoint=checkpoint,
    )
    return Sent(header, shards)


def numbers(metric: Metric) -> float | list[float]:
    """A figure, or one for each bin with NaN for an empty one: what can be compared closely."""
    if isinstance(metric, list):
        return [math.nan if x is None else x for x in metric]
    return metric


def run_config(model: Path, *, value: Any = None, **learner: object) -> RunConfig:
    """A T-PPO run on the tiny model in float32; `value`: keys of its value model."""
    return RunConfig.model_validate(
        {
            "model": {"path": str(model)},
            "task": {
                "kind": "chain_sums",
                "max_prompt_length": 16,
                "max_response_length": 64,
            },
            "schedule": {"mode": "streaming", "window": 16},
            "algorithm": {
                "advantages": {"kind": "egae", "length_adaptive_alpha": 0.05},
                "value": value or {"value_clip_low": 0.5, "value_clip_high": 0.6},
                "penalties": {"positive_nll_coef": 0.1},
            },
            "learner": {
                "device": "cpu",
                "precision": "float32",
                "micro_batch_tokens": 128,
                "policy": {"lr": 1e-3, "warmup_steps": 2, "minibatches": 2},
                "value": {"lr": 2e-3, "minibatches": 2},
                **learner,
            },
            "transport": {"heartbeat_s": 0.2, "stall_timeout_s": 30},
        }
    )
