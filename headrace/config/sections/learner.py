"""How batches become gradients: optimizers, packing, precision, ranks."""

from typing import Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel


class OptimizerConfig(StrictModel):
    """AdamW with warm-up then a constant learning rate."""

    lr: float = Field(default=1e-6, gt=0)
    """Learning rate after warm-up."""

    betas: tuple[float, float] = (0.9, 0.95)
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


class RankerTraining(OptimizerConfig):
    """How the ranker that pays is trained along: on the answers of each update and the clicks of
    their rows."""

    lr: float = Field(default=1e-4, gt=0)
    """Learning rate after warm-up."""

    lists: int = Field(default=32, ge=1)
    """Most lists of candidates that a rank learns from in one update; it takes the first."""

    max_tokens: int = Field(default=128, ge=16)
    """Longest row in tokens; the oldest queries of a session go first."""

    max_staleness: int = Field(default=2, ge=0)
    """Most versions between the one that scores and the newest; what an older one said is asked
    again."""


class LearnerConfig(StrictModel):
    """The learner: two DeepSpeed engines behind one update."""

    ranks: int = Field(default=1, ge=1)
    """Data-parallel processes."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: GPUs when there are any."""

    precision: Literal["auto", "float32", "bf16_autocast", "bfloat16"] = "auto"
    """float32; float32 weights with bfloat16 matrix products (float32 ones on a CPU without
    instructions for them); or DeepSpeed's bfloat16 mode. auto: bfloat16 on GPUs, else
    bf16_autocast."""

    zero_stage: Literal[0, 1, 2, 3] | None = None
    """DeepSpeed ZeRO stage. None: 2 with `precision = "bfloat16"`, which takes 2 at least; else
    0."""

    offload_optimizer: bool = False
    """Keep optimizer state in host memory (ZeRO 1 and up)."""

    gradient_checkpointing: bool | None = None
    """Layers keep their inputs alone, and the backward pass computes the rest again, layer by
    layer. `headrace config explain` states the memory with and without. None: on GPUs."""

    micro_batch_tokens: int = Field(default=4096, ge=1)
    """Most tokens, context included, of one forward pass. A longer trajectory has one to
    itself."""

    context: Literal["full", "frozen", "carried"] = "full"
    """What a later window sees of its prefix. full: it is computed again, and gradients flow
    through its keys and values. frozen: it is computed again, and they do not. carried: keys and
    values are those of the updates that trained the earlier windows; streaming only."""

    share_prompts: bool | None = None
    """Responses of one group that go through a forward pass together compute their prompt once. It
    takes our own attention. None: wherever FlashAttention is not used instead. True: instead of
    FlashAttention, too."""

    carried_gib: float = Field(default=4.0, gt=0)
    """With `context = "carried"`: most memory for keys and values in each rank. What was used
    longest ago goes first and is computed again when it is needed."""

    carried_on_device_gib: float = Field(default=0.0, ge=0)
    """How much of `carried_gib` may stay in a GPU's memory; the rest is on the host."""

    logits_chunk_tokens: int = Field(default=4096, ge=1)
    """Tokens whose logits exist at once."""

    policy: OptimizerConfig = OptimizerConfig()
    """The policy's optimizer."""

    value: OptimizerConfig = OptimizerConfig(lr=2e-6)
    """The value model's optimizer."""

    ranker: RankerTraining | None = None
    """Train the reward's ranker along (kind `ranker`). None: it stays as it is."""

    publish_min_interval_s: float = Field(default=0.0, ge=0)
    """Least time between two publications of weights; a newer version replaces a waiting one."""

    threads: int = Field(default=1, ge=1)
    """Torch threads of a rank on a CPU."""

    lockstep_threads: int | None = Field(default=None, ge=1)
    """Torch threads on a CPU in `synchronous` and `windowed`, where the generator is idle while
    the learner works. None: as many as there are cores per rank."""

    cpus: list[int] | None = None
    """Processor cores of the learner on a CPU machine. None: all but the generators' cores when
    streaming; all of them otherwise."""
