"""Estimate of the learner's activation memory, from shapes.

In: the shapes of a model and of a pack, the learner's settings. Out: bytes by part, at an update's
peak. Nothing here grows with the square of a length: attention is a fused kernel that keeps no
scores, except for the short sequences named below.

The terms are those of a decoder with two norms, attention and a gated feed-forward network in each
layer (Llama, Qwen; Mistral's sliding window takes a tenth more). `tests/learner/test_memory.py`
compares them with updates.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headrace.config.estimates.model_shape import ModelShape, model_shape
from headrace.config.sections.run import RunConfig
from headrace.host.hardware import MIB

EXPLICIT_LENGTH = 512
"""Maximum length of CPU attention in bfloat16 that keeps scores: there the backward pass of torch's
fused kernel is slow for short sequences, a fifth of the speed of two plain batched products at 45
tokens, the same at about 1000."""
LOGITS_BYTES = 16
"""For each read token and entry of the vocabulary: the log-probability that is kept, and at most
three float32 numbers beside it while its entropy is computed."""
CACHED_LOGITS = 1 << 20
"""Logits scored at once on a CPU: 4 MiB in float32 stay in its cache from step to step. Only these
take `LOGITS_BYTES`; of all it keeps the logits, then their gradient in parts and as a whole."""
ENTROPY_GRADIENT_BYTES = 8
"""Two more where the entropy is part of the loss."""
STREAM_BYTES = 200
"""For each token: ids, positions, logprobs, advantages, masks and the loss's inputs."""
HEAP_SLACK = 0.4
"""Resident share beyond allocated activations, on a CPU where freed blocks are kept: glibc keeps
those of less than `HEAP_BLOCK`, and before version 2.38 does not find one of the right size again.
Measured 0.15 to 0.55 of what layers keep. With activation checkpointing they are given back (see
`headrace_cli.launch.plan`)."""
HEAP_BLOCK = 32 * MIB


class Widths(NamedTuple):
    """Bytes of a number in the residual stream, and of one that goes into a matrix product."""

    stream: int
    product: int


WIDTHS = {"float32": Widths(4, 4), "bf16_autocast": Widths(4, 2), "bfloat16": Widths(2, 2)}


class PackShape(NamedTuple):
    """Sequences of `length` tokens, `tokens` in all, of which `reads` are in the loss; before each
    sequence stand the carried keys of `past` tokens."""

    tokens: int
    reads: int
    length: int
    past: int = 0

    @property
    def seen(self) -> int:
        """Keys that the last token of a sequence sees."""
        return self.past + self.length


@dataclass(frozen=True)
class Activations:
    """Bytes of one pack's forward and backward pass.

    Attributes:
        checkpointing: layers keep their inputs alone. layers: what all layers keep. head: the last
        norm, what is read of it, and `logits`; done with when a layer is taken back. backward: the
        gradients in one layer; with checkpointing also that layer, computed again. carried: which
        carried keys each token sees, and a copy of them in flight. weights: copies of the weights
        in bfloat16, under automatic casts. streams: numbers by token that no layer holds. heap:
        freed, and not given back.
    """

    checkpointing: bool
    layers: int
    head: int
    logits: int
    backward: int
    carried: int
    weights: int
    streams: int
    heap: int

    @property
    def total(self) -> int:
        """The most that is there at once."""
        late = max(self.head, self.backward)
        return self.layers + late + self.carried + self.weights + self.streams + self.heap

    def parts(self) -> dict[str, int]:
        """`total` in two, which two keys shrink."""
        logits = self.logits if self.head >= self.backward else 0
        return {"activations": self.total - logits, "logits": logits}

    def text(self) -> str:
        """`layers 120, last norm and logits 9, ...`: the parts of `total` in MiB."""
        kept, computed = "layers", "gradients of a layer"
        if self.checkpointing:
            kept, computed = "inputs of layers", "one layer and its gradients"
        late = computed if self.backward > self.head else "last norm and logits"
        parts = {
            kept: self.layers,
            late: max(self.head, self.backward),
            "carried keys": self.carried,
            "weights in bfloat16": self.weights,
            "ids and losses": self.streams,
            "heap": self.heap,
        }
        return ", ".join(f"{name} {size / MIB:,.0f}" for name, size in parts.items() if size)


def critic_shape(config: RunConfig, shape: ModelShape) -> ModelShape | None:
    """The value model's shape, by its own folder where it has one; None without one."""
    value = config.algorithm.value
    return None if value is None else _shape_at(config.model.critic_path, shape).first(value.layers)


def reference_shape(config: RunConfig, shape: ModelShape) -> ModelShape | None:
    """The reference's shape, a teacher's by its folder; None without a divergence."""
    kl = config.algorithm.kl
    return None if kl is None else _shape_at(kl.reference_path, shape)


def _shape_at(path: str | None, otherwise: ModelShape) -> ModelShape:
    return model_shape(Path(path)) if path is not None and Path(path).is_dir() else otherwise


def policy_packs(config: RunConfig) -> list[PackShape]:
    """The packs of a policy update that may take most; the longest trajectory's is the first."""
    longest, budget, window = config.longest, config.learner.micro_batch_tokens, config.window
    # Right answers' earlier windows have a loss, too, where their likelihood is in it.
    whole = config.algorithm.penalties.positive_nll_coef != 0.0
    reads = config.task.max_response_length if whole else window
    packs = [PackShape(longest, reads, longest), _full(budget, longest)]
    if config.learner.context == "carried":
        tokens = max(window, budget)
        packs.append(PackShape(tokens, tokens, window, past=longest - window))
    return packs


