"""A task in which the first token decides: a strategy letter, then a digit.

In: a seed. Out: a model folder. A prompt is a letter and a digit a. The answer begins with a
strategy: B goes on with a, which is right; A goes on with 9 - a, C and D with 0, which are wrong.
The model first learns all four strategies alike, then to answer with A nearly always: it can do B
as well as ever, and a regular sampler hardly ever lets it.
"""

from pathlib import Path
from random import Random

from transformers import PreTrainedTokenizerFast

from benchmarks.digit_task import DIGITS, LETTERS, teach
from tasks.character_tokenizer import build_tokenizer

STRATEGIES = "ABCD"
RIGHT, FAVOURITE = "B", "A"
EVEN_STEPS, ONE_SIDED_STEPS = 170, 60
"""Supervised steps on all strategies alike, then on the favourite."""
FAVOURITE_SHARE = 0.99


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
    """Train the model and save it."""
    rng = Random(f"strategies/{seed}")

    def shown(prompt: str, step: int) -> str:
        strategy = rng.choice(STRATEGIES)
        if step >= EVEN_STEPS and rng.random() < FAVOURITE_SHARE:
            strategy = FAVOURITE
        return answer(prompt, strategy)

    steps = EVEN_STEPS + ONE_SIDED_STEPS
    return teach(folder, tokenizer(), shown, steps=steps, seed=seed, rng=rng)
