"""Generators and their sampling."""

from typing import Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel


class FireConfig(StrictModel):
    """FIRE sampling (arXiv 2410.21236): a training response's first token is drawn hot, from few
    candidates at a high temperature."""

    temperature: float = Field(default=30.0, gt=0)
    """Temperature of the hot token."""

    top_k: int = Field(default=16, ge=-1)
    """Candidates for the hot token; -1: all tokens."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus of the hot token, after temperature and `top_k`."""

    ban_eos: bool = True
    """End tokens are no candidates (a hot one would make an empty response)."""

    correction: Literal["mask", "ratio", "recompute"] = "mask"
    """Training on a hot token. mask: none. ratio: weighted by policy over hot sampler, at most
    `ratio_cap`. recompute: as the policy's own (biased)."""

    ratio_cap: float = Field(default=2.0, ge=1)
    """Maximum weight with `correction = "ratio"`; usual: 2 to 10."""


class GeneratorConfig(StrictModel):
    """Generators: how many, on what engine, sampling how."""

    count: int = Field(default=1, ge=0)
    """Generators to start; more may join with `headrace generator --connect`."""

    engine: Literal["vllm", "torch", "fake"] = "vllm"
    """vllm: vLLM's AsyncLLM. torch: a pure PyTorch sampler for tiny models. fake: scripted, for
    tests; ignores weights."""

    max_num_seqs: int | None = Field(default=None, ge=1)
    """Trajectories sampled concurrently by a generator. None: 256 on a GPU, else 128."""

    ahead: int | None = Field(default=None, ge=0)
    """Trajectories held beyond those, to begin when another ends. None: `max_num_seqs` / 8."""

    chunk_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of tokens per chunk. None: min(window, 256)."""

    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature in training."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus; must be 1 in training: the learner cannot know which tokens were left out."""

    top_k: int = Field(default=-1, ge=-1)
    """Candidates; must be -1 or 0 (all) in training, as `top_p`."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the engine. auto: bfloat16 on a GPU, else float32. bfloat16: where the processor
    has its products, else float32."""

    quantization: Literal["fp8"] | None = None
    """fp8: on a GPU, linear layers multiply in eight bits, with one scale a tensor; vLLM quantizes
    each version as it loads. Training takes the logprobs of the quantized policy for the sampler's.
    None: all is in `dtype`."""

    kv_cache_gib: float = Field(default=1.0, gt=0)
    """Memory for keys and values on a CPU."""

    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    """Share of a GPU's memory for vLLM. None: 0.9 less the learner's estimated share of the same
    GPU, split among its generators."""

    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs of one generator."""

    enforce_eager: bool | None = None
    """Run without torch.compile and CUDA graphs. None: on a CPU, where compiling takes 15 s."""

    stream_interval: int = Field(default=8, ge=1)
    """Tokens per hand-over of vLLM: fewer wake-ups, the same tokens and versions."""

    kv_on_update: Literal["keep", "recompute"] = "keep"
    """Keys and values when new weights arrive in streaming mode: keep them (versions mix), or
    prefill live prefixes again."""

    weights: Literal["file", "broadcast"] = "file"
    """Transport of new weights. file: a file in shared memory, over ZeroMQ to other hosts.
    broadcast: from the learner's GPU into vLLM's by NCCL (from CPU to CPU by gloo), neither
    encrypted nor authenticated; the file where that fails."""

    batch_invariant: bool = False
    """Compute every trajectory by itself (slower): its tokens do not depend on what runs beside it,
    to the bit. For `engine = "torch"`; with rounds a resumed run equals an uninterrupted one."""

    cpus: list[int] | None = None
    """Cores on a CPU machine. None: one in streaming, all in rounds."""

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
