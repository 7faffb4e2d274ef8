"""The learner on this device: speed, memory and estimate, publishing, attention.

A learner rank as a run has it (`learner.process.trainer`) trains a random model of Qwen2.5's shape
by T-PPO on windows of long answers, by the recipe for GPUs. It prints and, with --rows, keeps:

- updates    tokens per second through policy and value model, and on a known GPU the MFU:
             operations of the model (2 for a weight and token forward, 6 trained; attention by the
             pairs that see each other; nothing for recomputation by checkpointing) over the
             seconds of an update and the peak of dense bfloat16 products
- memory     bytes by part, the estimate of `headrace config explain` beside what torch allocated
- publish    seconds that the learner stands for a version, and until it is whole on disk
- attention  on a GPU: seconds and bytes of one layer, forward and backward, by FlashAttention
             without padding and by SDPA in padded blocks, for whole answers, for answers behind a
             prompt that stands once, and for windows behind carried keys
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from benchmarks.kit.command_line import add_rows_option, command_line
from benchmarks.kit.pairs import conclude, in_turns, ratios, spread, spread_text
from benchmarks.kit.synthetic_runs import MODEL
from benchmarks.performance.learner import SyntheticAnswer, batch_of, shard_of
from headrace.config.estimates.memory import gpu_memory
from headrace.config.estimates.model_shape import ModelShape, model_shape
from headrace.config.loading.recipe import load_recipe
from headrace.config.sections.run import RunConfig
from headrace.host.hardware import MIB, free_port
from headrace.host.install import ROOT
from headrace.protocol.messages.batches import Shard
from learner.batching.layout import layout_of
from learner.device import choose_device
from learner.models import attention
from learner.models.deepspeed_engine import join_ranks
from learner.models.forward import Pack, PolicyNetwork
from learner.process.trainer import Trainer
from learner.process.weight_publishing import WeightPublisher

RECIPE = ROOT / "recipes" / "qwen-gsm8k-gpu.toml"
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512},
    "0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
             "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151_936},
    "1.5b": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
             "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151_936},
}  # fmt: skip
"""Shapes of Qwen2.5 models by name (their config.json), and one for a test."""
PEAK = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Dense bfloat16 operations per second, by NVIDIA's data sheets of the SXM cards."""
PROMPT = 256


class OperationCounter:
    """Counter of operations of networks' packs; the head's for read tokens only."""

    def __init__(self, networks: Sequence[nn.Module], shape: ModelShape) -> None:
        self.flops, self._shape = 0.0, shape
        for network in networks:
            network.register_forward_pre_hook(self._count)

    def _count(self, network: nn.Module, arguments: tuple[Pack]) -> None:
        (pack,), shape = arguments, self._shape
        queries, keys = (x.diff().double() for x in (pack.layout.cu_lengths, pack.layout.cu_keys))
        pairs = float((queries * (keys - (queries - 1) / 2)).sum())
        head, reads = shape.vocabulary * shape.hidden, pack.reads.numel()
        once = 2.0 * (shape.parameters - head) * pack.token_ids.numel()
        once += 2 * head * reads if isinstance(network, PolicyNetwork) else 0
        once += 4 * shape.query_width * shape.layers * pairs
        self.flops += once * (3 if torch.is_grad_enabled() else 1)


