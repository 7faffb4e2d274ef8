"""How trajectories are generated."""

from typing import Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel


class FireConfig(StrictModel):
    """FIRE sampling (arXiv 2410.21236): the first sampled token of a training response is hot, that
    is drawn at a high temperature from few candidates; everything after it is regular."""

    temperature: float = Field(default=30.0, gt=0)
    """Temperature of the hot token."""

    top_k: int = Field(default=16, ge=-1)
    """Candidates for the hot token, the most likely ones; -1: all tokens."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus of the hot token, after temperature and `top_k`."""

    ban_eos: bool = True
    """Whether end tokens are no candidates: a hot end token would make an empty response."""

    correction: Literal["mask", "ratio", "recompute"] = "mask"
    """What the policy learns from a hot token, which the policy itself would not have sampled so.
    mask: nothing. ratio: its loss is weighted by its probability under the policy over that of the
    hot sampler, at most `ratio_cap`. recompute: it counts as sampled by the policy (biased)."""

    ratio_cap: float = Field(default=2.0, ge=1)
    """Largest weight of a hot token with `correction = "ratio"`; 2 to 10 are usual."""


class GeneratorConfig(StrictModel):
    """Generators: how many, on what engine, sampling how."""

    count: int = Field(default=1, ge=0)
    """Generators the supervisor starts; more may join with `headrace generator --connect`."""

    engine: Literal["vllm", "torch", "fake"] = "vllm"
    """vllm: vLLM's AsyncLLM. torch: a small pure PyTorch sampler for tiny models. fake: a scripted
    engine for tests and transport benchmarks, which ignores weights."""

    max_num_seqs: int | None = Field(default=None, ge=1)
    """Trajectories that one generator samples side by side. None: 256 on a GPU, else 128."""

    ahead: int | None = Field(default=None, ge=0)
    """Trajectories it holds beyond those: one of them begins at the very step at which another
    ends, without a turn to the coordinator. None: an eighth of `max_num_seqs`."""

    chunk_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of one chunk on the wire. None: min(window, 256)."""

    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of training trajectories."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus of training trajectories; must be 1 (all) in a run that trains, for the learner
    cannot know which tokens the sampler left out. `evaluation.top_p` is free."""

    top_k: int = Field(default=-1, ge=-1)
    """Most likely tokens to sample training trajectories from; must be -1 or 0 (all) in a run that
    trains, as `top_p`."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the engine's weights and forward pass. auto: bfloat16 on a GPU, else float32."""

    kv_cache_gib: float = Field(default=1.0, gt=0)
    """Memory for keys and values on a CPU."""

    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    """Share of a GPU's memory that vLLM takes. None: 0.9, less what the learner is reckoned to
    take where it is on the same GPU; generators on one GPU share that evenly."""

    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs of one generator."""

    enforce_eager: bool | None = None
    """Run without torch.compile and CUDA graphs. None: on a CPU, where compiling costs 15 s at
    start."""

    stream_interval: int = Field(default=8, ge=1)
    """Tokens of a trajectory that vLLM gathers before it hands them over: fewer wake-ups, the same
    tokens; their weight versions stay exact."""

    kv_on_update: Literal["keep", "recompute"] = "keep"
    """What becomes of keys and values in streaming mode when new weights arrive: keep them (they
    mix versions), or prefill every live prefix again with the new weights."""

    batch_invariant: bool = False
    """Compute every trajectory by itself, so that its tokens do not depend, to the bit, on what is
    sampled beside it or on how often it was resumed; slower. For `engine = "torch"`: with rounds
    (`schedule.mode` synchronous or windowed), a run that is stopped and resumed equals one that is
    not."""

    cpus: list[int] | None = None
    """Cores of a generator on a CPU machine. None: one of its own in streaming, all in lockstep."""

    fire: FireConfig | None = None
    """Hot first tokens of training responses; None: every token is sampled alike."""

    @property
    def capacity(self) -> int:
        """Trajectories that one generator holds at a time."""
        return self.seats + (self.seats // 8 if self.ahead is None else self.ahead)

    @property
    def seats(self) -> int:
        """`max_num_seqs` once it is chosen (`headrace.config.device_defaults`)."""
        assert self.max_num_seqs is not None
        return self.max_num_seqs