def value_packs(config: RunConfig) -> list[PackShape]:
    """The packs of a value update that may take most; the longest trajectory's is the first."""
    longest = config.longest + config.anchor_tokens
    own = PackShape(longest, config.task.max_response_length, longest)
    return [own, _full(config.learner.micro_batch_tokens, longest)]


def _full(budget: int, longest: int) -> PackShape:
    """A full pack of shorter sequences: as long as those that keep their scores may be."""
    return PackShape(budget, budget, min(longest, EXPLICIT_LENGTH))


def policy_activations(
    config: RunConfig, shape: ModelShape, pack: PackShape, *, on_gpu: bool
) -> Activations:
    """Bytes of one pack of a policy update."""
    each = LOGITS_BYTES
    if config.algorithm.penalties.entropy_coef:
        each += ENTROPY_GRADIENT_BYTES
    numbers = min(pack.reads, config.learner.logits_chunk_tokens) * shape.vocabulary
    logits = numbers * each
    if not on_gpu and numbers > CACHED_LOGITS:
        logits = CACHED_LOGITS * each + numbers * 2 * WIDTHS[config.learner.precision].product
    return _activations(config, shape, pack, logits=logits, on_gpu=on_gpu)


def value_activations(
    config: RunConfig, shape: ModelShape, pack: PackShape, *, on_gpu: bool
) -> Activations:
    """Bytes of one pack of a value update; `shape`: the policy's."""
    return _activations(config, critic_shape(config, shape) or shape, pack, logits=0, on_gpu=on_gpu)


def largest_activations(config: RunConfig, shape: ModelShape, *, on_gpu: bool) -> Activations:
    """The most that a pack of an update takes; policy and value model take turns."""
    found = [policy_activations(config, shape, p, on_gpu=on_gpu) for p in policy_packs(config)]
    if config.algorithm.value is not None:
        found += [value_activations(config, shape, p, on_gpu=on_gpu) for p in value_packs(config)]
    return max(found, key=lambda each: each.total)


def _activations(
    config: RunConfig, shape: ModelShape, pack: PackShape, *, logits: int, on_gpu: bool
) -> Activations:
    learner, (stream, product) = config.learner, WIDTHS[config.learner.precision]
    checkpointing = bool(learner.gradient_checkpointing)
    layer = pack.tokens * layer_bytes(shape, pack, learner.precision, on_gpu=on_gpu)
    inputs = pack.tokens * shape.hidden * stream
    layers = shape.layers * (inputs if checkpointing else layer)
    # The last norm's input in float32, normalised, and its output; then what is read of that.
    head = pack.tokens * shape.hidden * (4 + 2 * stream) + pack.reads * shape.hidden * stream
    # Of the layer's output, and of the feed-forward network's gate and product. What that kept of
    # one goes when the gradient of the next comes.
    gradients = inputs + pack.tokens * 2 * shape.intermediate * product
    carried = 0
    if pack.past:
        # Where scores are kept, the mask is copied for the heads of each sequence.
        copies = shape.heads + shape.kv_heads if _keeps_scores(pack, product, on_gpu=on_gpu) else 0
        mask = pack.tokens * pack.seen * (1 + copies)
        earlier = pack.tokens // pack.length * pack.past * 2 * shape.key_width
        carried = product * (mask + earlier)
    keeps = not on_gpu and not checkpointing and inputs < HEAP_BLOCK
    return Activations(
        checkpointing=checkpointing,
        layers=layers,
        head=head + logits,
        logits=logits,
        backward=gradients + (layer if checkpointing else 0),
        carried=carried,
        weights=2 * shape.parameters if learner.precision == "bf16_autocast" else 0,
        streams=pack.tokens * STREAM_BYTES,
        heap=int(layers * HEAP_SLACK) if keeps else 0,
    )


def layer_bytes(shape: ModelShape, pack: PackShape, precision: str, *, on_gpu: bool) -> int:
    """Bytes that one layer keeps of one token until its backward pass."""
    stream, product = WIDTHS[precision]
    queries, keys = shape.query_width, shape.key_width
    # Two norms: the input in float32 and the same normalised. Then the output as products take it:
    # one for three products and one for two, or one for each where each casts it for itself.
    outputs = 5 if stream > product else 2
    norms = shape.hidden * (2 * (4 + stream) + outputs * product)
    if shape.normalised_heads:
        norms += (queries + keys) * (4 + stream)
    # Queries, keys and values in blocks, what comes out of them, and the same packed again for the
    # product that follows; of each head the logarithm of its softmax's sum in float32.
    attention = product * (3 * queries + 2 * keys) + 4 * shape.heads
    if _keeps_scores(pack, product, on_gpu=on_gpu):
        attention += product * shape.heads * pack.seen
    # Carried keys and values are laid before those of each sequence.
    attention += product * 2 * keys * pack.past // pack.length
    # The gate before and after its activation, what it multiplies, and the product.
    feed_forward = product * 4 * shape.intermediate
    return norms + attention + feed_forward


def _keeps_scores(pack: PackShape, product: int, *, on_gpu: bool) -> bool:
    """Return whether attention keeps its scores, as `learner.models.attention` does."""
    return not on_gpu and product == 2 and pack.length * pack.seen <= EXPLICIT_LENGTH**2