class CarriedKeys:
    """Carried keys and values of one layer."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        self._rows = key, value

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._rows

    def add_layer(self, layer: int, key: Tensor, value: Tensor) -> None: ...


def make_model(folder: Path, size: str, device: torch.device) -> None:
    """Write a random model of that size, and a tokenizer beside it."""
    torch.manual_seed(0)
    shape = Qwen2Config(**SIZES[size], tie_word_embeddings=True, max_position_embeddings=32_768)
    with device:
        model = Qwen2ForCausalLM(shape)
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(MODEL).save_pretrained(folder)


def windows(config: RunConfig, count: int, vocabulary: int, seed: int) -> Shard:
    """Draw a window of each of `count` answers; the last windows end their answers."""
    rng = np.random.default_rng(seed)
    window, longest = config.window, config.task.max_response_length
    answers = []
    for i in range(count):
        start = int(rng.integers(longest // window)) * window
        ids = rng.integers(3, vocabulary, PROMPT + start + window).astype(np.int32)
        ended = float(rng.integers(2)) if start + window == longest else None
        logprobs = np.full(window, -np.log(vocabulary), np.float32)
        answers.append(SyntheticAnswer(i, i, ids, PROMPT, start, logprobs, ended))
    return shard_of(answers)


def train(options: argparse.Namespace, device: torch.device, folder: Path) -> dict[str, Any]:
    """Measure updates of a learner rank: speed, memory and publishing."""
    make_model(folder / "model", options.size, device)
    config = load_recipe(
        RECIPE,
        [f"model.path={folder / 'model'}", f"schedule.window={options.window}",
         f"task.max_response_length={options.length}", f"task.max_prompt_length={PROMPT}",
         f"learner.micro_batch_tokens={options.budget}",
         f"learner.gradient_checkpointing={str(options.checkpointing).lower()}",
         f"learner.compile={str(options.compile).lower()}",
         f"learner.context={options.context}"],
    )  # fmt: skip
    shape = model_shape(folder / "model")
    join_ranks(rank=0, world_size=1, port=free_port(), device=device)
    trainer = Trainer(config, folder, rank=0, device=device)
    counted = OperationCounter(
        [engine.network for engine in trainer.models.engines.values()], shape
    )
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    flops, found = [], list[dict[str, float]]()
    size = trainer.models.policy_bytes
    with WeightPublisher(
        "bench", folder, config.transport, num_bytes=size, coordinator="tcp://127.0.0.1:1"
    ) as publisher:
        for update in range(1, options.updates + 2):
            part = windows(config, options.answers, shape.vocabulary, update)
            counted.flops = 0.0
            done = trainer.train(batch_of(update, version=update - 1), part, publisher)
            if done.skipped:
                raise RuntimeError(done.skipped)
            figures = {n: float(v) for n, v in done.metrics.items() if isinstance(v, float)}
            began = time.perf_counter()
            publisher.behind.written(None)
            figures["written_s"] = figures["timing_s/publish"] + time.perf_counter() - began
            print({n: round(v, 3) for n, v in figures.items() if n.startswith("timing_s/")})
            if update > 1:  # the first one compiles layers and makes the optimizers' state
                found.append(figures)
                flops.append(counted.flops / figures["timing_s/update"])
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    peak = next((p for card, p in PEAK.items() if card in name), None)
    row: dict[str, Any] = {
        "device": name,
        "parameters": shape.parameters,
        **spread([each["perf/tokens_per_s"] for each in found], "tokens_per_s", 0),
        **spread([each["timing_s/update"] for each in found], "update_s"),
        **spread([f / 1e12 for f in flops], "tflops", 2),
        **spread([each["timing_s/publish"] for each in found], "publish_s"),
        **spread([each["written_s"] for each in found], "written_s"),
        "published_bytes": size,
    }
    print(f"{name}: {row['tokens_per_s']:.0f} tokens a second, {row['tflops']:.1f} TFLOP/s")
    if peak:
        row |= spread([f / peak for f in flops], "mfu")
        print(f"MFU {spread_text(row, 'mfu')}")
    stands, whole = spread_text(row, "publish_s"), spread_text(row, "written_s")
    print(f"the learner stands {stands} s for {size / MIB:.0f} MiB, which are written in {whole} s")
    if device.type == "cuda":
        held = torch.cuda.memory_allocated(device)
        most = torch.cuda.max_memory_allocated(device)
        estimate = gpu_memory(config, shape)
        lasting = estimate.parts["models"] + estimate.parts["optimizers"]
        row["memory"] = {
            "between updates": {"bytes": held, "estimate": lasting},
            "beside it in an update": {"bytes": most - held, "estimate": estimate.total - lasting},
            "total": {"bytes": most, "estimate": estimate.total},
        }
        for part, of in row["memory"].items():
            ratio = of["estimate"] / of["bytes"]
            print(f"{part}: {of['bytes'] / MIB:.0f} MiB, the estimate is {ratio:.2f} of it")
    torch.distributed.destroy_process_group()
    return row


def packs(budget: int, window: int) -> dict[str, dict[str, Any]]:
    """Return `layout_of`'s arguments by kind of pack, each of about `budget` tokens."""
    halves = [max(1, budget >> (1 + n)) for n in range(6)]
    members, opening = 8, budget // 4
    rests = [(budget - opening) // members] * members
    return {
        "answers": {"lengths": [*halves, *halves[-1:]]},
        "prompts": {"lengths": [*rests, opening], "before": [opening] * members + [0],
                    "shared": [members] * members + [None]},
        "windows": {"lengths": [window] * (budget // window),
                    "before": [3 * window] * (budget // window)},
    }  # fmt: skip


def layer(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Measure one layer's attention, forward and backward, both ways in turns."""
    sizes = SIZES[options.size]
    heads, few = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    width = sizes["hidden_size"] // heads
    place = nn.Identity()
    place.layer_idx = 0  # type: ignore[assignment]

    def one(kind: str, limit: int, turn: int) -> tuple[float, int]:
        pack = packs(options.budget, options.window)[kind]
        layout, tokens = layout_of(**pack, device=device), sum(pack["lengths"])
        draw = partial(torch.randn, device=device, dtype=torch.bfloat16)
        if layout.past_length:
            layout.past = CarriedKeys(*(draw(layout.past_length, few, width) for _ in range(2)))
        q, k, v = (draw(1, n, tokens, width).requires_grad_() for n in (heads, few, few))
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        held, began = torch.cuda.memory_allocated(device), time.perf_counter()
        with patch.object(attention, "WIDEST_HEAD", limit):
            out, _ = attention.packed_attention(place, q, k, v, None, layout=layout)
        out.float().square().sum().backward()
        torch.cuda.synchronize(device)
        seconds = time.perf_counter() - began
        return seconds, torch.cuda.max_memory_allocated(device) - held

    rows: dict[str, Any] = {}
    for kind in packs(options.budget, options.window):
        sides = {"unpadded": partial(one, kind, attention.WIDEST_HEAD),
                 "blocks": partial(one, kind, 0)}  # fmt: skip
        turns = in_turns(sides, options.repeats)
        (ours, little), (theirs, much) = (zip(*turns[side], strict=True) for side in sides)
        rows[kind] = row = {
            **spread(ratios(theirs, ours)), "seconds": statistics.median(ours),
            "bytes": max(little), "blocks_bytes": max(much),
        }  # fmt: skip
        print(f"{kind}: without padding {spread_text(row)} times as fast, "
              f"{max(little) / MIB:.0f} MiB against {max(much) / MIB:.0f}")  # fmt: skip
    return {"attention": rows}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything that this device allows."""
    device, settings = choose_device("auto"), dict(vars(options))
    for name in ("json", "rows", "updates", "repeats"):
        settings.pop(name)
    with tempfile.TemporaryDirectory() as folder:
        row = {**settings, **train(options, device, Path(folder))}
    return {**row, **(layer(options, device) if device.type == "cuda" else {})}


def main(argv: Sequence[str]) -> int:
    parser = command_line("gpu", __doc__)
    parser.add_argument("--size", choices=SIZES, default="0.5b", help="of the random model")
    parser.add_argument("--answers", type=int, default=32, help="windows of an update")
    parser.add_argument("--length", type=int, default=8192, help="tokens of an answer")
    parser.add_argument("--window", type=int, default=2048, help="tokens of a window")
    parser.add_argument("--budget", type=int, default=16_384, help="tokens of a micro-batch")
    parser.add_argument("--updates", type=int, default=3, help="updates that count")
    parser.add_argument("--repeats", type=int, default=5, help="turns of both attentions")
    parser.add_argument("--context", choices=("full", "frozen", "carried"), default="full",
                        help="how a window's context is computed")  # fmt: skip
    parser.add_argument("--checkpointing", action=argparse.BooleanOptionalAction, default=True,
                        help="layers are computed again in the backward pass")  # fmt: skip
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True,
                        help="layers are compiled")  # fmt: skip
    add_rows_option(parser)
    options = parser.parse_args(argv)
    return conclude("gpu", options, partial(measure, options))
