"""FIRE sampling (arXiv 2410.21236): what a hot first token does to pass@8 and to training.

A model that nearly always begins with a strategy that fails answers 300 prompts eight times each,
by the regular sampler and with a hot first token (T = 30, top-k 4), through the torch engine. Then
it is trained by REINFORCE on rollouts of either kind, with each correction of the hot token, and
evaluated by the regular sampler; that part gates nothing but that all figures are finite.
"""

import asyncio
import hashlib
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from benchmarks import digit_task, fire_task, seeds
from benchmarks.rows import RESULTS, result_line
from generators.engine import GenerationRequest
from generators.policy_files import end_token_ids, read_config, weight_layout
from generators.torch_engine import TorchEngine
from headrace.protocol.messages import FireSampling
from learner.hot_tokens import Correction, hot_streams
from learner.ratios import behaviour_ratio
from tasks.pass_at_k import pass_at_k

ROWS = RESULTS / "fire.jsonl"
SEEDS = 3
PROMPTS, SAMPLES = 300, 8
FIRE = FireSampling(temperature=30.0, top_k=4)
MAX_TOKENS = 3

UPDATES = 60
PROMPTS_AN_UPDATE = 32
POLICY_LR = 3e-4
RATIO_CAP = 2.0
TRAINED: dict[str, Correction | None] = {
    "regular": None,
    "fire, mask": "mask",
    "fire, ratio": "ratio",
    "fire, recompute": "recompute",
}
"""Arms of training: how rollouts are sampled and the hot token corrected."""


class Answer(NamedTuple):
    """One sampled answer: tokens with their behaviour logprobs; whether the first is hot."""

    prompt: str
    text: str
    tokens: list[int]
    logprobs: list[float]
    hot: bool

    @property
    def right(self) -> bool:
        """Whether it solves the prompt."""
        return fire_task.is_right(self.prompt, self.text)


class Sampler:
    """The torch engine on a model folder, several answers a prompt."""

    def __init__(self, folder: Path) -> None:
        path, config = str(folder), read_config(str(folder))
        self._letters = fire_task.tokenizer()
        self._engine = TorchEngine(
            path,
            weight_layout(path, config),
            end_token_ids=end_token_ids(path, config),
            max_model_len=16,
            max_num_seqs=1024,
        )
        self._asked = 0

    async def __aenter__(self) -> "Sampler":
        await self._engine.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._engine.stop()

    async def load(self, path: Path) -> None:
        """Sample from other weights from now on."""
        await self._engine.load_weights(path, self._engine.version + 1)

    async def answers(
        self, prompts: Sequence[str], seed: int, fire: FireSampling | None
    ) -> list[list[Answer]]:
        """SAMPLES answers to each prompt."""
        rng = Random(seed)
        asked = [
            self._one(prompt, rng.getrandbits(48), fire)
            for prompt in prompts
            for _ in range(SAMPLES)
        ]
        found = await asyncio.gather(*asked)
        return [list(found[i : i + SAMPLES]) for i in range(0, len(found), SAMPLES)]

    async def _one(self, prompt: str, seed: int, fire: FireSampling | None) -> Answer:
        self._asked += 1
        request = GenerationRequest(
            str(self._asked),
            self._letters.encode(prompt),
            max_tokens=MAX_TOKENS,
            seed=seed,
            fire=fire,
        )
        deltas = [delta async for delta in self._engine.generate(request)]
        tokens = [token for delta in deltas for token in delta.token_ids]
        text = self._letters.decode(tokens, skip_special_tokens=True)
        logprobs = [logprob for delta in deltas for logprob in delta.logprobs]
        return Answer(prompt, text, tokens, logprobs, deltas[0].hot)


def figures(groups: Sequence[Sequence[Answer]]) -> dict[str, float]:
    """pass@1, pass@8, different answers of a prompt, and how often each strategy begins one."""
    right = [sum(answer.right for answer in group) for group in groups]
    firsts = [answer.text[:1] for group in groups for answer in group]
    return {
        "pass@1": mean(pass_at_k(SAMPLES, c, 1) for c in right),
        f"pass@{SAMPLES}": mean(pass_at_k(SAMPLES, c, SAMPLES) for c in right),
        "distinct": mean(len({answer.text[1:] for answer in group}) for group in groups),
        **{
            f"first {letter}": firsts.count(letter) / len(firsts) for letter in fire_task.STRATEGIES
        },
    }


