"""A task in which the first token decides: a strategy letter, then a digit.

In: a seed. Out: a model folder. A prompt is a letter and a digit a. The answer begins with a
strategy: B goes on with a, which is right; A goes on with 9 - a, C and D with 0, which are wrong.
The model first learns all four strategies alike, then to answer with A nearly always: it can do B
as well as ever, and a regular sampler hardly ever lets it.
"""

from pathlib import Path
from random import Random

import torch
from transformers import PreTrainedTokenizerFast

from tasks.character_tokenizer import build_tokenizer
from tasks.cold_start import IGNORED, LEARNING_RATE, Example, build_model, weighted_loss

LETTERS, DIGITS, STRATEGIES = "uvwxyz", "123456789", "ABCD"
RIGHT, FAVOURITE = "B", "A"
BATCH = 64
EVEN_STEPS, ONE_SIDED_STEPS = 170, 60
"""Supervised steps on all strategies alike, then on the favourite."""
FAVOURITE_SHARE = 0.99


def prompts(count: int, rng: Random) -> list[str]:
    """Prompts of two tokens."""
    return [rng.choice(LETTERS) + rng.choice(DIGITS) for _ in range(count)]


def answer(prompt: str, strategy: str) -> str:
    """What a strategy answers."""
    digit = {"B": prompt[1], "A": str(9 - int(prompt[1]))}.get(strategy, "0")
    return strategy + digit


def is_right(prompt: str, response: str) -> bool:
    """Whether the digit is that of the prompt."""
    return response[1:2] == prompt[1]


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a character."""
    return build_tokenizer(LETTERS + "0" + DIGITS + STRATEGIES)


def make_model(folder: Path, seed: int) -> Path:
    """Train the model and save it; a few seconds on one thread."""
    letters, rng = tokenizer(), Random(f"strategies/{seed}")
    model = build_model(letters, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    for step in range(EVEN_STEPS + ONE_SIDED_STEPS):
        group = []
        for prompt in prompts(BATCH, rng):
            strategy = rng.choice(STRATEGIES)
            if step >= EVEN_STEPS and rng.random() < FAVOURITE_SHARE:
                strategy = FAVOURITE
            ids = letters.encode(prompt + answer(prompt, strategy))
            group.append(Example([*ids, letters.eos_token_id], len(prompt)))
        loss, weights = weighted_loss(model, group, equals=IGNORED, weight=1.0)
        optimizer.zero_grad(set_to_none=True)
        (loss / weights).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.save_pretrained(folder)
    letters.save_pretrained(folder)
    return folder
