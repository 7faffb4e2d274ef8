"""Make a policy that answers about images, badly.

Usage: `python -m tasks.make_models.image_start --out DIR`. In: a number of steps and a seed. Out:
the folder of a tiny vision-language model (see `image_model`) that was shown answers of the task
`shapes`: right boxes, counts that are mostly guesses, and captions of which half have a fault.
Steps are counted, so that a run reproduces.
"""

import argparse
import time
from pathlib import Path
from random import Random
from typing import Any

import torch
from rich.progress import track
from torch.nn import functional
from transformers.utils.logging import disable_progress_bar

from headrace.data.media import open_rgb
from tasks.make_models.image_model import FAMILIES, make
from tasks.procedural.base import EOS, draw_prompt
from tasks.procedural.shapes import BOX, COUNT, DESCRIBE, SHAPES, asking, show, teach

STEPS = 700
BATCH = 64
EXAMPLES = 4000
LEARNING_RATE = 2e-3
WARM_UP_STEPS = 20
MAX_LENGTH = 96
ASKED = asking({COUNT: 0.3, BOX: 0.4, DESCRIBE: 0.3})
IGNORED = -100


class ImageLessons:
    """Prompts with their images, and an answer to each, as the model's inputs."""

    def __init__(self, processor: Any, seed: int) -> None:
        self._processor, self._rng = processor, Random(f"image-start/{seed}")
        self._lessons = [self._lesson() for _ in range(EXAMPLES)]

    def _lesson(self) -> tuple[str, Any, str]:
        """Of a prompt that is not held out."""
        problem = draw_prompt(ASKED, self._rng, SHAPES.max_terms)
        messages = show(problem)
        text = self._processor.apply_chat_template(messages, add_generation_prompt=True)
        image = open_rgb(messages[0]["content"][0]["image"])
        return text, image, teach(problem, self._rng, "mixture") + EOS

    def batch(self) -> dict[str, torch.Tensor]:
        """Inputs with labels: answers alone have a loss."""
        chosen = self._rng.sample(self._lessons, BATCH)
        given = dict(
            self._processor(
                text=[text + answer for text, _, answer in chosen],
                images=[[image] for _, image, _ in chosen],
                padding=True, padding_side="right", return_tensors="pt",
            )
        )  # fmt: skip
        lengths = given["attention_mask"].sum(1).tolist()
        labels = torch.full_like(given["input_ids"], IGNORED)
        tokenizer = self._processor.tokenizer
        for row, (length, (_, _, answer)) in enumerate(zip(lengths, chosen, strict=True)):
            count = len(tokenizer(answer, add_special_tokens=False)["input_ids"])
            labels[row, length - count : length] = given["input_ids"][row, length - count : length]
        return given | {"labels": labels}


def train(model: Any, processor: Any, *, steps: int, seed: int) -> None:
    """Train `model` in place, with a progress bar."""
    lessons = ImageLessons(processor, seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01
    )
    for step in track(range(steps), "image start"):
        batch = lessons.batch()
        labels = batch.pop("labels")
        logits = model(**batch, use_cache=False).logits[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate = min(1.0, (step + 1) / WARM_UP_STEPS) * max(0.05, 1 - step / steps)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * rate
        optimizer.step()


def main(arguments: list[str] | None = None) -> None:
    """Make, train, save."""
    parser = argparse.ArgumentParser(prog="image_start", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--like", choices=sorted(FAMILIES), default="qwen3_vl")
    parser.add_argument("--steps", type=int, default=STEPS, help="supervised steps")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    disable_progress_bar()
    torch.set_num_threads(1)
    began = time.monotonic()
    model = make(
        options.out, family=options.like, characters=SHAPES.characters, max_length=MAX_LENGTH,
        seed=options.seed,
    )  # fmt: skip
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(options.out)
    train(model.train(), processor, steps=options.steps, seed=options.seed)
    model.eval().to(torch.bfloat16).save_pretrained(options.out)
    print(f"{options.steps} steps in {time.monotonic() - began:.0f} s -> {options.out}")


if __name__ == "__main__":
    main()
