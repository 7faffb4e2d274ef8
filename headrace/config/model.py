"""Which policy and which value model a run starts from."""

from typing import Literal

from pydantic import Field

from headrace.config.base import StrictModel


class ModelConfig(StrictModel):
    """Policy and value model, as Hugging Face folders or hub names."""

    path: str
    """Policy: a Hugging Face model folder (relative to the recipe or the working directory) or hub
    name; its tokenizer is used everywhere."""

    critic_path: str | None = None
    """Value model: a folder saved by an earlier run (`checkpoints/step_N/critic`), or a reward
    model with a scalar head, such as a line reward model; all of its weights are taken. None: a
    copy of the policy with a new scalar head of zeros."""

    chat_template: Literal["auto", "always", "never"] = "auto"
    """Whether prompts pass through the tokenizer's chat template. auto: chat messages do, plain
    strings do not."""

    trust_remote_code: bool = Field(default=False)
    """Run Python code shipped inside the model folder. Off unless you trust its author."""
