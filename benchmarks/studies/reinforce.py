"""REINFORCE in miniature: a small policy trained on a task, by what is paid for its answers.

In: a task, a model that is small enough to compute every answer anew for each token, a seed, and
what makes advantages of answers. Out: sampled answers; a model that has taken a step.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.studies import small_tasks
from benchmarks.studies.small_tasks import Task

UPDATES, PROMPTS_AN_UPDATE, SAMPLES, HELD_OUT = 60, 32, 8, 300
POLICY_LR = 3e-4


def digest(*more: object) -> str:
    """Changes with the settings by which a policy is taught and trained, and with `more`."""
    said = (small_tasks.STEPS, small_tasks.TERMS, small_tasks.ROOM, small_tasks.WORKED_SHARE,
            small_tasks.FILLERS, UPDATES, PROMPTS_AN_UPDATE, SAMPLES, HELD_OUT, POLICY_LR,
            *more)  # fmt: skip
    return hashlib.sha256(repr(said).encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class Answers:
    """Sampled answers: ids [n, prompt + room], of the room's tokens the mask of those that were
    sampled [n, room] and their logprobs, prompts and texts."""

    ids: Tensor
    mask: Tensor
    logprobs: Tensor
    prompts: list[str]
    texts: list[str]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each prompt with its answer."""
        return list(zip(self.prompts, self.texts, strict=True))


def sample(task: Task, model: Any, prompts: Sequence[str], samples: int, seed: int) -> Answers:
    """`samples` answers to each prompt, those of one prompt side by side."""
    letters, generator = task.tokenizer(), torch.Generator().manual_seed(seed)
    asked = [prompt for prompt in prompts for _ in range(samples)]
    ids = torch.tensor([letters.encode(prompt) for prompt in asked])
    opening, running = ids.shape[1], torch.ones(len(asked), dtype=torch.bool)
    mask, logprobs = [], []
    with torch.no_grad():
        for _ in range(task.room):
            log_p = model(ids).logits[:, -1].float().log_softmax(-1)
            token = torch.multinomial(log_p.exp(), 1, generator=generator)[:, 0]
            token = torch.where(running, token, letters.eos_token_id)
            mask.append(running)
            logprobs.append(log_p.gather(-1, token[:, None])[:, 0] * running)
            ids = torch.cat([ids, token[:, None]], dim=1)
            running = running & (token != letters.eos_token_id)
    texts = letters.batch_decode(ids[:, opening:], skip_special_tokens=True)
    texts = [text.replace(" ", "") for text in texts]
    return Answers(ids, torch.stack(mask, 1), torch.stack(logprobs, 1), asked, texts)


def truths(task: Task, answers: Answers) -> list[float]:
    """1 for each right answer."""
    return [task.truth(*pair) for pair in answers.pairs]


def reinforce(
    model: Any, optimizer: torch.optim.Optimizer, answers: Answers, advantages: Tensor
) -> None:
    """One update by log probability times advantage, [n] for n answers."""
    opening = answers.ids.shape[1] - answers.mask.shape[1]
    logits = model(answers.ids).logits[:, opening - 1 : -1].float()
    new = logits.log_softmax(-1).gather(-1, answers.ids[:, opening:, None])[..., 0]
    loss = -(new * advantages[:, None] * answers.mask).sum() / answers.mask.sum()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def trained(
    task: Task, folder: Path, seed: int, advantages: Callable[[Answers], Tensor]
) -> tuple[Answers, Answers]:
    """Train the policy of a folder; its answers to held-out prompts before and after. `advantages`
    gets the answers of each update, those of one prompt side by side, and makes [n] of them."""
    model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=POLICY_LR, weight_decay=0.0)
    held_out = task.prompts(HELD_OUT, Random(f"held out/{seed}"))
    rng = Random(f"training/{seed}")
    before = sample(task, model, held_out, SAMPLES, seed)
    for _ in range(UPDATES):
        asked = task.prompts(PROMPTS_AN_UPDATE, rng)
        answers = sample(task, model, asked, SAMPLES, rng.getrandbits(32))
        reinforce(model, optimizer, answers, advantages(answers))
    return before, sample(task, model, held_out, SAMPLES, seed)
