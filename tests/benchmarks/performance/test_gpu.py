"""`headrace bench gpu` counts the operations that its MFU is made of, and runs where there is no
GPU."""

import json
import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.performance.gpu import SIZES, OperationCounter
from headrace.config.estimates.model_shape import ModelShape
from headrace.host.install import ROOT
from learner.batching.layout import layout_of
from learner.models.attention import ATTENTION, register
from learner.models.forward import Pack, PolicyNetwork


@pytest.mark.parametrize("reads", [64, 5])
def test_operations_are_those_of_matrix_products(reads: int) -> None:
    """Of weights, by torch's own counter; the head's for the tokens that are read alone."""
    register()
    config = Qwen2Config(**SIZES["tiny"], tie_word_embeddings=True)
    config._attn_implementation = ATTENTION
    network = PolicyNetwork(Qwen2ForCausalLM(config))
    parameters = sum(p.numel() for p in network.parameters())
    shape = ModelShape(parameters, 64, 192, 4, 2, 16, 2, 512)
    counted = OperationCounter([network], shape)
    lengths = [40, 24]
    ids = torch.zeros(64, dtype=torch.int64)
    places = torch.cat([torch.arange(length) for length in lengths])
    pack = Pack(ids, places, layout_of(lengths), torch.arange(reads), ids[:reads])
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(pack)
    products = counter.get_flop_counts()["Global"]
    weights = sum(n for name, n in products.items() if "attention" not in str(name))
    pairs = sum(length * (length + 1) / 2 for length in lengths)
    assert counted.flops - 4 * 64 * 2 * pairs == pytest.approx(weights, rel=0.02)


def test_it_runs_without_a_gpu() -> None:
    """In a process of its own: it forms a group of ranks."""
    command = [
        sys.executable, "-m", "headrace", "bench", "gpu", "--size", "tiny", "--answers", "4",
        "--length", "128", "--window", "64", "--budget", "512", "--updates", "1", "--no-compile",
        "--json",
    ]  # fmt: skip
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    row = json.loads(run.stdout.splitlines()[-1])
    assert (row["device"], row["compile"], row["window"]) == ("cpu", False, 64)
    assert row["tokens_per_s"] > 0
    assert row["tflops"] >= 0
    assert row["published_bytes"] > 2 * 131_000
