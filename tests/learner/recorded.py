"""Tiny models and recorded batches: what the learner's tests train on."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from headrace.config.run import RunConfig
from headrace.protocol.messages import Batch, PolicyWindow, Shard, ValueTrajectory
from headrace.protocol.streams import Span

VOCABULARY = 32


def save_tiny_model(folder: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Path:
    """A Llama of two layers with grouped heads, tied embeddings and a tokenizer."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=VOCABULARY,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
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
) -> tuple[list[PolicyWindow], list[ValueTrajectory]]:
    """Windows of made-up responses, several of one trajectory among them, and the finished ones."""
    rng = np.random.default_rng(seed)
    windows: list[PolicyWindow] = []
    values: list[ValueTrajectory] = []
    for trajectory in range(trajectories):
        length, prompt = int(rng.integers(2, longest + 1)), int(rng.integers(2, 7))
        finished = bool(rng.random() >= unfinished)
        if not finished:
            length = -(-length // window) * window
        ids = rng.integers(3, VOCABULARY, prompt + length).astype(np.int32)
        reward = float(rng.random() < 0.5)
        for start in range(0, length, window):
            end = min(start + window, length)
            last = end == length
            windows.append(
                PolicyWindow(
                    window_id=len(windows),
                    trajectory_id=trajectory,
                    group_id=trajectory,
                    prompt_length=prompt,
                    start=start,
                    end=end,
                    token_ids=ids[: prompt + end],
                    logprobs=rng.normal(-3.4, 0.3, end - start).astype(np.float32),
                    spans=[Span(version, start, end)],
                    loss_mask=(rng.random(end - start) < 0.9).astype(np.uint8),
                    finished=finished and last,
                    reward=reward if finished and last else 0.0,
                    correct=finished and last and reward > 0,
                )
            )
        if finished:
            values.append(
                ValueTrajectory(
                    trajectory_id=trajectory, prompt_length=prompt, token_ids=ids, reward=reward
                )
            )
    return windows, values


def batch_of(
    windows: Sequence[PolicyWindow],
    values: Sequence[ValueTrajectory],
    *,
    update: int = 1,
    version: int = 1,
    ranks: int = 1,
    value_epochs: int = 1,
    checkpoint: bool = False,
) -> Batch:
    """One update's batch, dealt to ranks in turn."""
    shards = [
        Shard(windows=list(windows[rank::ranks]), values=list(values[rank::ranks]))
        for rank in range(ranks)
    ]
    return Batch(
        update=update,
        version=version,
        publish_as=version + 1,
        shards=shards,
        value_epochs=value_epochs,
        checkpoint=checkpoint,
        cut='{"lineage": 0}',
    )


def run_config(model: Path, **learner: object) -> RunConfig:
    """A T-PPO run on the tiny model in float32."""
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
                "value": {"value_clip_low": 0.5, "value_clip_high": 0.6},
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
