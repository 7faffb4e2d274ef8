"""What the tasks of the studies in miniature share: prompts of a letter and a digit, a small model.

In: what an answer looks like to the model that is taught. Out: prompts, and a model folder.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random

import torch
from transformers import PreTrainedTokenizerFast

from tasks.cold_start import IGNORED, LEARNING_RATE, Example, build_model, weighted_loss

LETTERS, DIGITS = "uvwxyz", "123456789"
BATCH = 64


def prompts(count: int, rng: Random) -> list[str]:
    """Prompts of two tokens."""
    return [rng.choice(LETTERS) + rng.choice(DIGITS) for _ in range(count)]


def teach(
    folder: Path,
    letters: PreTrainedTokenizerFast,
    shown: Callable[[str, int], str],
    *,
    steps: int,
    seed: int,
    rng: Random,
    asked: Callable[[int, Random], list[str]] = prompts,
) -> Path:
    """Train a model on the answer to a prompt that `shown` gives for a step, and save it; a few
    seconds on one thread. `seed` is that of its first weights, `rng` draws the prompts of
    `asked`."""
    model = build_model(letters, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    for step in range(steps):
        group = []
        for prompt in asked(BATCH, rng):
            ids = letters.encode(prompt + shown(prompt, step))
            group.append(Example([*ids, letters.eos_token_id], len(prompt)))
        loss, weights = weighted_loss(model, group, equals=IGNORED, weight=1.0)
        optimizer.zero_grad(set_to_none=True)
        (loss / weights).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.save_pretrained(folder)
    letters.save_pretrained(folder)
    return folder
