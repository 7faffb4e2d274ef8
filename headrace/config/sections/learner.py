"""The learner: optimizers, packing, precision, ranks."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from headrace.config.sections.base import StrictModel

DecayRate = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(StrictModel):
    """AdamW with warm-up then a constant learning rate."""

    lr: float = Field(default=1e-6, gt=0)
    """Learning rate after warm-up; the default of the value model is 2e-6."""

    betas: tuple[DecayRate, DecayRate] = (0.9, 0.95)
    """AdamW's decay rates."""

    eps: float = Field(default=1e-8, gt=0)
    """AdamW's epsilon."""

    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay."""

    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps of linear warm-up."""

    grad_clip: float = Field(default=1.0, gt=0)
    """Bound of the global gradient norm."""

    epochs: int = Field(default=1, ge=1)
    """Passes over the batch in one update."""

    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps in one pass."""


class AdapterConfig(StrictModel):
    """Low-rank adapters (LoRA) of policy and value model, which train in place of the weights. A
    checkpoint's model folders are merged, and hold the adapter as `adapter/`. The learning rate is
    usually ten times that of whole weights."""

    rank: int = Field(default=16, ge=1)
    """Rank of the two matrices beside each layer."""

    alpha: int = Field(default=32, ge=1)
    """Their product counts alpha / rank times."""

    targets: list[str] | None = None
    """Linear layers of the decoder by the end of their names (`q_proj`). None: all but routers."""

    publish: Literal["merged", "adapter"] = "merged"
    """Form of a version that generators get. adapter: the two matrices alone, which vLLM loads
    beside its weights: small files, and nothing is lost to rounding; sampling is slower."""

    def adapts(self, layer: str) -> bool:
        """Return whether a decoder's linear layer gets an adapter; no expert and no router does."""
        parts = layer.split(".")
        named = self.targets is None or parts[-1] in self.targets
        return named and not {"experts", "gate", "router"} & {*parts}


class RankerTraining(OptimizerConfig):
    """Training of the paying ranker on each update's answers and the clicks of their rows."""

    lr: float = Field(default=1e-4, gt=0)
    """Learning rate after warm-up."""

    lists: int = Field(default=32, ge=1)
    """Maximum number of lists per rank and update, drawn at random."""

    max_tokens: int = Field(default=128, ge=16)
    """Maximum row length in tokens; the oldest queries go first."""

    max_staleness: int = Field(default=2, ge=0)
    """Maximum number of versions behind the newest; older scores are asked for again."""


class LearnerConfig(StrictModel):
    """The learner: two DeepSpeed engines behind one update."""

    ranks: int = Field(default=1, ge=1)
    """Data-parallel processes."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: GPUs when there are any."""

    precision: Literal["auto", "float32", "bf16_autocast", "bfloat16"] = "auto"
    """float32; bf16_autocast: float32 weights, bfloat16 matrix products (where the processor has
    them); bfloat16: DeepSpeed's. auto: bfloat16 on GPUs, else bf16_autocast."""

    zero_stage: Literal[0, 1, 2, 3] | None = None
    """DeepSpeed ZeRO stage. None: 2 with `precision = "bfloat16"` (its minimum), else 0."""

    offload_optimizer: bool = False
    """Keep optimizer state in host memory (ZeRO 1 and up)."""

    gradient_checkpointing: bool | None = None
    """Recompute layers in the backward pass (memory: `headrace config explain`). None: on GPUs."""

    compile: bool | None = None
    """Fuse the operations of a layer by torch.compile, which takes a C compiler (without one layers
    stay as written) and up to a minute of the first update. None: on GPUs, but not at ZeRO 3."""

    micro_batch_tokens: int = Field(default=4096, ge=1)
    """Maximum tokens per forward pass, context included; a longer trajectory has its own."""

    context: Literal["full", "frozen", "carried"] = "full"
    """A later window's prefix. full: recomputed, gradients flow. frozen: recomputed without.
    carried: keys and values of the updates that trained it; streaming only."""

    share_prompts: bool = True
    """Compute a group's prompt once per forward pass."""

    carried_gib: float = Field(default=4.0, gt=0)
    """Maximum memory per rank for carried keys and values; the longest unused are recomputed."""

    carried_on_device_gib: float = Field(default=0.0, ge=0)
    """Part of `carried_gib` in GPU memory; the rest is on the host."""

    logits_chunk_tokens: int = Field(default=4096, ge=1)
    """Tokens whose logits exist at once."""

    lora: AdapterConfig | None = None
    """Train adapters; policy, value model and reference share one copy of the base model. None:
    train all weights."""

    policy: OptimizerConfig = OptimizerConfig()
    """The policy's optimizer."""

    value: OptimizerConfig = OptimizerConfig(lr=2e-6)
    """The value model's optimizer, whose `lr` is 2e-6 unless it is set."""

    ranker: RankerTraining | None = None
    """Train the reward's ranker along (kind `ranker`). None: it stays as it is."""

    publish_min_interval_s: float = Field(default=0.0, ge=0)
    """Minimum time between publications; a newer version replaces a waiting one."""

    threads: int = Field(default=1, ge=1)
    """Torch threads of a rank on a CPU, and of the step of an offloaded optimizer beside a GPU."""

    lockstep_threads: int | None = Field(default=None, ge=1)
    """The same in `synchronous` and `windowed` (generators are idle). None: the cores per rank."""

    cpus: list[int] | None = None
    """Cores on a CPU machine. None: all but the generators' when streaming; else all."""

    @field_validator("value")
    @classmethod
    def _has_its_rate(cls, value: OptimizerConfig) -> OptimizerConfig:
        return value if "lr" in value.model_fields_set else value.model_copy(update={"lr": 2e-6})

    @property
    def published_adapter(self) -> AdapterConfig | None:
        """The adapter that generators load by itself; None: they get whole weights."""
        return self.lora if self.lora is not None and self.lora.publish == "adapter" else None