async def sampled(folder: Path, seed: int) -> dict[str, dict[str, float]]:
    """The figures of both samplers on one model."""
    prompts = digit_task.prompts(PROMPTS, Random(f"held out/{seed}"))
    async with Sampler(folder) as sampler:
        return {
            name: figures(await sampler.answers(prompts, seed, fire))
            for name, fire in (("regular", None), ("fire", FIRE))
        }


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Answers padded on the right: ids [n, length] with the prompt, and of response tokens [n, r]
    the behaviour logprobs, the mask, which are hot, and the advantages."""

    ids: torch.Tensor
    prompt_length: int
    behaviour: torch.Tensor
    mask: torch.Tensor
    hot: torch.Tensor
    advantages: torch.Tensor


def rollouts(groups: Sequence[Sequence[Answer]]) -> Rollouts:
    """Group answers as tensors; an answer's advantage is its score less its group's mean."""
    letters, answers = fire_task.tokenizer(), [answer for group in groups for answer in group]
    length = len(answers[0].prompt)
    ids = torch.zeros(len(answers), length + MAX_TOKENS, dtype=torch.int64)
    behaviour = torch.zeros(len(answers), MAX_TOKENS)
    mask, hot = (torch.zeros(len(answers), MAX_TOKENS, dtype=torch.bool) for _ in range(2))
    for row, answer in enumerate(answers):
        count = len(answer.tokens)
        ids[row, : length + count] = torch.tensor(letters.encode(answer.prompt) + answer.tokens)
        behaviour[row, :count] = torch.tensor(answer.logprobs)
        mask[row, :count], hot[row, 0] = True, answer.hot
    scores = torch.tensor([[float(answer.right) for answer in group] for group in groups])
    advantages = (scores - scores.mean(dim=1, keepdim=True)).reshape(-1, 1).expand_as(behaviour)
    return Rollouts(ids, length, behaviour, mask, hot, advantages)


def update(
    model: Any, optimizer: torch.optim.Optimizer, batch: Rollouts, correction: Correction | None
) -> dict[str, float]:
    """One REINFORCE step; statistics of the hot tokens' pi / q (0 without any)."""
    logits = model(batch.ids).logits[:, batch.prompt_length - 1 : -1].float()
    new = logits.log_softmax(-1).gather(-1, batch.ids[:, batch.prompt_length :, None])[..., 0]
    streams = hot_streams(
        batch.mask.float(), batch.behaviour, new.detach(), batch.hot,
        correction=correction or "mask", cap=RATIO_CAP,
    )  # fmt: skip
    ratio = behaviour_ratio(new, streams.behaviour, batch.mask)
    losses = -streams.weight * ratio.log_ratio.exp() * batch.advantages
    loss = losses.sum() / streams.weight.sum()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    hot = max(int(batch.hot.sum()), 1)
    return {
        "loss": loss.item(),
        "gradient_norm": norm.item(),
        "ratio": streams.ratio.sum().item() / hot,
        "largest_ratio": streams.ratio.max().item(),
        "over_cap": streams.over_cap.sum().item() / hot,
    }


async def trained(folder: Path, seed: int, correction: Correction | None) -> dict[str, Any]:
    """Train one arm; its evaluation by the regular sampler, and the statistics of its updates."""
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=POLICY_LR, weight_decay=0.0)
    rng, fire = Random(f"training/{seed}"), None if correction is None else FIRE
    told = []
    with tempfile.TemporaryDirectory(prefix="headrace-fire-") as scratch:
        async with Sampler(folder) as sampler:
            for number in range(UPDATES):
                asked = digit_task.prompts(PROMPTS_AN_UPDATE, rng)
                groups = await sampler.answers(asked, rng.getrandbits(32), fire)
                told.append(update(model, optimizer, rollouts(groups), correction))
                weights = Path(scratch) / f"{number}.safetensors"
                tensors = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
                save_file(tensors, str(weights))
                await sampler.load(weights)
            held_out = digit_task.prompts(PROMPTS, Random(f"held out/{seed}"))
            found = figures(await sampler.answers(held_out, seed, None))
    return {
        **found,
        "finite": all(math.isfinite(value) for update in told for value in update.values()),
        "mean_ratio": mean(update["ratio"] for update in told),
        "largest_ratio": max(update["largest_ratio"] for update in told),
        "over_cap": mean(update["over_cap"] for update in told),
    }


def key(seed: int, *, training: bool) -> str:
    """The key of a row; changes with the settings."""
    said = (fire_task.EVEN_STEPS, fire_task.ONE_SIDED_STEPS, PROMPTS, SAMPLES, FIRE, UPDATES,
            PROMPTS_AN_UPDATE, POLICY_LR, RATIO_CAP, TRAINED)  # fmt: skip
    digest = hashlib.sha256(repr(said).encode()).hexdigest()[:8]
    return f"{seed}/{'trained' if training else 'sampled'}/{digest}"


def run(seed: int, *, training: bool) -> dict[str, Any]:
    """The row of one seed."""
    with tempfile.TemporaryDirectory(prefix="headrace-fire-") as scratch:
        folder = fire_task.make_model(Path(scratch), seed)
        row: dict[str, Any] = {"seed": seed, "sampled": asyncio.run(sampled(folder, seed))}
        if training:
            row["trained"] = {
                arm: asyncio.run(trained(folder, seed, correction))
                for arm, correction in TRAINED.items()
            }
    return row


def show(rows: Sequence[dict[str, Any]]) -> None:
    """A table of each part."""
    for part in ("sampled", "trained"):
        found = [row for row in rows if part in row]
        if not found:
            continue
        table = Table(
            title=f"{part}: pass@1, pass@{SAMPLES}, different answers a prompt",
            title_justify="left",
        )
        table.add_column("seed")
        arms = list(found[0][part])
        for arm in arms:
            table.add_column(arm, no_wrap=True)
        for row in found:
            values = [row[part][arm] for arm in arms]
            cells = [
                f"{v['pass@1']:.3f} {v[f'pass@{SAMPLES}']:.3f} {v['distinct']:.2f}" for v in values
            ]
            table.add_row(str(row["seed"]), *cells)
        Console(width=None if sys.stdout.isatty() else 140).print(table)


def main(argv: list[str]) -> int:
    """Make the rows that are missing, print the tables."""
    parser = seeds.parser("fire", __doc__, ROWS, seeds=SEEDS)
    parser.add_argument("--no-training", action="store_true", help="only sample")
    options = parser.parse_args(argv)
    training = not options.no_training
    torch.set_num_threads(1)
    disable_progress_bar()
    wanted = {
        key(seed, training=training): partial(run, seed, training=training)
        for seed in range(options.seeds)
    }
    found = seeds.rows_of(options.rows, wanted)
    show(found)
    if options.json:
        print(result_line({"name": "fire", "rows": found}))
    return 0
