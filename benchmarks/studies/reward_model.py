"""A reward model trained on end tokens alone: the start of VC-PPO's failure.

In: the folder of a policy on the demonstration's task. Out: a folder that `model.critic_path`
takes: the policy's backbone and a scalar head, trained as outcome reward models are. The policy
answers training prompts, and the score at the end token is trained to the log-odds of a right
answer. No other token's score is ever trained. Promises: a few dozen seconds on one core; no
held-out prompt; the same seed gives the same weights on one machine.

As a value model it scores early tokens low, by no design of ours: an unfinished answer looks like
most answers, which are wrong, and log-odds of a wrong one are below 0. Towards the end of a
written-out answer the score rises. Trained on squared errors instead, which keep scores between 0
and 1, it predicts about a third at the first token, more than the mean return, and is no start for
the failure.
"""

import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from tasks.make_models.cold_start import TrainingExample, buckets
from tasks.make_models.policy_check import sample
from tasks.procedural.base import PromptSizes, prompt_row
from tasks.procedural.chain_sums import CHAIN_SUMS
from tasks.rows import TaskRow

MIN_TERMS, MAX_TERMS, MAX_TOKENS = 6, 32, 240
"""Those of the demonstration, `recipes/algorithms/ppo.toml`."""
ANSWERS = 4096
STEPS, BATCH, LEARNING_RATE = 150, 64, 2e-4
"""Two passes over the answers and a little more."""


@dataclass(frozen=True, slots=True)
class LabelledAnswer(TrainingExample):
    """A prompt with its answer, whose last token is the end token; is it right."""

    right: bool


def write_reward_model(policy: Path, folder: Path, *, seed: int = 0) -> None:
    """Create the folder, unless it exists."""
    if (folder / "config.json").exists():
        return
    tokenizer = AutoTokenizer.from_pretrained(policy)
    judged = labelled_answers(policy, tokenizer, seed=seed, count=ANSWERS)
    torch.manual_seed(seed)
    model: Any = AutoModelForTokenClassification.from_pretrained(
        policy, num_labels=1, dtype=torch.float32
    )
    train(model, judged, seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def labelled_answers(
    policy: Path, tokenizer: PreTrainedTokenizerFast, *, seed: int, count: int
) -> list[LabelledAnswer]:
    """Sample the policy's answers to `count` training prompts, without unended ones."""
    model: Any = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    sizes = PromptSizes(MIN_TERMS, MAX_TERMS, CHAIN_SUMS.tail_exponent)
    by_length: dict[int, list[TaskRow]] = defaultdict(list)
    for i in range(count):
        row = prompt_row(CHAIN_SUMS, i, seed, sizes=sizes)
        by_length[len(row.prompt)].append(row)
    generator = torch.Generator().manual_seed(seed)
    judged: list[LabelledAnswer] = []
    for rows in by_length.values():
        prompts = [tokenizer.encode(str(row.prompt)) for row in rows]
        answers = sample(model, torch.tensor(prompts), max_tokens=MAX_TOKENS, generator=generator)
        for row, prompt, tokens in zip(rows, prompts, answers, strict=True):
            if tokens[-1] == tokenizer.eos_token_id:
                text = str(tokenizer.decode(tokens, skip_special_tokens=True))
                right = CHAIN_SUMS.is_right(row, text)
                judged.append(LabelledAnswer(prompt + tokens, len(prompt), right))
    return judged


def train(model: Any, judged: list[LabelledAnswer], seed: int) -> None:
    """Fit the scores at the end tokens, and nothing else, to right and wrong."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95))
    rng = Random(f"reward-model/{seed}")
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        for group in buckets(rng.sample(judged, BATCH)):
            right = torch.tensor([float(one.right) for one in group])
            scores = end_scores(model, group)
            loss = binary_cross_entropy_with_logits(scores, right, reduction="sum")
            (loss / BATCH).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def end_scores(model: Any, group: list[LabelledAnswer]) -> Tensor:
    """[n] the scores at the end tokens; padding comes after and is not seen."""
    each = [torch.tensor(one.ids) for one in group]
    ids = torch.nn.utils.rnn.pad_sequence(each, batch_first=True)
    scores = model(input_ids=ids).logits[..., 0]
    return scores[range(len(group)), [len(one.ids) - 1 for one in group]]


if __name__ == "__main__":
    write_reward_model(*map(Path, sys.argv[1:]))
