"""Make a cold-started policy.

Usage: `python -m tasks.make_models.cold_start --task chain_sums --out DIR`. In: a procedural task,
a number of steps and a seed. Out: a Hugging Face folder with a 0.65M-parameter Llama and its
character tokenizer, about 1.3 MB. The model answers as the task teaches it: chains of sums in a
mixture of styles, as base models do, tracking with a slip in every fifth step, the shift register
with slips and checks.

Two phases, counted in steps so that a run reproduces: the skill alone, on short prompts and a few
long ones (labels the model has never seen would break the switch), then the mixture on the task's
own lengths. The wide initialisation matters: at the usual 0.02 the sum table does not form.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

import torch
from rich.progress import Progress
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from headrace.host.hardware import has_bfloat16
from tasks.datasets.source import PROCEDURAL_TASKS
from tasks.make_models.policy_check import check_policy, print_check
from tasks.procedural.base import EOS, Phase, ProceduralTask, PromptSizes, draw_prompt, prompt_row
from tasks.procedural.chain_sums import MIXTURE, StyleMixture, taught_in
from tasks.procedural.character_tokenizer import BOS, MAX_LENGTH, PAD, build_tokenizer

STEPS = 1400
BATCH = 32
LEARNING_RATE = 1e-3
WARM_UP_STEPS = 40
MLP_WIDTH = 384
LAYERS = 3
IGNORED = -100
LONGEST_PROMPT = 128
"""Tokens beside those of the answer that a model has positions for."""


@dataclass(frozen=True, slots=True)
class Curriculum:
    """The examples that the model is taught.

    `first_phase` is a share of the steps. `long_shares` are the shares of each phase's examples
    whose number of terms is uniform from 2 to the maximum; the others have 3 to 10 terms in the
    first phase and follow `sizes` in the second. `first_cut` is the maximum number of tokens of an
    answer that the first phase shows (None: all): the beginning of a long answer teaches what one
    of its steps is, and costs no more than a short one."""

    task: ProceduralTask
    sizes: PromptSizes
    first_phase: float = 0.48
    long_shares: tuple[float, float] = (0.25, 0.12)
    first_cut: int | None = None


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """One supervised sequence: token ids, and where the response begins in them."""

    ids: list[int]
    response_start: int


E = TypeVar("E", bound=TrainingExample)


def build_model(
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    *,
    mlp_width: int = MLP_WIDTH,
    layers: int = LAYERS,
) -> LlamaForCausalLM:
    """A new model with 0.65M parameters in fp32, or fewer with a narrower MLP."""
    torch.manual_seed(seed)
    ids = tokenizer.convert_tokens_to_ids([PAD, BOS, EOS])
    special = dict(zip(("pad_token_id", "bos_token_id", "eos_token_id"), ids, strict=True))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=mlp_width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=tokenizer.model_max_length,
        rms_norm_eps=1e-6,
        initializer_range=0.05,
        tie_word_embeddings=True,
        **special,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(**special, do_sample=True, temperature=1.0)
    return model


def training_texts(
    curriculum: Curriculum, seed: int, steps: int
) -> Iterator[list[tuple[str, str]]]:
    """`steps` batches of (prompt, response), none of the prompts held out."""
    rng = Random(f"cold-start/{seed}")
    first = int(steps * curriculum.first_phase)
    task, sizes = curriculum.task, curriculum.sizes
    for step in range(steps):
        phase: Phase = "skill" if step < first else "mixture"
        long_share = curriculum.long_shares[step >= first]
        batch: list[tuple[str, str]] = []
        for i in range(BATCH):
            short_terms = rng.randint(3, 10) if step < first else 0
            if rng.random() < long_share:
                prompt = draw_prompt(task, rng, rng.randint(2, sizes.max_terms))
            elif short_terms:
                prompt = draw_prompt(task, rng, min(short_terms, sizes.max_terms))
            else:
                row = prompt_row(task, step * BATCH + i, seed, sizes=sizes)
                prompt = str(row.prompt)
            batch.append((prompt, task.teach(prompt, rng, phase)))
        yield batch


def make_example(
    tokenizer: PreTrainedTokenizerFast, prompt: str, response: str, *, most: int | None = None
) -> TrainingExample:
    """Prompt, response and end token, of which at most `most` follow the prompt."""
    text = prompt + (response if most is None else response[:most])
    ends = most is None or len(response) < most
    end = [tokenizer.eos_token_id] if ends else []
    return TrainingExample([*tokenizer.encode(text), *end], len(prompt))


def buckets(examples: list[E]) -> Iterator[list[E]]:
    """The batch in groups of like length: padding stays under a third of a group."""
    group: list[E] = []
    for example in sorted(examples, key=lambda example: len(example.ids)):
        if group and len(example.ids) > 1.5 * len(group[0].ids):
            yield group
            group = []
        group.append(example)
    yield group


def weighted_loss(
    model: LlamaForCausalLM, group: list[TrainingExample], *, equals: int, weight: float
) -> tuple[torch.Tensor, float]:
    """Summed cross-entropy of the response tokens and the sum of their weights.

    The token after an `=` inside the response, a step's result, weighs `weight`, all others one.
    """
    length = max(len(example.ids) for example in group)
    ids = torch.zeros(len(group), length, dtype=torch.long)
    labels = torch.full((len(group), length), IGNORED)
    for row, example in enumerate(group):
        end = len(example.ids)
        ids[row, :end] = torch.tensor(example.ids)
        labels[row, example.response_start : end] = ids[row, example.response_start : end]
    # Padding is on the right and attention is causal: real tokens never see it, no mask is needed.
    # A processor without bfloat16 products takes eight times as long with them.
    with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16()):
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    targets = labels[:, 1:]
    losses = functional.cross_entropy(
        logits.float().transpose(1, 2), targets, ignore_index=IGNORED, reduction="none"
    )
    responses = targets != IGNORED
    results = (ids[:, :-1] == equals) & (labels[:, :-1] != IGNORED)
    weights = responses * (1.0 + (weight - 1.0) * results)
    return (losses * weights).sum(), float(weights.sum())


def learning_rate(step: int, steps: int) -> float:
    """Warm-up, constant to the middle, then linear down to three percent."""
    decay = max(0.0, (step - steps / 2) / (steps / 2))
    return LEARNING_RATE * min(1.0, (step + 1) / WARM_UP_STEPS) * (1.0 - 0.97 * decay)


def train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    curriculum: Curriculum,
    *,
    steps: int,
    seed: int,
) -> None:
    """Train `model` in place, with a progress bar."""
    equals = int(tokenizer.convert_tokens_to_ids("="))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    with Progress() as progress:
        bar = progress.add_task("cold start", total=steps)
        for step, texts in enumerate(training_texts(curriculum, seed, steps)):
            first = step < int(steps * curriculum.first_phase)
            weight = 4.0 if first else 2.0
            most = curriculum.first_cut if first else None
            examples = [make_example(tokenizer, *text, most=most) for text in texts]
            total = 0.0
            summed = 0.0
            optimizer.zero_grad(set_to_none=True)
            for group in buckets(examples):
                loss, weights = weighted_loss(model, group, equals=equals, weight=weight)
                loss.backward()
                summed, total = summed + float(loss.detach()), total + weights
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= total
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.param_groups[0]["lr"] = learning_rate(step, steps)
            optimizer.step()
            progress.update(bar, advance=1, description=f"cold start, loss {summed / total:.3f}")


def main(arguments: list[str] | None = None) -> None:
    """Train, save, measure the saved weights, print the figures."""
    parser = argparse.ArgumentParser(description="Make a cold-started policy.")
    parser.add_argument("--task", choices=sorted(PROCEDURAL_TASKS), default="chain_sums")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--steps", type=int, default=STEPS, help="supervised steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eval-prompts", type=int, default=2048, help="held-out prompts; 0 skips")
    parser.add_argument("--min-terms", type=int, help="fewest terms (default: the task's)")
    parser.add_argument("--max-terms", type=int, help="most terms (default: the task's)")
    parser.add_argument(
        "--tail-exponent", type=float, help="of the number of terms (default: the task's)"
    )
    parser.add_argument(
        "--mixture",
        type=float,
        nargs=2,
        metavar=("DIRECT", "JUMPS"),
        default=(MIXTURE.direct, MIXTURE.jumps),
        help="chain_sums: shares of bare answers and of answers in jumps",
    )
    parser.add_argument(
        "--first-phase",
        type=float,
        default=0.48,
        help="share of the steps that show careful answers",
    )
    parser.add_argument(
        "--long-shares",
        type=float,
        nargs=2,
        default=(0.25, 0.12),
        help="share of prompts of any length, in each phase",
    )
    parser.add_argument(
        "--first-cut", type=int, help="most tokens of an answer that the first phase shows"
    )
    parser.add_argument("--mlp-width", type=int, default=MLP_WIDTH)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument(
        "--max-tokens", type=int, help="longest answer (default: 240, or 7 a term and 8)"
    )
    options = parser.parse_args(arguments)
    disable_progress_bar()

    torch.set_num_threads(1)
    began = time.monotonic()
    task = PROCEDURAL_TASKS[options.task]
    if task.name == "chain_sums":
        task = taught_in(StyleMixture(*options.mixture))
    sizes = PromptSizes(
        options.min_terms or task.min_terms,
        options.max_terms or task.max_terms,
        options.tail_exponent or task.tail_exponent,
    )
    curriculum = Curriculum(
        task, sizes, options.first_phase, tuple(options.long_shares), options.first_cut
    )
    max_tokens = options.max_tokens or max(240, 7 * sizes.max_terms + 8)
    tokenizer = build_tokenizer(task.characters, max(MAX_LENGTH, max_tokens + LONGEST_PROMPT))
    model = build_model(tokenizer, options.seed, mlp_width=options.mlp_width, layers=options.layers)
    train(model, tokenizer, curriculum, steps=options.steps, seed=options.seed)
    seconds = time.monotonic() - began
    model.to(torch.bfloat16).save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    print(f"{options.steps} steps in {seconds:.0f} s -> {options.out}")
    if options.eval_prompts:
        saved = LlamaForCausalLM.from_pretrained(options.out, dtype=torch.float32)
        check = check_policy(
            saved,
            tokenizer,
            task,
            prompts=options.eval_prompts,
            seed=options.seed,
            max_tokens=max_tokens,
            sizes=sizes,
        )
        print_check(check, task)


if __name__ == "__main__":
    main()
