"""What TRL is told: the same work as one of our runs, from the same recipe.

In: the configuration of a GRPO recipe, and TRL's own settings. Out: a `Job`, which travels as JSON
to `benchmarks.trl_trainer`, and the arguments of TRL's `GRPOConfig` that it amounts to. Only the
standard library is imported here: TRL's environment knows none of our packages.
"""

from dataclasses import dataclass
from typing import Any

CONTINUOUS_BATCH_TOKENS = 1024
"""Tokens of one forward pass of continuous batching: room for an update's completions and some
prompts. Its default on a CPU leaves no memory for keys and values."""


@dataclass(frozen=True, slots=True)
class Job:
    """A training run of TRL."""

    model: str
    """Folder of the starting policy, which is also the reference of the divergence."""

    train_rows: str
    """JSONL file of `prompt` and `answer`, in the order in which they are trained on."""

    held_out_rows: str
    """The same for evaluations."""

    output: str
    """A folder that TRL may write into."""

    seed: int
    updates: int
    limit_s: float
    """Most seconds of training."""

    accuracy: float | None
    """Held-out accuracy that ends the run when two successive evaluations have it."""

    evaluate_before: bool
    evaluate_after: bool
    every_updates: int | None
    """Updates between evaluations."""

    completions: int
    """Of one update."""

    num_generations: int
    """Completions of one prompt."""

    max_length: int
    """Most tokens of a completion."""

    temperature: float
    minibatches: int
    """Optimizer steps in one pass over an update's completions."""

    epochs: int
    lr: float
    warmup_steps: int
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    grad_clip: float
    kl_coef: float
    clip_low: float
    clip_high: float
    marker: str | None
    """What stands before an answer."""

    correct_reward: float
    wrong_reward: float
    processes: int
    bf16: bool
    """Matrix products in bfloat16, weights in float32."""

    continuous_batching: bool
    """Completions by transformers' continuous batching instead of one batch to its longest."""

    cache_share: float
    """Of the machine's memory for keys and values, in continuous batching."""

    micro_batch: int
    """Completions in one forward pass of a process."""

    @property
    def steps_an_update(self) -> int:
        """Optimizer steps."""
        return self.minibatches * self.epochs


def trainer_arguments(job: Job) -> dict[str, Any]:
    """The arguments of TRL 1.16's `GRPOConfig`. ValueError where the batch cannot be split so."""
    at_once = job.micro_batch * job.processes
    accumulated, left = divmod(job.completions, job.minibatches * at_once)
    if left:
        raise ValueError(
            f"{job.completions} completions are not {job.minibatches} steps of a number of "
            f"micro-batches of {at_once}"
        )
    return {
        "output_dir": job.output,
        "seed": job.seed,
        "use_cpu": True,
        # The work of an update.
        "max_steps": job.updates * job.steps_an_update,
        "per_device_train_batch_size": job.micro_batch,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": accumulated * job.minibatches,
        "num_iterations": job.epochs,
        "num_generations": job.num_generations,
        "shuffle_dataset": False,
        # Sampling.
        "max_completion_length": job.max_length,
        "temperature": job.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "use_transformers_continuous_batching": job.continuous_batching,
        "transformers_continuous_batching_config": {
            "max_memory_percent": job.cache_share,
            "max_batch_tokens": CONTINUOUS_BATCH_TOKENS,
        },
        # The loss: GRPO as published, with the gradient of the divergence corrected.
        "loss_type": "grpo",
        "scale_rewards": "group",
        "beta": job.kl_coef,
        "use_bias_correction_kl": True,
        "epsilon": job.clip_low,
        "epsilon_high": job.clip_high,
        # The optimizer.
        "learning_rate": job.lr,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": job.warmup_steps,
        "adam_beta1": job.betas[0],
        "adam_beta2": job.betas[1],
        "adam_epsilon": job.eps,
        "weight_decay": job.weight_decay,
        "max_grad_norm": job.grad_clip,
        # Speed: nothing is recomputed, logged or saved, and every weight is known to be used.
        "bf16": job.bf16,
        "gradient_checkpointing": False,
        "ddp_find_unused_parameters": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def is_correct(text: str, answer: str, *, finished: bool, marker: str | None) -> bool:
    """The verdict of the recipes' `math` verifier: a completion without its end is wrong."""
    from rewards.math_answer import is_right

    return finished and is_right(text, answer, marker=marker)
