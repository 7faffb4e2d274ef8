"""Models of a run: policy, value model, and judges (`[reward.judges.NAME]`)."""

from typing import Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel


class ModelConfig(StrictModel):
    """Policy and value model, as Hugging Face folders or hub names."""

    path: str
    """Policy: a Hugging Face model folder or hub name; its tokenizer is used everywhere."""

    critic_path: str | None = None
    """Value model: a folder saved by an earlier run (`checkpoints/step_N/critic`) or a reward model
    with a scalar head. None: a copy of the policy with a new head of zeros."""

    head_precision: Literal["model", "float32"] = "model"
    """Precision of the policy's output head in learner and generators. float32: logprobs of a
    bfloat16 model agree better, for more time. The value model's head is always float32."""

    chat_template: Literal["auto", "always", "never"] = "auto"
    """Use of the chat template. auto: for chat messages alone. always: as instruct models want."""

    freeze_vision: bool = True
    """Freeze vision tower and projector of both models; an image is then embedded once."""

    trust_remote_code: bool = Field(default=False)
    """Run Python code shipped in the model folder. Off unless you trust its author."""


class JudgeConfig(StrictModel):
    """A model that the run serves with vLLM to sources of kind `judge` (their option `judge`)."""

    path: str
    """A Hugging Face model folder or hub name."""

    max_model_len: int | None = Field(default=None, ge=1)
    """Maximum length of a question with its answer, in tokens. None: the model's context."""

    max_num_seqs: int = Field(default=64, ge=1)
    """Questions answered concurrently."""

    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    """Precision of weights and forward pass. auto: the model's. float32 on a processor without
    bfloat16 products."""

    chat_template: str | None = None
    """File with the chat template. None: the folder's; without any, use `api = "completions"`."""

    kv_cache_gib: float = Field(default=1.0, gt=0)
    """Memory for keys and values on a CPU."""

    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of a GPU's memory; less where it shares one with a generator."""

    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs of the judge."""

    enforce_eager: bool = True
    """Run without torch.compile and CUDA graphs."""

    cpus: list[int] | None = None
    """Cores on a CPU machine. None: the last one if three are left to others, else any."""

    trust_remote_code: bool = Field(default=False)
    """Run Python code shipped inside the model folder. Off unless you trust its author."""
