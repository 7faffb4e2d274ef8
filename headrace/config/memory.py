"""How much memory a run will take, estimated from its configuration before anything starts.

In: a configuration and the machine. Out: bytes by part, on the host or on a GPU. The constants are
resident sizes measured on a two-core machine (vLLM 0.32 and torch 2.13 on the CPU); the estimate
should be right to within a third, and names its parts so that a user sees which one to shrink.
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from headrace.config.run import RunConfig

MIB = 2**20
COORDINATOR = 350 * MIB
DASHBOARD = 300 * MIB
REWARD_PROCESS = 150 * MIB
VLLM_PROCESSES = 1400 * MIB
"""vLLM's client and engine process without weights, keys and values."""
TORCH_SAMPLER = 700 * MIB
LEARNER_PROCESS = 900 * MIB
"""Python, torch and DeepSpeed in one rank."""

ADAM_BYTES = 16
"""A trained parameter in float32: weight, gradient, two moments."""
LAYER_BYTES = 40
"""Activations kept for the backward pass, for each token, layer and hidden unit."""
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class ModelShape:
    """What the estimate needs to know about a model."""

    parameters: int
    hidden: int
    layers: int
    vocabulary: int
    kv_bytes_per_token: int
    """Keys and values of one token at two bytes a number."""


def model_shape(folder: Path) -> ModelShape:
    """Read a Hugging Face folder's config.json and the headers of its weight files."""
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config", config)
    hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
    heads = int(config.get("num_attention_heads", 1))
    head_dim = int(config.get("head_dim") or hidden // heads)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    vocabulary = int(config["vocab_size"])
    parameters = sum(_tensor_elements(file) for file in sorted(folder.glob("*.safetensors")))
    if not parameters:
        inner = int(config.get("intermediate_size", 4 * hidden))
        tied = bool(config.get("tie_word_embeddings", False))
        layer = hidden * head_dim * (2 * heads + 2 * kv_heads) + 3 * hidden * inner
        parameters = layers * layer + vocabulary * hidden * (1 if tied else 2)
    return ModelShape(parameters, hidden, layers, vocabulary, 4 * layers * kv_heads * head_dim)


def _tensor_elements(file: Path) -> int:
    """Numbers in a safetensors file, from its header alone."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(min(length, 64 * MIB)))
    total = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            elements = 1
            for size in tensor["shape"]:
                elements *= size
            total += elements
    return total


@dataclass(frozen=True)
class Estimate:
    """Bytes by part, and which key shrinks each."""

    parts: dict[str, int]

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(self.parts.values())

    def text(self) -> str:
        """`generators 1.2 GiB (kv cache 1.0), ...`, largest first."""
        ordered = sorted(self.parts.items(), key=lambda part: -part[1])
        return ", ".join(f"{name} {size / 2**30:.1f}" for name, size in ordered if size >= 50 * MIB)


def trained_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Weights, gradients and optimizer state of one rank, policy and value model together, and the
    frozen reference where there is one."""
    learner, ranks = config.learner, config.learner.ranks
    models = 2 if config.algorithm.value is not None else 1
    weights, gradients, moments = 4.0, 4.0, 8.0
    if learner.precision == "bfloat16":
        weights, gradients, moments = 2.0, 2.0, 12.0
    moments /= ranks if learner.zero_stage >= 1 else 1
    gradients /= ranks if learner.zero_stage >= 2 else 1
    reference = weights if config.algorithm.kl is not None else 0.0
    weights /= ranks if learner.zero_stage >= 3 else 1
    return int(shape.parameters * (models * (weights + gradients + moments) + reference))


def activation_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Activations and logits of one micro-batch of one model."""
    learner = config.learner
    tokens = max(
        learner.micro_batch_tokens, config.task.max_prompt_length + config.task.max_response_length
    )
    kept = 1 if learner.gradient_checkpointing else shape.layers
    width = 4 if learner.precision == "float32" else 3
    layers = tokens * shape.hidden * kept * LAYER_BYTES * width // 4
    logits = min(tokens, learner.logits_chunk_tokens) * shape.vocabulary * 4 * 3
    return layers + logits


def carried_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Keys and values that one rank carries over: of all trajectories in play at their longest, or
    as much as it may."""
    learner, algorithm = config.learner, config.algorithm
    if learner.context != "carried":
        return 0
    models = 1 + (algorithm.value is not None) + (algorithm.kl is not None)
    width = 2 if learner.precision == "float32" else 1
    longest = config.task.max_prompt_length + config.task.max_response_length
    tokens = longest * -(-config.schedule.bound // learner.ranks)
    needed = tokens * shape.kv_bytes_per_token * width * models
    return min(needed, int(learner.carried_gib * 2**30))


def host_memory(config: RunConfig, shape: ModelShape, *, on_gpu: bool) -> Estimate:
    """Bytes of main memory that a run takes."""
    generator, reward, learner = config.generator, config.reward, config.learner
    vllm = generator.engine == "vllm"
    weights = shape.parameters * _DTYPE_BYTES.get(generator.dtype, 2)
    parts = {"coordinator": COORDINATOR}
    if generator.engine != "fake":
        base = VLLM_PROCESSES if vllm else TORCH_SAMPLER
        parts["generators"] = generator.count * (base + (0 if on_gpu else 2 * weights))
    if vllm and not on_gpu:
        parts["kv cache"] = int(generator.count * generator.kv_cache_gib * 2**30)
    if not config.evaluation.only:
        parts["learner processes"] = learner.ranks * LEARNER_PROCESS
        parts["carried keys"] = learner.ranks * carried_bytes(config, shape)
        if not on_gpu or learner.device == "cpu":
            parts["models and optimizers"] = learner.ranks * trained_bytes(config, shape)
            parts["activations"] = learner.ranks * activation_bytes(config, shape)
    parts["rewards"] = reward.workers * (1 + reward.children) * REWARD_PROCESS
    if config.dashboard.enabled:
        parts["dashboard"] = DASHBOARD
    return Estimate(parts)


def gpu_memory(config: RunConfig, shape: ModelShape) -> Estimate:
    """Bytes of one GPU that a learner rank takes."""
    return Estimate(
        {
            "models and optimizers": trained_bytes(config, shape),
            "activations": activation_bytes(config, shape),
            "carried keys": min(
                carried_bytes(config, shape), int(config.learner.carried_on_device_gib * 2**30)
            ),
        }
    )
